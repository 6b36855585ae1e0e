"""The decisions of a task on a shared model, read back from its predictions."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from stream.brokers.port import Broker
from stream.brokers.reading import read_partition
from stream.recovery.commit import predictions_digest
from stream.recovery.journal import JournalStep, LogStep, UnrecoverableError
from stream.wire.codec import MalformedError, decode_prediction, step_of
from stream.wire.events import Decision
from stream.wire.records import Foreign, Record, TopicPartition
from stream.wire.topics import Topics

COMPARED_MAX = 10_000_000
"""Predictions that are compared, at most, to tell those of steps from others: 5 to 20 s of work."""

BETWEEN_MAX = 8
"""So many records of other programs may stand between the first and the last prediction of a step."""


class Search:
    """Looks for the predictions of steps among what other programs have written under the steps' numbers.

    Where nobody has, there is nothing to look for. Else what is done is bounded: who may write there could write any
    number of records.
    """

    def __init__(self) -> None:
        """Compare nothing yet."""
        self._left = COMPARED_MAX
        self.is_given_up = False  # whether there was more to compare

    def ending(self, found: Sequence[Record], count: int, sha256: str) -> Sequence[Record] | None:
        """The predictions of a step, if the last of them is the last record; None: it is not, or that is not known.

        Args:
            found: the records under the step's number, one more than at the call before.
            count: how many predictions the step made, by its journal.
            sha256: their digest, likewise.
        """
        for candidate in _that_end(found, count):
            if len(found) > count:
                self.is_given_up = self.is_given_up or self._left < count
                if self.is_given_up:
                    return None
                self._left -= count
            if predictions_digest(record.value or b"" for record in candidate) == sha256:
                return candidate
        return None


def _that_end(found: Sequence[Record], count: int) -> Iterator[Sequence[Record]]:
    """What the predictions of a step may be that end with the last record: all in a row, or a beginning and an end."""
    others = len(found) - count
    if others < 0:
        return
    yield found[others:]
    if 0 < others <= BETWEEN_MAX:
        yield from ([*found[:first], *found[first + others :]] for first in range(1, count))


def without(ours: Sequence[Record], found: Sequence[Record]) -> list[Record]:
    """The records that are not the step's own."""
    offsets = {record.offset for record in ours}
    return [record for record in found if record.offset not in offsets]


class Published:
    """The predictions of a task from some offset on, by the step that published them.

    What a journal says of a step, how many and their digest, tells them from what other programs have written there
    under the step's number; of those some may stand before, behind, or in a row between them.
    """

    def __init__(self, broker: Broker, topics: Topics, partition: int, start: int) -> None:
        """Read all of them."""
        self._place = f"{topics.predictions}/{partition}"
        self._journal = f"{topics.journal}/{partition}"
        self._by_step: dict[int, list[Record]] = defaultdict(list)
        self.foreign = Foreign()  # what other programs have written under the numbers of the steps asked for
        self._search = Search()
        tp = TopicPartition(topics.predictions, partition)
        for record in read_partition(broker, tp, start=max(start, broker.beginnings([tp])[tp])):
            number = step_of(record)
            if number is not None:
                self._by_step[number].append(record)

    def decisions(self, step: JournalStep) -> list[tuple[str, Decision]]:
        """The decisions of a step in their order, with their event ids; each step is asked for once, in order.

        Raises:
            UnrecoverableError: they are not there any more.
        """
        found = self._by_step.pop(step.number, [])
        expected = step.log
        if expected is None:
            raise UnrecoverableError(
                f"step {step.number} of {self._journal}: expected what it says of the log of a shared model; got "
                "nothing: another program has written it"
            )
        ours = self._ours(found, expected)
        if ours is None:
            why = "none are these: the topic was cut or made anew; set its retention.ms to -1"
            if self._search.is_given_up:
                why = "these were not found within a bounded search: see who else writes there"
            raise UnrecoverableError(
                f"step {step.number} of {self._journal}: expected its {expected.predictions} predictions in "
                f"{self._place}, with the digest {expected.sha256[:16]}; got {len(found)} records under its number, of "
                f"which {why}"
            )
        for record in without(ours, found):
            self.foreign = self.foreign.and_also(record)
        try:
            made = [decode_prediction(record)[0] for record in ours]
        except MalformedError as error:
            raise UnrecoverableError(
                f"step {step.number} of {self._journal}: a prediction of it in {self._place} cannot be read back: "
                f"{error}"
            ) from error
        return [(prediction.id, prediction.decision) for prediction in made]

    def _ours(self, found: Sequence[Record], expected: LogStep) -> Sequence[Record] | None:
        ends = range(expected.predictions, len(found) + 1)
        searched = (self._search.ending(found[:end], expected.predictions, expected.sha256) for end in ends)
        return next((ours for ours in searched if ours is not None), None)
