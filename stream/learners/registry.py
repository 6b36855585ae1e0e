"""The registry of learners: registration, checks and defaults of parameters, and creation by name."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from stream.learners.base import Learner, ParameterError
from stream.parsing import close_matches
from stream.plugins import Plugins

STATE_BYTES_MAX = 8 * 2**30
"""Maximum size of a state that `create` allocates. A larger state exceeds the memory of a typical machine and the size
limit of snapshots."""

DENSE_SHARE = 8
"""Data are dense if more than one in eight entries is non-zero."""

LearnerType = TypeVar("LearnerType", bound=type[Learner])

_REGISTRY: dict[str, type[Learner]] = {}


def register(cls: LearnerType) -> LearnerType:
    """Register a learner class under its name."""
    if cls.name in _REGISTRY:
        raise ValueError(f"duplicate learner name {cls.name}")
    _REGISTRY[cls.name] = cls
    return cls


def registered() -> Plugins[type[Learner]]:
    """Return all learners, sorted by name, including those from the `onebit.learners` entry points."""
    return _ALL


def _check_plugin(name: str, plugin: object) -> type[Learner]:
    """Return a plug-in's class. Raise an error if the class is not a learner with this name."""
    if not isinstance(plugin, type) or not issubclass(plugin, Learner):
        raise TypeError(f"expected a class derived from onebit.Learner; got {plugin!r}")
    if missing := [
        field for field in ("name", "summary", "paper") if not isinstance(getattr(plugin, field, None), str)
    ]:
        raise TypeError(f"{plugin.__name__} has no {', '.join(missing)}")
    if plugin.name != name:
        raise ValueError(f"{plugin.__name__}.name is {plugin.name!r}; expected {name!r}, the name of the entry point")
    if inspect.isabstract(plugin):
        raise TypeError(f"{plugin.__name__} lacks {', '.join(sorted(plugin.__abstractmethods__))}")
    return plugin


_ALL = Plugins("onebit.learners", _REGISTRY, _check_plugin)


def check_parameters(
    name: str, parameters: Mapping[str, object], *, correctable: bool = False, any_right: bool = False
) -> dict[str, float | int | str]:
    """Check a learner's parameters. Return them together with the defaults of all parameters that are not given.

    Args:
        name: The learner.
        parameters: The parameters to check.
        correctable: Whether updates must be retractable, which changes some defaults.
        any_right: Whether several classes may be right. If so, some parameters have fixed values.
    """
    if name not in _ALL:
        hint = close_matches(name, registered())
        raise ParameterError(f"unknown learner {name!r}{hint or ';'} available: {', '.join(registered())}")
    declared = {parameter.name: parameter for parameter in _ALL[name].parameters}
    unknown = [given for given in parameters if given not in declared]
    if unknown:
        accepted = "; ".join(f"{p.name}: {p.accepted()}" for p in declared.values()) or "none"
        raise ParameterError(f"{name}: unknown parameter {unknown[0]!r}; accepted parameters: {accepted}")
    checked = {}
    for parameter in declared.values():
        default = parameter.default_where(correctable=correctable, any_right=any_right)
        value = checked[parameter.name] = parameter.check(name, parameters.get(parameter.name, default))
        if any_right and parameter.any_right is not None and value != parameter.any_right:
            raise ParameterError(
                f"{name}: parameter {parameter.name} must be {parameter.any_right:g} if several classes may be right, "
                f"because a right answer then says nothing about the other classes; got {value:g}"
            )
    return checked


def sparse_defaults(name: str, n_features: int, mean_nnz: float | None) -> dict[str, float | int | str]:
    """Return the defaults that replace a learner's usual ones if the data are known to be sparse.

    Args:
        name: The learner. The result is empty for an unknown learner.
        n_features: d.
        mean_nnz: Mean number of non-zeros in x, or None if unknown.

    >>> sparse_defaults("late-ucb", 400, 25.0), sparse_defaults("late-ucb", 64, 33.0)
    ({'expand': 'none'}, {})
    """
    if mean_nnz is None or is_dense(n_features, mean_nnz) or name not in _ALL:
        return {}
    return {declared.name: declared.sparse for declared in _ALL[name].parameters if declared.sparse is not None}


def is_dense(n_features: int, mean_nnz: float) -> bool:
    """Return whether data with this mean number of non-zeros in x are dense."""
    return mean_nnz * DENSE_SHARE > n_features


def create(name: str, n_classes: int, n_features: int, **parameters: Any) -> Learner:
    """Create a learner by name.

    Raises:
        ParameterError: a name or parameter is unknown, a value is out of range, or the state is too large.
        PluginError: a plug-in's learner cannot be created.
    """
    checked = check_parameters(name, parameters)
    for size, value, least in (("n_classes", n_classes, 2), ("n_features", n_features, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ParameterError(f"{name}: {size} must be a whole number of at least {least}; got {value!r}")
    cls = _ALL[name]
    state_bytes = cls.cost(n_classes, n_features, 0, checked).state_bytes
    if state_bytes > STATE_BYTES_MAX:
        hint = f"; use {cls.instead}" if cls.instead else ""
        raise ParameterError(
            f"{name}: the state for {n_classes} classes and {n_features} features needs {state_bytes / 1e9:,.0f} GB; "
            f"the limit is {STATE_BYTES_MAX / 1e9:,.0f} GB{hint}"
        )
    with _ALL.blamed(name):
        return cls(n_classes, n_features, **checked)
