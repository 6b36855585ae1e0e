"""Decisions of a task on a shared model, read back from its predictions step by step."""

from contextlib import suppress

from stream.journal.commit import predictions_digest
from stream.journal.format import JournalStep, UnrecoverableError
from stream.kafka.port import Broker
from stream.kafka.reading import offset_of_number, read_partition
from stream.wire.codec import MalformedError, decode_prediction, step_of
from stream.wire.events import Decision
from stream.wire.records import Foreign, Record, TopicPartition, place_of
from stream.wire.topics import Topics


class Published:
    """A task's predictions from a given step on, in the order of its steps.

    Records without a step number come from other programs and are skipped. If another program writes a record with a
    step number, the step's digest differs and recovery is refused.
    """

    def __init__(self, broker: Broker, topics: Topics, partition: int, first: int) -> None:
        """Start with the predictions of the step `first`."""
        self._broker, self._journal = broker, f"{topics.journal}/{partition}"
        self._tp = tp = TopicPartition(topics.predictions, partition)
        self._start: int | None = offset_of_number(broker, tp, first, lambda record: step_of(record) or None)
        self._read_from_start()

    def _read_from_start(self) -> None:
        self._records = read_partition(self._broker, self._tp, start=self._start)
        self._next = next(self._records, None)
        self.foreign = Foreign()

    def decisions(self, step: JournalStep) -> list[tuple[str, Decision]]:
        """The decisions of the next step, with their event ids.

        Raises:
            UnrecoverableError: the decisions are missing, or differ from their digest in the journal.
        """
        expected, digest = (0, "") if step.log is None else (step.log.predictions, step.log.sha256)
        found: list[Record] = []
        while self._next is not None and len(found) < expected:
            number = step_of(self._next)
            if number is None:
                self.foreign = self.foreign.and_also(self._next)
            elif number > step.number:
                break
            elif number == step.number:
                found.append(self._next)
            self._next = next(self._records, None)
        if predictions_digest(record.value or b"" for record in found) == digest:
            with suppress(MalformedError):
                return [(prediction.id, prediction.decision) for prediction, _ in map(decode_prediction, found)]
        if self._start is not None:  # the search can fail if a mirror has appended a record twice
            self._start = None
            self.close()
            self._read_from_start()
            return self.decisions(step)
        where = f"; the first is at {place_of(found[0])}" if found else ""
        raise UnrecoverableError(
            f"{self._tp.topic}/{self._tp.partition}: expected the {expected} predictions of step {step.number}, as "
            f"{self._journal} has their digest; got {len(found)}{where}. They were deleted, or another program wrote "
            "records with this step's number"
        )

    def close(self) -> None:
        """Release the connection."""
        self._records.close()
