"""The decisions of a task on a shared model, read back from its predictions, step by step."""

from collections import deque
from collections.abc import Sequence

from stream.journal.commit import predictions_digest
from stream.journal.format import JournalStep, UnrecoverableError
from stream.kafka.port import Broker
from stream.kafka.reading import offset_of_number, read_towards
from stream.wire.codec import MalformedError, decode_prediction, step_of
from stream.wire.events import Decision
from stream.wire.records import Foreign, Record, TopicPartition, place_of
from stream.wire.topics import Topics


class Published:
    """The predictions of a task from a step on, in the order of its steps.

    Records without a step's number are not the task's, and are skipped. A record that another program wrote with a
    step's number makes the step's digest differ: then recovery refuses.
    """

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: int) -> None:
        """Begin with the predictions of the step `first`."""
        self._tp = tp = TopicPartition(topics.predictions, partition)
        self._journal = f"{topics.journal}/{partition}"
        self._end = broker.ends([tp])[tp].stable
        self._reader = broker.reader([tp])
        self._reader.seek(tp, offset_of_number(broker, tp, first, step_of))
        self._ahead: deque[Record] = deque()
        self.foreign = Foreign()

    def decisions(self, step: JournalStep) -> list[tuple[str, Decision]]:
        """The decisions of the next step, with their event ids.

        Raises:
            UnrecoverableError: they are not there, or are not those that the journal names.
        """
        if step.log is None:
            raise UnrecoverableError(f"{self._journal}: step {step.number} has no place in a model's log")
        found: list[Record] = []
        while len(found) < step.log.predictions and (record := self._next()) is not None:
            number = step_of(record)
            if number is None:
                self.foreign = self.foreign.and_also(record)
            elif number < step.number:
                continue
            elif number == step.number:
                found.append(record)
            else:
                self._ahead.appendleft(record)
                break
        if predictions_digest(record.value or b"" for record in found) != step.log.sha256:
            raise self._wrong(step, found)
        try:
            return [(prediction.id, prediction.decision) for prediction, _ in map(decode_prediction, found)]
        except MalformedError as error:
            raise self._wrong(step, found) from error

    def close(self) -> None:
        """Release the connection."""
        self._reader.close()

    def _next(self) -> Record | None:
        if not self._ahead and self._reader.position(self._tp) < self._end:
            self._ahead.extend(read_towards(self._reader, self._tp, self._end))
        return self._ahead.popleft() if self._ahead else None

    def _wrong(self, step: JournalStep, found: Sequence[Record]) -> UnrecoverableError:
        expected = 0 if step.log is None else step.log.predictions
        where = f"; the first is at {place_of(found[0])}" if found else ""
        return UnrecoverableError(
            f"{self._tp.topic}/{self._tp.partition}: expected the {expected} predictions of step {step.number}, as "
            f"{self._journal} has their digest; got {len(found)}{where}: they were deleted, or another program writes "
            "under the step's number"
        )
