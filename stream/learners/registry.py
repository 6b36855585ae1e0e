"""Learners by their names: how they are registered, checked and made."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from stream.learners.base import Learner, ParameterError
from stream.near_names import close_matches
from stream.plugins import Plugins

STATE_BYTES_MAX = 8 * 2**30
"""A state larger than this is refused before it is allocated: it would not fit a common machine, or a snapshot."""

LearnerType = TypeVar("LearnerType", bound=type[Learner])

_REGISTRY: dict[str, type[Learner]] = {}


def register(cls: LearnerType) -> LearnerType:
    """Make a learner available by its name."""
    if cls.name in _REGISTRY:
        raise ValueError(f"two learners are called {cls.name}")
    _REGISTRY[cls.name] = cls
    return cls


def registered() -> Plugins[type[Learner]]:
    """All learners by name, in the order of their names; those of the entry points `onebit.learners` too."""
    return _ALL


def _check_plugin(name: str, plugin: object) -> type[Learner]:
    """A plug-in's class, if it is a learner of this name."""
    if not isinstance(plugin, type) or not issubclass(plugin, Learner):
        raise TypeError(f"expected a class derived from onebit.Learner; got {plugin!r}")
    if missing := [
        field for field in ("name", "summary", "paper") if not isinstance(getattr(plugin, field, None), str)
    ]:
        raise TypeError(f"{plugin.__name__} has no {', '.join(missing)}")
    if plugin.name != name:
        raise ValueError(f"{plugin.__name__}.name is {plugin.name!r}; expected {name!r}, as the entry point is called")
    if inspect.isabstract(plugin):
        raise TypeError(f"{plugin.__name__} lacks {', '.join(sorted(plugin.__abstractmethods__))}")
    return plugin


_ALL = Plugins("onebit.learners", _REGISTRY, _check_plugin)


def check_parameters(
    name: str, parameters: Mapping[str, object], *, correctable: bool = False, any_right: bool = False
) -> dict[str, float | int | str]:
    """All parameters of a learner, the given ones checked and the others at their defaults.

    Args:
        name: the learner.
        parameters: those that are given.
        correctable: whether an update must be one that can be taken back: some defaults are others then.
        any_right: whether several classes may be right at once: some parameters must have one value then.
    """
    if name not in _ALL:
        hint = close_matches(name, registered())
        raise ParameterError(f"no learner is called {name!r}{hint or ';'} there are: {', '.join(registered())}")
    declared = {parameter.name: parameter for parameter in _ALL[name].parameters}
    unknown = [given for given in parameters if given not in declared]
    if unknown:
        accepted = "; ".join(f"{p.name}: {p.accepted()}" for p in declared.values()) or "none"
        raise ParameterError(f"{name} has no parameter {unknown[0]!r}; accepted parameters: {accepted}")
    checked = {}
    for parameter in declared.values():
        default = parameter.default_where(correctable=correctable, any_right=any_right)
        value = checked[parameter.name] = parameter.check(name, parameters.get(parameter.name, default))
        if any_right and parameter.any_right is not None and value != parameter.any_right:
            raise ParameterError(
                f"{name}: parameter {parameter.name} is {parameter.any_right:g} where several classes may be right, "
                f"since a right answer then says nothing of the others; got {value:g}"
            )
    return checked


def create(name: str, n_classes: int, n_features: int, **parameters: Any) -> Learner:
    """Make a learner by name.

    Raises:
        ParameterError: an unknown name or parameter, a value out of range, or a state too large to be allocated; the
            message lists what is accepted.
    """
    checked = check_parameters(name, parameters)
    for size, value, least in (("n_classes", n_classes, 2), ("n_features", n_features, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ParameterError(f"{name}: {size} is a whole number of at least {least}; got {value!r}")
    cls = _ALL[name]
    state_bytes = cls.cost(n_classes, n_features, 0, checked).state_bytes
    if state_bytes > STATE_BYTES_MAX:
        hint = f"; use {cls.instead}" if cls.instead else ""
        raise ParameterError(
            f"{name}: its state for {n_classes} classes and {n_features} features takes {state_bytes / 1e9:,.0f} GB, "
            f"more than the {STATE_BYTES_MAX / 1e9:,.0f} GB allowed{hint}"
        )
    return cls(n_classes, n_features, **checked)
