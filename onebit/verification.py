"""`onebit.verify`: recompute a pipeline's ledger from its topics."""

from dataclasses import dataclass
from typing import Any

from consumers.verify import Verified
from consumers.verify import verify as use_case
from onebit.notebook_tables import html_table, text_table
from stream.parsing import parse_duration
from stream.settings.sources import given_settings
from stream.wire.ledger import Ledger, total_ledger

COLUMNS = ("partition", "decided", "matched", "expired", "pending", "ok")


@dataclass(frozen=True)
class VerifyReport:
    """The result of a verification."""

    found: Verified

    @property
    def ok(self) -> bool:
        """Whether the recomputed ledgers and all other compared values equal the learner's."""
        return self.found.ok

    @property
    def error(self) -> float:
        """The fraction of decisions with a reward of 0 among those that received feedback in time; nan if none did."""
        return self.found.error.error_rate

    @property
    def ledger(self) -> Ledger:
        """The sum of all partitions' recomputed ledgers."""
        return total_ledger(finding.audited for finding in self.found.findings)

    @property
    def faults(self) -> tuple[str, ...]:
        """The differences, each with the record in which it was found."""
        log = () if self.found.log is None else self.found.log.faults
        return tuple(fault for finding in self.found.findings for fault in finding.faults) + tuple(log)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of plain values, as in the JSON output of `onebit verify`."""
        return self.found.to_dict()

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict of findings per partition."""
        return [finding.as_json() for finding in self.found.findings]

    def _rows(self) -> list[list[object]]:
        names = COLUMNS[1:-1]
        return [
            [finding.partition, *(f"{getattr(finding.audited, name):,}" for name in names), finding.ok]
            for finding in self.found.findings
        ]

    def __repr__(self) -> str:
        return text_table(COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, self._rows())


def verify(
    *,
    bootstrap: str = "localhost:9092",
    topic_prefix: str = "onebit.",
    wait_events: int | None = None,
    timeout: str = "10m",
    replay: bool = False,
    **settings: Any,
) -> VerifyReport:
    """Recompute a pipeline's ledger from its topics and compare it with the learner's ledger.

    Args:
        bootstrap: Address of a Kafka broker, HOST:PORT.
        topic_prefix: The topics' prefix.
        wait_events: Number of events to wait for. Verification starts when all of them have decisions and no decision
            is pending.
        timeout: Maximum time to wait for these events.
        replay: Whether to replay the whole journal and compare the result with the state restored by a recovery.
        settings: Other settings from docs/settings.md, by name, such as `client_config="client.properties"`.

    Raises:
        OnebitError: no broker responds, topics are missing, or the events are not settled within the timeout.
    """
    given = given_settings({"bootstrap": bootstrap, "topic_prefix": topic_prefix, **settings})
    found = use_case(given, wait_events=wait_events, timeout_ms=parse_duration(timeout), replay=replay)
    return VerifyReport(found)
