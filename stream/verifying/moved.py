"""Checks that the balance of a pipeline equals the balance that a move has recorded.

Both pipelines of a move record the same balance in their control topics. If the last steps of the old tasks and the
openings of the new tasks both have this balance, the move has neither lost nor added an unsettled entry.
"""

from typing import NamedTuple

from stream.kafka.port import Broker
from stream.recovery.control import read_requests
from stream.recovery.moving import balance_of
from stream.recovery.steps import JournalStep, last_steps, read_journal
from stream.wire.control import Moved
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


class MoveFinding(NamedTuple):
    """A move from or to another pipeline."""

    other: Moved
    is_origin: bool  # whether the other pipeline is the old one
    fault: str = ""  # the difference of the balances; empty if there is none

    @property
    def ok(self) -> bool:
        """Whether the balances are equal."""
        return not self.fault


def audit_moves(broker: Broker, topics: Topics, partitions: int) -> list[MoveFinding]:
    """Compare a pipeline's balances with those in the records of its moves.

    The opening balance is not compared if retention has deleted an opening step.

    Raises:
        JournalError: a journal cannot be read.
    """
    requests = read_requests(broker, topics)
    journals = [TopicPartition(topics.journal, partition) for partition in range(partitions)]
    findings: list[MoveFinding] = []
    origin = requests.moved_from
    if origin is not None and origin.request is not None and origin.request.moved_from is not None:
        firsts = [next((step for _, step in read_journal(broker, journal)), None) for journal in journals]
        opens = [step for step in firsts if step is not None and step.opens]
        whole = opens if len(opens) == partitions else None
        findings.append(_compared(origin.request.moved_from, whole, is_origin=True))
    if (target := requests.moved_to) is not None:
        findings.append(_compared(target, [*last_steps(broker, journals).values()], is_origin=False))
    return findings


def _compared(other: Moved, steps: list[JournalStep] | None, *, is_origin: bool) -> MoveFinding:
    if steps is None or (found := balance_of(step.ledger for step in steps)) == other.balance:
        return MoveFinding(other, is_origin)
    whose = "the openings have" if is_origin else "the last steps have"
    return MoveFinding(other, is_origin, f"expected {other.balance}, as in the record of the move; {whose} {found}")
