"""The decisions of a task on a shared model, read back from its predictions."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from stream.brokers.port import Broker
from stream.brokers.reading import read_partition
from stream.recovery.commit import predictions_digest
from stream.recovery.journal import JournalStep, UnrecoverableError
from stream.wire.codec import MalformedError, decode_prediction, step_of
from stream.wire.events import Decision
from stream.wire.records import Foreign, Record, TopicPartition
from stream.wire.topics import Topics


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
        told_apart = predictions_of(found, expected.predictions, expected.sha256)
        if told_apart is None:
            raise UnrecoverableError(
                f"step {step.number} of {self._journal}: expected its {expected.predictions} predictions in "
                f"{self._place}, with the digest {expected.sha256[:16]}; got {len(found)} records under its number, of "
                "which none are these: the topic was cut or made anew; set its retention.ms to -1"
            )
        ours, others = told_apart
        for record in others:
            self.foreign = self.foreign.and_also(record)
        try:
            made = [decode_prediction(record)[0] for record in ours]
        except MalformedError as error:
            raise UnrecoverableError(
                f"step {step.number} of {self._journal}: a prediction of it in {self._place} cannot be read back: "
                f"{error}"
            ) from error
        return [(prediction.id, prediction.decision) for prediction in made]


def predictions_of(found: Sequence[Record], count: int, sha256: str) -> tuple[Sequence[Record], list[Record]] | None:
    """The predictions of a step among the records under its number, and the others.

    None: they are not there, or others stand in more than one place between them.

    Args:
        found: all records under the step's number.
        count: how many predictions the step made, by its journal.
        sha256: their digest, likewise.
    """
    for candidates in _candidates(found, count):
        if predictions_digest(record.value or b"" for record in candidates) == sha256:
            ours = {record.offset for record in candidates}
            return candidates, [record for record in found if record.offset not in ours]
    return None


def _candidates(found: Sequence[Record], count: int) -> list[Sequence[Record]]:
    """What the predictions of a step may be: all in a row, or a beginning and an end."""
    extra = len(found) - count
    if extra < 0:
        return []
    rows = (found[first : first + count] for first in range(extra + 1))
    if extra == 0:
        return list(rows)
    split = ([*found[:first], *found[first + extra :]] for first in range(1, count))
    return list(chain(rows, split))
