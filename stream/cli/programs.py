"""`onebit replay`, `learn`, `feedback`, `verify`: each program on its own, against Kafka."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from consumers.learner import LearnerOptions, LearnerProgram, RecoveryStoppedError
from producers.feedback import FeedbackOptions, FeedbackProgram
from producers.replay import ReplayProgram, resume_position
from stream.brokers.clocks import EstimatedClock
from stream.brokers.connecting import connect as connect_to_kafka
from stream.brokers.port import Broker, BrokerError, BrokerUnavailableError, FencedError, StaleMemberError
from stream.brokers.reading import OPEN_MS, read_partition
from stream.cli.console import (
    EXIT_DIFFERS,
    EXIT_FENCED,
    EXIT_UNAVAILABLE,
    Status,
    StopRequest,
    announce,
    boot_ms,
    every,
    fail,
    monotonic_ms,
    out,
    run_progress,
)
from stream.cli.options import dataset_of, events_of, feedback_plan, parameters_of, replay_options, topics_of
from stream.cli.readiness import ReadyFile
from stream.cli.settings import Settings, SettingsError
from stream.cli.wanted import wanted_settings, with_hint
from stream.recovery.journal import JournalError
from stream.recovery.journal_reading import JournalFollower
from stream.recovery.resolve import SettingsDifferError
from stream.recovery.settings_reading import pipeline_settings
from stream.reporting.errors import MatchedError, matched_error
from stream.reporting.tables import percent
from stream.verifying.audit import Finding, audit_partition
from stream.wire import codec
from stream.wire.events import Example
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000

WATCH_INTERVAL_MS = 30_000
"""So often a program that runs looks whether its topics are still what it began with."""

REFUSALS_MAX = 5
REFUSED_WITHIN_MS = 60_000
"""A broker that has just come back may refuse what it soon allows; what it refuses again and again will not change."""


def connect(settings: Settings, stop: Callable[[], bool] = lambda: False) -> Broker:
    """Connect to Kafka, waiting for it as long as the settings say.

    Raises:
        SystemExit: no broker answered, or the program was asked to stop while it waited.
    """

    def waiting(message: str) -> None:
        if stop():
            raise SystemExit(0)
        announce(message)

    try:
        return connect_to_kafka(
            settings.bootstrap,
            connect_timeout_ms=settings.connect_timeout,
            session_timeout_ms=settings.session_timeout,
            transaction_timeout_ms=settings.transaction_timeout,
            progress=waiting,
        )
    except BrokerUnavailableError as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error


def require_topics(broker: Broker, topics: Topics) -> int:
    """The number of partitions; topics that are missing end the program with what to do."""
    descriptions = broker.describe_topics(list(topics))
    missing = [name for name in topics if name not in descriptions]
    if missing:
        raise SettingsError(f"there is no topic {', '.join(missing)}; create them first: onebit topics create")
    counts = {name: descriptions[name].partitions for name in topics}
    if len(set(counts.values())) != 1:
        raise SettingsError(f"all topics need the same number of partitions; got {counts}")
    wrong = [name for name in topics if not descriptions[name].append_time]
    if wrong:
        raise SettingsError(
            f"topic {wrong[0]}: expected message.timestamp.type LogAppendTime; got CreateTime: no clock but the "
            "broker's may count; set it to LogAppendTime (kafka-configs --alter), or delete it and run onebit topics "
            "create"
        )
    return counts[topics.contexts]


def watch_topics(broker: Broker, topics: Topics, partitions: int) -> Callable[[], None]:
    """A function to be called often, which looks now and then whether the topics are still what they were.

    It raises SettingsError when they are not: with other partitions an event's records do not meet any more, and
    without the broker's append time nothing is in order.
    """

    def look() -> None:
        try:
            found = require_topics(broker, topics)
        except BrokerUnavailableError:
            return  # what the program itself asks will tell
        except SettingsError as error:
            raise SettingsError(
                f"the topics were altered while this program ran, and it goes no further: {error}"
            ) from error
        if found != partitions:
            raise SettingsError(
                f"the topics were altered while this program ran, and it goes no further: they had {partitions} "
                f"partitions, now they have {found}; an event's key belongs to another partition now. Begin anew with "
                "another prefix, and bring the model along (onebit model export, import)"
            )

    return every(WATCH_INTERVAL_MS, look)


def keep_running(settings: Settings, stop: StopRequest, work: Callable[[Broker], None]) -> None:
    """Do work against Kafka; when the broker goes away, wait for it and do the work anew.

    Raises:
        SystemExit: another process took over, the group threw this one out, or no broker came back within
            --connect-timeout.
    """
    refused = 0  # times in a row that the broker answered, and would not do what was asked
    while True:
        broker = connect(settings, stop)
        began_ms = monotonic_ms()
        try:
            work(broker)
        except FencedError as error:
            raise fail(
                f"{error}; nothing was written after that. Start it again, and it goes on from its last commit; give "
                "every process that runs at the same time its own --instance",
                EXIT_FENCED,
            ) from error
        except (BrokerUnavailableError, StaleMemberError) as error:
            if stop():
                return
            announce(f"the broker is away, connecting again: {error}")
            continue
        except BrokerError as error:
            refused = refused + 1 if monotonic_ms() - began_ms < REFUSED_WITHIN_MS else 1
            if stop():
                return
            if refused >= REFUSALS_MAX:
                raise
            announce(f"the broker refused, trying again ({refused} of {REFUSALS_MAX}): {error}")
            time.sleep(1.0)
            continue
        finally:
            broker.close()
        return


def learn(settings: Settings, *, change_settings: bool = False) -> None:
    """Learn until asked to stop."""
    stop = StopRequest()
    if len(settings.learner) != 1:
        raise SettingsError(f"--learner: this program runs one learner; got {', '.join(settings.learner)}")
    topics = topics_of(settings)
    ready_file = ReadyFile(Path(settings.ready_file) if settings.ready_file else None)
    if "learner" in settings.model_fields_set:
        parameters_of(settings, settings.learner[0])  # refused before a broker is waited for

    def work(broker: Broker) -> None:
        partitions = require_topics(broker, topics)
        watch = watch_topics(broker, topics, partitions)
        begun = pipeline_settings(broker, topics, partitions)
        task, given = wanted_settings(settings, begun, topics.journal, change=change_settings)
        task.warm_up()
        options = LearnerOptions(
            group=f"{settings.topic_prefix}learner",
            instance=f"learner-{settings.instance}",
            snapshot_interval_ms=settings.snapshot_interval,
        )
        program = LearnerProgram(
            broker, topics, task, options, boot_ms, announce, stop=stop, given=given, change_settings=change_settings
        )
        announce(f"{task.learner} on {topics.contexts}: started as instance {settings.instance}; Ctrl-C stops it")

        said = Status()

        def status() -> None:
            lines = [
                f"partition {partition}: {_status(running.join.ledger())}, {running.updates:,} updates"
                for partition, running in sorted(program.tasks.items())
            ]
            if program.outdated:
                lines.append(
                    f"{program.outdated:,} decisions are dated too long before their predictions, and wait for less "
                    "than their window: the broker, or the learner, is slow; a longer --window allows for more"
                )
            said.show(lines)

        show = every(STATUS_INTERVAL_MS, status)
        try:
            while not stop():
                watch()
                program.step(POLL_MS)
                ready_file.show(program.ready)
                show()
            status()
        except RecoveryStoppedError as error:
            announce(f"stopped in a recovery, which wrote nothing: {error}")
        finally:
            ready_file.show(ready=False)
            program.close()

    try:
        keep_running(settings, stop, work)
    except SettingsDifferError as error:
        raise with_hint(error, change=change_settings) from error


def _status(ledger: Ledger) -> str:
    return (
        f"decided {ledger.decided:,}, matched {ledger.matched:,}, expired {ledger.expired:,}, pending "
        f"{ledger.pending:,}, late {ledger.late:,}, duplicate {ledger.feedback_duplicates:,}"
    )


def feedback(settings: Settings) -> None:
    """Answer predictions until asked to stop."""
    stop = StopRequest()
    dataset = dataset_of(settings)
    topics = topics_of(settings)
    plan = feedback_plan(settings, dataset)

    def work(broker: Broker) -> None:
        watch = watch_topics(broker, topics, require_topics(broker, topics))
        clock = EstimatedClock(monotonic_ms)
        options = FeedbackOptions(
            group=f"{settings.topic_prefix}feedback",
            instance=f"feedback-{settings.instance}",
            with_label=settings.with_label,
        )
        program = FeedbackProgram(
            broker, topics, dataset.label_of, plan, options, clock.now_ms, clock.heard, announce=announce
        )
        announce(f"feedback on {topics.predictions}: delay {settings.delay}; Ctrl-C stops it")
        sent, said = 0, Status()
        show = every(STATUS_INTERVAL_MS, lambda: said.show([f"{sent:,} sent, {program.waiting:,} waiting"]))
        try:
            while not stop():
                watch()
                sent += program.step(_until(program.next_due_ms(), clock.now_ms()))
                show()
        finally:
            program.close()

    keep_running(settings, stop, work)


def _until(due_ms: int | None, now_ms: int) -> int:
    """How long a poll may wait so that what is due is not late."""
    return POLL_MS if due_ms is None else min(max(due_ms - now_ms, 1), POLL_MS)


def replay(settings: Settings, *, resume: bool) -> None:
    """Replay a data set to its end, or until asked to stop."""
    stop = StopRequest()
    dataset = dataset_of(settings)
    topics = topics_of(settings)
    reached = 0

    def work(broker: Broker) -> None:
        nonlocal reached
        partitions = require_topics(broker, topics)
        watch = watch_topics(broker, topics, partitions)
        options = replay_options(settings.model_copy(update={"partitions": partitions}), dataset, start=reached)
        if resume or reached:
            announce(f"looking for the last event in {topics.contexts}")
            options = replace(options, start=resume_position(broker, topics, dataset, options))
        announce(f"{dataset.name}: {options.events - options.start:,} events from position {options.start:,}")
        program = ReplayProgram(broker, topics, dataset, options, monotonic_ms)
        with run_progress("replay", options.events) as progress:
            try:
                while not program.finished and not stop():
                    watch()
                    sent = program.step(0)
                    reached = program.position
                    if progress.due():
                        progress.show(program.position, float("nan"), 0)
                    due_ms = program.next_due_ms()
                    if not sent and due_ms is not None:
                        time.sleep(max(due_ms - monotonic_ms(), 1) / 1_000)
            finally:
                program.close()
        announce(f"{program.position:,} of {options.events:,} events are in {topics.contexts}")

    keep_running(settings, stop, work)


def events_of_replay(settings: Settings) -> int:
    """How many events the replay program writes with these settings."""
    return events_of(settings, dataset_of(settings))


def verify(settings: Settings, *, wait_events: int | None, timeout_ms: int) -> list[Finding]:
    """Audit every partition; before that, if asked, wait until a number of events is settled."""
    broker = connect(settings)
    try:
        topics = topics_of(settings)
        partitions = require_topics(broker, topics)
        if wait_events is not None:
            _wait(broker, topics, partitions, wait_events, timeout_ms)
        return [audit_partition(broker, topics, partition, announce) for partition in range(partitions)]
    except JournalError as error:
        raise SettingsError(str(error)) from error
    finally:
        broker.close()


def _wait(broker: Broker, topics: Topics, partitions: int, events: int, timeout_ms: int) -> None:
    deadline_ms = monotonic_ms() + timeout_ms
    follower = JournalFollower(broker, topics, partitions)
    ledger = Ledger()
    show = every(STATUS_INTERVAL_MS, lambda: announce(f"waiting for {events:,} settled events: {_status(ledger)}"))
    while ledger.decided < events or ledger.pending:
        if monotonic_ms() > deadline_ms:
            raise fail(
                f"waited {timeout_ms // 1_000} s for {events:,} settled events; got {_status(ledger)}", EXIT_DIFFERS
            )
        ledger = follower.read(POLL_MS)
        show()
    follower.close()


def matched_error_of(settings: Settings) -> MatchedError:
    """The error that the examples tell; the audit names those that cannot be read."""
    broker = connect(settings)
    try:
        examples = topics_of(settings).examples
        partitions = require_topics(broker, topics_of(settings))
        return matched_error(_examples(broker, TopicPartition(examples, number)) for number in range(partitions))
    finally:
        broker.close()


def _examples(broker: Broker, tp: TopicPartition) -> Iterator[Example]:
    for record in read_partition(broker, tp, open_ms=OPEN_MS):
        with suppress(codec.MalformedError):
            yield codec.decode_example(record)[0]


def print_findings(findings: list[Finding], error: MatchedError) -> None:
    """Show the learner's ledger beside the audited one, for each partition, and all that is wrong.

    The last line is for those who read no other: whether the ledger adds up, and how often the learner was wrong.
    """
    for finding in findings:
        if finding.gone:
            out.print(f"partition {finding.partition}: the ledger cannot be recomputed")
            for place in finding.gone:
                out.print(f"  [yellow]✗[/] {escape(place)}", highlight=False, soft_wrap=True)
            continue
        table = Table(title=f"partition {finding.partition}", title_justify="left")
        for column in ("", "learner", "from the topics", ""):
            table.add_column(column, justify="right" if column else "left")
        for name, counted, audited in zip(Ledger._fields, finding.learner, finding.audited, strict=True):
            verdict = "" if counted == audited else "[bold red]differs"
            table.add_row(name.replace("_", " "), f"{counted:,}", f"{audited:,}", verdict)
        out.print(table)
        for fault in (*finding.faults, *finding.audited.imbalances()):
            out.print(f"  [red]✗[/] {escape(fault)}", highlight=False)
        if finding.contexts_behind or finding.feedback_behind:
            out.print(f"  not applied yet: {finding.contexts_behind:,} contexts, {finding.feedback_behind:,} feedback")
    gone = [finding for finding in findings if finding.gone]
    wrong = [finding for finding in findings if not finding.ok and not finding.gone]
    if gone:
        out.print(f"[bold yellow]✗ the ledger cannot be recomputed[/] in {len(gone)} of {len(findings)} partitions")
    if wrong:
        out.print(
            f"[bold red]✗ the ledger does not add up[/] in {len(wrong)} of {len(findings)} partitions; {_error(error)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    elif not gone:
        out.print(
            f"[bold green]✓ the ledger adds up[/] in all {len(findings)} partitions; {_error(error)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def _error(error: MatchedError) -> str:
    if not error.matched:
        return "no feedback has been matched, so that the error is not known"
    return (
        f"error {percent(error.error_rate)}, last fifth {percent(error.error_rate_last_fifth)} (reward 0 among the "
        f"{error.matched:,} decisions with feedback in time)"
    )
