"""Which predictions a task on a shared model made: its journal tells how many each step did, and their digest.

Others under the numbers of its steps are of other programs. With a model of its own a task's journal does not tell.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

from stream.recovery.journal import JournalStep
from stream.recovery.published import Search, without
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
        is_missing: Callable[[int, bool], None],
    ) -> Iterator[tuple[Record, int]]:
        """Pass on the records that steps made, each with its step, when those of a step are all read.

        Args:
            published: records with the numbers of steps of the journal, in the order of their offsets.
            is_foreign: is told of records that no step made.
            is_missing: is told of steps whose predictions are not there, or, True, among too many others to be found;
                what is there in their place is passed on.
        """
        counts, waiting, search = array("q", self._counts), dict[int, list[Record]](), Search()
        for record, number in published:
            if number >= len(counts) or counts[number] == _UNTOLD:
                yield record, number
                continue
            if counts[number] == _FOUND:
                is_foreign(record)
                continue
            found = waiting.setdefault(number, [])
            found.append(record)
            digest = self._digests[_DIGEST_BYTES * number : _DIGEST_BYTES * (number + 1)].hex()
            ours = search.ending(found, counts[number], digest)
            if ours is not None:
                counts[number] = _FOUND
                del waiting[number]
                yield from ((each, number) for each in ours)
                for other in without(ours, found):
                    is_foreign(other)
        for number, found in waiting.items():
            is_missing(number, search.is_given_up and len(found) > counts[number])
            yield from ((each, number) for each in found)
