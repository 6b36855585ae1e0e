"""Entry points: the compiled functions through which Python and compiled loops call kernels.

A kernel's arguments are structures: an event and a model (see `stream.learners.kernels`). Numba takes several
microseconds to convert a NamedTuple that Python passes, but only 0.1 µs for an array. An entry point's arguments are
therefore the event's fields, and the whole model as one array, its handle. The handle contains the model's numbers, and
the addresses and shapes of its arrays. An entry point builds the structures from these arguments and runs the kernel,
which is compiled as part of the entry point, for example:

    def predict_entry_1f2e(indices, values, u, scores, eligible, handle):
        return kernel(
            Event(Features(indices, values), u, scores, eligible),
            Model0(carray(pointer(int(handle[0])), (int(handle[1]), int(handle[2])), float64), handle[3]),
        )
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from itertools import count
from types import CodeType, FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.core.registry import CPUDispatcher
from numba.extending import intrinsic

from stream.learners.kernels import Decided, Event, Kernel, Kernels, compiled
from stream.wire.records import Features, FloatArray

P = ParamSpec("P")
R = TypeVar("R")


class Arguments(NamedTuple):
    """An entry point's arguments before the handle, and the kernel's arguments before the model."""

    of_entry: str
    of_kernel: str


_DECISION = "indices, values, action, greedy, propensity, scores"
_BIT = "reward, v, label"

PREDICT = Arguments("indices, values, u, scores, eligible", "Event(Features(indices, values), u, scores, eligible)")
OBSERVE = Arguments(
    _DECISION, "Decided(Features(indices, values), action, greedy, propensity, scores, -1, 0.0, -1)"
)  # without a bit
UPDATE = Arguments(
    f"{_DECISION}, {_BIT}", f"Decided(Features(indices, values), action, greedy, propensity, scores, {_BIT})"
)
RETRACT = Arguments(f"{UPDATE.of_entry}, assumed_reward", f"{UPDATE.of_kernel}, assumed_reward")

_entries: dict[tuple[Kernel, str], Kernel] = {}


def entry_points(kernels: Kernels, model: Any) -> Kernels:
    """Return the entry points of a learner's kernels."""
    arguments = PREDICT, UPDATE, OBSERVE, OBSERVE, RETRACT
    return Kernels(*(entry_point(kernel, its, model) for kernel, its in zip(kernels, arguments, strict=True)))


def entry_point(kernel: Kernel, arguments: Arguments, model: Any) -> Kernel:
    """Return a kernel's entry point. Its last argument is the model's handle.

    A kernel that is a plain Python function is not compiled, and receives this very model.
    """
    names: dict[str, Any] = {}
    built = _expression(model, count(), names) if isinstance(kernel, CPUDispatcher) else "model"
    source = f"def entry({arguments.of_entry}, handle):\n    return kernel({arguments.of_kernel}, {built})\n"
    key = kernel, f"{source}{names}"
    names |= {"kernel": kernel, "Event": Event, "Decided": Decided, "Features": Features}
    if not isinstance(kernel, CPUDispatcher):
        names["model"] = model
        exec(source, names)  # noqa: S102 (the source consists of names only)
        return cast(Kernel, names["entry"])
    names |= {"carray": carray, "pointer": pointer}
    if key not in _entries:
        function = kernel.py_func
        digest = hashlib.blake2b(key[1].encode(), digest_size=8).hexdigest()
        # Numba recompiles the entry point if the kernel's file changes, because the code refers to that file.
        exec(compile(source, function.__code__.co_filename, "exec"), names)  # noqa: S102
        entry = names["entry"]
        entry.__name__ = entry.__qualname__ = f"{function.__name__}_entry_{digest}"
        entry.__module__ = function.__module__
        _entries[key] = compiled(entry)
    return _entries[key]


def handle_of(model: Any) -> FloatArray:
    """Return a model's handle. The model's arrays must exist as long as the handle is used.

    An address has at most 52 bits, so float64 represents it exactly.
    """
    return np.array(list(_numbers(model)), dtype=np.float64)


def _numbers(part: Any) -> Iterator[float]:
    """Yield the handle's entries for a part of a model: a number, an array, or a NamedTuple of parts."""
    if isinstance(part, tuple):
        for field in part:
            yield from _numbers(field)
    elif isinstance(part, np.ndarray):
        assert part.flags.carray, "a model's arrays are contiguous, aligned and writable"
        yield from (part.ctypes.data, *part.shape)
    else:
        yield part


def _expression(part: Any, places: Iterator[int], names: dict[str, Any]) -> str:
    """Return the source of an expression that builds a part of a model from the handle, and add its names."""
    if isinstance(part, tuple):
        name = f"{type(part).__name__}{len(names)}"
        names[name] = type(part)
        return f"{name}({', '.join(_expression(field, places, names) for field in part)})"
    place = f"handle[{next(places)}]"
    if isinstance(part, np.ndarray):
        shape = "".join(f"int(handle[{next(places)}]), " for _ in part.shape)
        names[str(part.dtype)] = part.dtype.type
        return f"carray(pointer(int({place})), ({shape}), {part.dtype})"
    return f"{place} != 0.0" if isinstance(part, bool) else f"int({place})" if isinstance(part, int) else place


@intrinsic
def pointer(context: Any, address: Any) -> Any:
    """Convert an address to a pointer, in compiled code."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), code


_compiled: dict[tuple[CodeType, Kernels, tuple[Any, ...]], Callable[..., object]] = {}


def compile_with(
    kernels: Kernels, template: Callable[P, R], decorator: Callable[..., Any] = compiled, **others: Any
) -> Callable[P, R]:
    """Compile a function that calls a learner's kernels, or their entry points.

    The function is copied, and the kernels become globals of the copy. Numba does not cache a function on disk if it
    receives compiled functions as arguments or from a closure, but does cache such a copy. The copy's name contains a
    digest of the kernels' names and source. Numba therefore recompiles the copy when the source changes.

    Args:
        kernels: The kernels or entry points.
        template: A module-level function that calls `predict`, `observe`, `update` or `log` as globals.
        decorator: `kernel` if the function is a kernel.
        others: Other globals used by the template: compiled functions.
    """
    assert isinstance(template, FunctionType)
    key = template.__code__, kernels, tuple(others.items())
    if key not in _compiled:
        called = [*kernels, *others.values()]
        names = [getattr(kernel, "__name__", "kernel") for kernel in called]
        sources = [inspect.getsource(inspect.getmodule(kernel) or inspect) for kernel in called]
        digest = hashlib.blake2b("".join(names + sources).encode(), digest_size=8).hexdigest()
        namespace = {**template.__globals__, **kernels._asdict(), **others}
        copy = FunctionType(template.__code__, namespace, f"{template.__name__.strip('_')}_{digest}")
        copy.__qualname__, copy.__module__ = copy.__name__, template.__module__
        _compiled[key] = decorator(copy)
    return _compiled[key]  # type: ignore[return-value]  # has the template's type
