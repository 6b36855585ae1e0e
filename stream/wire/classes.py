"""A pipeline's classes, and a context's eligible classes.

Classes are indexed from 0. They have names if the pipeline replays a data set with class names, or if it is *open*. An
open pipeline accepts up to K classes and assigns the next index to each new name, in the order of the contexts or, if
the model is shared, in the order of the model's log.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np

from stream.parsing import shown
from stream.wire.records import IndexArray

NAME_BYTES_MAX = 256
"""Maximum size of a class name. Names are stored in snapshots."""

LOGGED_NAMES_MAX = 1_700
"""Maximum number of open classes if the model is shared. All of their names must fit in one record."""


class ClassesError(ValueError):
    """Raised when a context's eligible classes are invalid."""


class BaselineError(ClassesError):
    """Raised when the class that the service's own rule plays is unknown or not eligible."""


class NewClassesError(Exception):
    """Raised when a context names classes without an index, which must first be added to the shared model's log."""

    def __init__(self, names: Sequence[str]) -> None:
        """Store the names in the order in which the context lists them."""
        super().__init__(f"the model's log does not contain the classes {shown(names)}")
        self.names = names


class Classes:
    """A pipeline's classes, with their indices and names.

    >>> classes = Classes(3, is_open=True)
    >>> classes.eligible(["news", "help"]).tolist(), classes.eligible(["offers", "help"]).tolist(), classes.names
    ([0, 1], [1, 2], ['news', 'help', 'offers'])
    """

    def __init__(
        self,
        n_classes: int,
        names: Sequence[str] | None = None,
        *,
        is_open: bool = False,
        from_log: bool = False,
        unsupported: str | None = None,
        retired: Iterable[str | int] = (),
    ) -> None:
        """Create the classes.

        Args:
            n_classes: number of classes K.
            names: class names; None if the classes have no names, or if their names are not known yet.
            is_open: whether new names are added.
            from_log: whether new names come from a shared model's log. Otherwise, `eligible` adds them.
            unsupported: name of a learner that cannot decide among a subset of the classes, or None.
            retired: classes that are never eligible: names, or indices if the classes have no names.
        """
        self.n_classes = n_classes
        self.names = list(names or ()) if is_open or names is not None else None
        self.is_open = is_open
        self._from_log = from_log
        self._unsupported = unsupported
        self._retired = frozenset(retired)
        self._index = {name: k for k, name in enumerate(self.names or ())}

    def name_of(self, index: int) -> str | None:
        """Return a class's name, or None if the classes have no names."""
        return None if self.names is None else self.names[index]

    def add(self, names: Iterable[str]) -> None:
        """Add new names in the order in which they are stored in a snapshot, a journal or the model's log."""
        assert self.names is not None
        for name in names:
            self._index[name] = len(self.names)
            self.names.append(name)

    def index_of(self, given: str | int) -> int:
        """Return the index of a known class.

        Raises:
            ClassesError: the class is unknown.
        """
        return self._index_of(given, {})

    def eligible(
        self, given: Sequence[str | int] | None, action: int | None = None, baseline: str | int | None = None
    ) -> IndexArray | None:
        """Return the indices of a context's eligible classes, without retired classes.

        If the pipeline is open, new names are added.

        Args:
            given: names, or indices if the classes have no names; None means all classes.
            action: a class that must be eligible, or None.
            baseline: another class that must be eligible, or None.

        Returns:
            int32[m] in increasing order, or None if all K classes are eligible.

        Raises:
            ClassesError: the list is empty, lacks the action, or contains only retired classes, or a class is unknown,
                repeated, or beyond the limit.
            BaselineError: the list lacks the baseline, or the baseline is unknown.
            NewClassesError: the list is valid, but the log does not contain all of its names yet.
        """
        if given is None and not self.is_open and not self._retired:
            if baseline is not None:
                self._check_baseline(baseline, range(self.n_classes), {}, ())
            return None
        if self._unsupported is not None:
            raise ClassesError(
                f"{self._unsupported} cannot decide among a subset of the classes; use a different learner"
            )
        if given is None:
            given = range(self.n_classes) if self.names is None else self.names
        if not given:
            raise ClassesError("expected at least one entry; got none")
        kept = [one for one in given if one not in self._retired] if self._retired else given
        if not kept:
            raise ClassesError(
                f"expected a class that is not retired; got {shown(list(given))}. List other classes, or restore a "
                "class with `onebit change`"
            )
        new: dict[str, int] = {}
        indices = sorted(self._index_of(one, new) for one in kept)
        if len(set(indices)) < len(indices):
            raise ClassesError(f"expected each entry once; got {shown(list(given))}")
        if action is not None and action not in indices:
            raise ClassesError(f"expected the logged action {action} among the entries; got {shown(list(kept))}")
        if baseline is not None:
            self._check_baseline(baseline, indices, new, given)
        if new and self._from_log:
            raise NewClassesError(list(new))
        if new:
            self.add(new)
        return np.array(indices, np.int32)

    def _check_baseline(
        self, baseline: str | int, indices: Container[int], new: Mapping[str, int], given: Container[str | int]
    ) -> None:
        """Check that the baseline is eligible, or that it is a known class in the list that was retired."""
        if baseline in self._retired and baseline in given and (self.names is None or baseline in self._index):
            return
        try:
            is_eligible = self._index_of(baseline, dict(new)) in indices
        except ClassesError as error:
            raise BaselineError(str(error)) from error
        if not is_eligible:
            raise BaselineError(f"expected an entry of the eligible list; got {shown(baseline)}")

    def _index_of(self, given: str | int, new: dict[str, int]) -> int:
        if self.names is None:
            if isinstance(given, int) and given < self.n_classes:
                return given
            raise ClassesError(f"expected indices from 0 to {self.n_classes - 1}; got {shown(given)}")
        index = self._index.get(given) if isinstance(given, str) else None
        if index is not None:
            return index
        if not self.is_open or not isinstance(given, str):
            raise ClassesError(f"expected names of the pipeline's classes, as strings; got {shown(given)}")
        if not 0 < len(given.encode()) <= NAME_BYTES_MAX or min(given) < " ":
            raise ClassesError(
                f"expected names of 1 to {NAME_BYTES_MAX} bytes without control characters; got {shown(given)}"
            )
        index = new.setdefault(given, len(self.names) + len(new))
        if index >= self.n_classes:
            raise ClassesError(
                f"the pipeline accepts at most {self.n_classes} classes; {shown(given)} would exceed this limit. "
                "Raise `classes_max` with `onebit change`"
            )
        return index
