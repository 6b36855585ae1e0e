"""Compiled loops over many events, specialised for a learner's kernels."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, ParamSpec, TypeVar

from stream.learners.base import KernelLearner, Kernels
from stream.learners.kernels import compiled

P = ParamSpec("P")
R = TypeVar("R")

_loops: dict[tuple[CodeType, Kernels], Callable[..., object]] = {}


def compile_loop(learner: KernelLearner, template: Callable[P, R], others: Mapping[str, Any]) -> Callable[P, R]:
    """Compile a loop with this learner's kernels.

    The kernels become globals of a copy of the loop. Numba caches such a function on disk, but not one that receives
    compiled functions as arguments or from a closure. The copy's name contains a digest of the learner's source, which
    invalidates the cached code when the source changes.

    Args:
        learner: The learner whose kernels are used.
        template: A module-level function that calls `predict`, `observe` and `update` as globals.
        others: The loop's other globals, by name.
    """
    assert isinstance(template, FunctionType)
    kernels = learner.kernels
    key = template.__code__, kernels
    if key not in _loops:
        sources = [inspect.getsource(inspect.getmodule(kernel) or type(learner)) for kernel in kernels]
        names = "_".join(getattr(kernel, "__name__", "kernel") for kernel in kernels)
        digest = hashlib.blake2b("".join(sources).encode(), digest_size=8).hexdigest()
        namespace = {**kernels._asdict(), **others, "__name__": template.__module__}
        copy = FunctionType(template.__code__, namespace, f"{template.__name__.strip('_')}_{names}_{digest}")
        copy.__qualname__, copy.__module__ = copy.__name__, template.__module__
        _loops[key] = compiled(copy)
    return _loops[key]  # type: ignore[return-value]  # of the template's type
