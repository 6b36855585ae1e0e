"""`onebit.verify`: recompute a pipeline's ledger from its topics."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import asdict

from consumers.tally import ledger_line
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import Broker
from stream.kafka.reading import OPEN_MS, read_partition
from stream.measures.errors import MatchedError, matched_error
from stream.measures.latencies import Latency, quantiles
from stream.parsing import parse_duration
from stream.programs.connection import connected
from stream.programs.process import announce, every, monotonic_ms, tune_gc
from stream.programs.replay_progress import replay_progress
from stream.programs.since import parse_since
from stream.recovery.recover import pipeline_settings
from stream.recovery.steps import JournalError, JournalFollower
from stream.reporting.notebook_tables import html_table, text_table
from stream.settings.definitions import Settings, SettingsError
from stream.settings.sources import given_settings
from stream.task.stored_settings import restored_settings
from stream.verifying.audit import Finding, audit_partition, latencies_of
from stream.verifying.moved import MoveFinding, audit_moves
from stream.verifying.reapply import Replay, replay_journal
from stream.verifying.shared_log import LogFinding, audit_log
from stream.wire import codec
from stream.wire.ledger import Ledger, total_ledger
from stream.wire.records import Example, TopicPartition
from stream.wire.topics import Topics

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000

_COLUMNS = ("partition", "decided", "matched", "expired", "pending", "ok")


class Extent(NamedTuple):
    """The range to verify. By default, all retained steps."""

    from_step: int | None = None  # the first step
    since: str | None = None  # the first time: a duration before now, or a time

    def since_ms(self) -> int | None:
        """Return the first time in milliseconds; see `parse_since`."""
        return None if self.since is None else parse_since(self.since)


WHOLE = Extent()


class NotSettledError(OnebitError):
    """The expected events were not settled within the timeout."""

    exit_code = ExitCode.DIFFERS


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a verification."""

    findings: tuple[Finding, ...]  # by partition
    log: LogFinding | None  # None without a shared model
    replays: tuple[Replay, ...] | None  # None if the journal was not replayed
    errors: MatchedError
    moves: tuple[MoveFinding, ...] = ()  # from and to other pipelines

    @property
    def ok(self) -> bool:
        """Whether the recomputed ledgers and all other compared values equal the learner's."""
        parts: tuple[Finding | Replay | MoveFinding, ...] = (*self.findings, *(self.replays or ()), *self.moves)
        return all(part.ok for part in parts) and (self.log is None or self.log.ok)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code: DIFFERS if a check failed, USAGE if records that the ledger needs have been deleted."""
        deleted = {finding.partition for finding in self.findings if finding.deleted}
        wrong = {one.partition for one in self.findings if not one.ok}
        wrong |= {one.partition for one in self.replays or () if not one.ok}
        if self.ok:
            return ExitCode.OK
        others = (*self.moves, *(() if self.log is None else (self.log,)))
        return ExitCode.DIFFERS if wrong - deleted or not all(one.ok for one in others) else ExitCode.USAGE

    @property
    def error(self) -> float:
        """The fraction of decisions with a reward of 0 among those that received feedback in time.

        It is nan if none did, and for graded rewards.
        """
        return nan if self.errors.graded else self.errors.error_rate

    @property
    def ledger(self) -> Ledger:
        """The sum of all partitions' recomputed ledgers."""
        return total_ledger(finding.audited for finding in self.findings)

    @property
    def faults(self) -> tuple[str, ...]:
        """The differences, each with the record in which it was found."""
        log = () if self.log is None else self.log.faults
        moves = tuple(move.fault for move in self.moves if move.fault)
        return tuple(fault for finding in self.findings for fault in finding.faults) + tuple(log) + moves

    @property
    def latency(self) -> Latency | None:
        """The decision latency, or None if there are no decisions."""
        return quantiles(latencies_of(self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of plain values, as in the JSON output of `onebit verify`."""
        result = {
            "ok": self.ok,
            "matched": self.errors.matched,
            "error": self.error,
            "error_last_fifth": nan if self.errors.graded else self.errors.error_rate_last_fifth,
            "latency": None if self.latency is None else asdict(self.latency),
            "partitions": self.to_dicts(),
            **({"model": "own"} if self.log is None else self.log.as_json()),
        }
        for move in self.moves:
            found = {"ok": move.ok, **to_builtins(move.other)}
            result["moved_from" if move.is_origin else "moved_to"] = found
        if self.errors.mean_rewards is not None:
            result["mean_reward"], result["mean_reward_last_fifth"] = self.errors.mean_rewards
        if self.replays is not None:
            result["replay"] = [found._asdict() | {"ok": found.ok} for found in self.replays]
        return result

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict of findings per partition."""
        return [finding.as_json() for finding in self.findings]

    def _rows(self) -> list[list[object]]:
        names = _COLUMNS[1:-1]
        return [
            [finding.partition, *(f"{getattr(finding.audited, name):,}" for name in names), finding.ok]
            for finding in self.findings
        ]

    def __repr__(self) -> str:
        return text_table(_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return html_table(_COLUMNS, self._rows())


def verify(
    *,
    bootstrap: str = "localhost:9092",
    topic_prefix: str = "onebit.",
    wait_events: int | None = None,
    timeout: str = "10m",
    replay: bool = False,
    from_step: int | None = None,
    since: str | None = None,
    **settings: Any,
) -> VerifyReport:
    """Recompute a pipeline's ledger from its topics and compare it with the learner's ledger.

    Args:
        bootstrap: Address of a Kafka broker, HOST:PORT.
        topic_prefix: The topics' prefix.
        wait_events: Number of events to wait for. Verification starts when all of them have decisions and no decision
            is pending.
        timeout: Maximum time to wait for these events.
        replay: Whether to replay the journal and compare the result with the state restored by a recovery.
        from_step: First step of each task to check. The check starts at the newest earlier snapshot.
        since: First time to check: a duration before now, such as "7d", or a time.
        settings: Other settings from docs/settings.md, by name, such as `client_config="client.properties"`.

    Raises:
        OnebitError: no broker responds, topics are missing, or the events are not settled within the timeout.
    """
    given = given_settings({"bootstrap": bootstrap, "topic_prefix": topic_prefix, **settings})
    extent = Extent(from_step, since)
    return verify_pipeline(given, wait_events=wait_events, timeout=timeout, replay=replay, extent=extent)


def verify_pipeline(
    settings: Settings,
    *,
    wait_events: int | None = None,
    timeout: str = "10m",
    replay: bool = False,
    extent: Extent = WHOLE,
) -> VerifyReport:
    """Recompute every partition's ledger and compare it with the learner's ledger; see `verify`.

    Raises:
        NotSettledError: the expected events were not settled within the timeout.
        SettingsError: the topics are missing, or cannot be read.
    """
    timeout_ms, since_ms = parse_duration(timeout), extent.since_ms()
    with connected(settings) as (broker, topics, partitions):
        try:
            if wait_events is not None:
                _wait(broker, topics, partitions, wait_events, timeout_ms)
            tune_gc()
            findings = [
                audit_partition(broker, topics, partition, announce, from_step=extent.from_step, since_ms=since_ms)
                for partition in range(partitions)
            ]
        except JournalError as error:
            raise SettingsError(str(error)) from error
        found = pipeline_settings(broker, topics, partitions).settings
        log = audit_log(broker, topics, partitions) if found.get("model") == "shared" else None
        moves = audit_moves(broker, topics, partitions)
        error_rates = matched_error(
            (_examples(broker, TopicPartition(topics.examples, number)) for number in range(partitions)),
            restored_settings(found).graded if found else None,
        )
    replays = tuple(replayed(settings, extent.from_step, since_ms)) if replay else None
    return VerifyReport(tuple(findings), log, replays, error_rates, tuple(moves))


def _wait(broker: Broker, topics: Topics, partitions: int, events: int, timeout_ms: int) -> None:
    deadline_ms = monotonic_ms() + timeout_ms
    follower = JournalFollower(broker, topics, partitions)
    ledger = Ledger()
    show = every(STATUS_INTERVAL_MS, lambda: announce(f"waiting for {events:,} settled events: {ledger_line(ledger)}"))
    while ledger.decided < events or ledger.pending:
        if monotonic_ms() > deadline_ms:
            raise NotSettledError(
                f"waited {timeout_ms // 1_000} s for {events:,} settled events; got {ledger_line(ledger)}"
            )
        ledger = follower.read(POLL_MS)
        show()
    follower.close()


def _examples(broker: Broker, tp: TopicPartition) -> Iterator[Example]:
    """Yield the readable examples in a partition. The audit reports unreadable examples."""
    for record in read_partition(broker, tp, open_ms=OPEN_MS):
        with suppress(codec.MalformedError):
            yield codec.decode_example(record)


def replayed(settings: Settings, from_step: int | None = None, since_ms: int | None = None) -> list[Replay]:
    """Replay every partition's journal; see `replay_journal`."""
    with connected(settings) as (broker, topics, partitions):
        return [
            replay_journal(
                broker,
                topics,
                partition,
                replay_progress(f"replaying partition {partition}"),
                from_step=from_step,
                since_ms=since_ms,
            )
            for partition in range(partitions)
        ]
