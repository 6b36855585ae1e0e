"""Plug-ins: learners and data sets of installed packages, found by their entry points.

A plug-in is imported when it is asked for by name, or listed; a broken one is an error only of who asks for it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from stream.errors import OnebitError

T = TypeVar("T")


class PluginError(OnebitError):
    """A plug-in that cannot be used; the message names its distribution and entry point."""

    hint = "ask the author of the package, or uninstall it"


class Plugins(Mapping[str, T], Generic[T]):
    """Onebit's own objects and those of the entry points of one group, by name.

    Iteration is in the order of names, without the plug-ins that cannot be used: `problems` lists these, and getting
    one raises PluginError. A plug-in cannot replace one of Onebit's own.

    Args:
        group: of the entry points.
        own: Onebit's own.
        check: raises ValueError or TypeError if an object does not fit its name.
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
                raise PluginError(f"{others}: two plug-ins have the name {name!r}; uninstall one of them")
            self._loaded[name] = self._load(found[0])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or (isinstance(name, str) and bool(self._entries(name)))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._own, *self._usable()[0]]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def problems(self) -> list[str]:
        """Why each plug-in that cannot be used cannot be."""
        return self._usable()[1]

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """Turn an exception of a plug-in's own code into PluginError; those of Onebit's own objects are left alone."""
        try:
            yield
        except OnebitError:
            raise
        except Exception as error:
            if name in self._own:
                raise
            raise _error(self._entries(name)[0], error) from error

    def _usable(self) -> tuple[list[str], list[str]]:
        usable, problems = [], []
        for entry in self._entries():
            if entry.name in self._own:
                problems.append(f"{_place(entry)}: Onebit itself has the name {entry.name!r}")
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
            raise _error(entry, error) from error


def _error(entry: EntryPoint, error: Exception) -> PluginError:
    return PluginError(f"{_place(entry)}: {type(error).__name__}: {error}")


def _place(entry: EntryPoint) -> str:
    distribution = "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"distribution {distribution}, entry point {entry.group} {entry.name} = {entry.value}"
