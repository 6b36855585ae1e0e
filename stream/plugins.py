"""Plug-ins: learners and data sets that installed packages register as entry points.

A plug-in is imported when it is accessed by name, or when plug-ins are listed. A broken plug-in raises an error only
when it is accessed by name.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from stream.errors import OnebitError

T = TypeVar("T")


class PluginError(OnebitError):
    """A plug-in is unusable. The message names the distribution and the entry point."""

    hint = "report it to the package's author, or uninstall the package"


class Plugins(Mapping[str, T], Generic[T]):
    """A mapping from names to objects. The objects are built in, or registered by plug-ins in an entry point group.

    Iteration is ordered by name and skips unusable plug-ins. `problems` lists the unusable plug-ins. Access to an
    unusable plug-in raises PluginError. A plug-in cannot replace a built-in object.

    Args:
        group: Entry point group.
        own: Built-in objects.
        check: Returns the object, or raises ValueError or TypeError if the object is invalid or has a different name.
    """

    def __init__(self, group: str, own: Mapping[str, T], check: Callable[[str, object], T]) -> None:
        self._group = group
        self._own = own
        self._check = check
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            found = self._entries(name)
            if not found:
                raise KeyError(name)
            if len(found) > 1:
                others = " and ".join(sorted(map(_place, found)))
                raise PluginError(f"{others}: duplicate plug-in name {name!r}; uninstall one of the packages")
            self._loaded[name] = self._load(found[0])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or (isinstance(name, str) and bool(self._entries(name)))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._own, *self._usable()[0]]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def problems(self) -> list[str]:
        """Return an error message for each unusable plug-in."""
        return self._usable()[1]

    @contextmanager
    def blamed(self, *names: str) -> Iterator[None]:
        """Convert an exception to a PluginError if at least one of the named objects is from a plug-in."""
        try:
            yield
        except OnebitError:
            raise
        except Exception as error:
            plugins = [self._entries(name)[0] for name in dict.fromkeys(names) if name not in self._own]
            if not plugins:
                raise
            raise _error(" or ".join(map(_place, plugins)), error) from error

    def _usable(self) -> tuple[list[str], list[str]]:
        usable, problems = [], []
        for entry in self._entries():
            if entry.name in self._own:
                problems.append(f"{_place(entry)}: {entry.name!r} is already the name of a built-in object")
                continue
            try:
                self[entry.name]
            except PluginError as error:
                problems.append(str(error))
            else:
                usable.append(entry.name)
        return list(dict.fromkeys(usable)), list(dict.fromkeys(problems))

    def _entries(self, name: str | None = None) -> list[EntryPoint]:
        found = entry_points(group=self._group) if name is None else entry_points(group=self._group, name=name)
        return list(found)

    def _load(self, entry: EntryPoint) -> T:
        try:
            return self._check(entry.name, entry.load())
        except Exception as error:
            raise _error(_place(entry), error) from error


def _error(place: str, error: Exception) -> PluginError:
    return PluginError(f"{place}: {type(error).__name__}: {error}")


def _place(entry: EntryPoint) -> str:
    distribution = "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"distribution {distribution}, entry point {entry.group} {entry.name} = {entry.value}"
