"""Which predictions a task on a shared model made: its journal tells how many each step did, and their digest.

Others under the numbers of its steps are of other programs. With a model of its own a task's journal does not tell.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

from stream.journal.commit import predictions_digest
from stream.journal.format import JournalStep
from stream.wire.records import Record

_UNTOLD, _FOUND = -1, -2
_DIGEST_BYTES = 32


class StepPredictions:
    """What a journal tells of the predictions of its steps."""

    def __init__(self) -> None:
        """Nothing is told yet."""
        self._counts = array("q", [_FOUND])  # by step; steps count from 1, and nobody is step 0
        self._digests = bytearray(_DIGEST_BYTES)

    def add(self, step: JournalStep) -> None:
        """Take in the next step of the journal; what does not follow on the one before is as if it told nothing."""
        if step.number != len(self._counts):
            return
        self._counts.append(_UNTOLD if step.log is None else step.log.predictions)
        self._digests += bytes(_DIGEST_BYTES) if step.log is None else bytes.fromhex(step.log.sha256)

    def tell_apart(
        self,
        published: Iterable[tuple[Record, int]],
        is_foreign: Callable[[Record], None],
        is_missing: Callable[[int], None],
    ) -> Iterator[tuple[Record, int]]:
        """Pass on the records that steps made, each with its step.

        Args:
            published: records with the numbers of steps of the journal, in the order of their offsets.
            is_foreign: is told of records that no step made: they name a step that has all of its own already.
            is_missing: is told of steps whose predictions are not those that the journal names; what is there in
                their place is passed on.
        """
        counts, waiting = array("q", self._counts), dict[int, list[Record]]()
        for record, number in published:
            if number >= len(counts) or counts[number] == _UNTOLD:
                yield record, number
                continue
            if counts[number] in (_FOUND, 0):
                is_foreign(record)
                continue
            found = waiting.setdefault(number, [])
            found.append(record)
            if len(found) == counts[number]:
                counts[number] = _FOUND
                del waiting[number]
                digest = self._digests[_DIGEST_BYTES * number : _DIGEST_BYTES * (number + 1)].hex()
                if predictions_digest(each.value or b"" for each in found) != digest:
                    is_missing(number)
                yield from ((each, number) for each in found)
        for number, found in waiting.items():
            is_missing(number)
            yield from ((each, number) for each in found)
