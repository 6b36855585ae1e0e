"""Model files and model comparison.

A model file is a numpy archive without pickles. It contains the arrays in the learner's state as `state.NAME`, and JSON
text as `meta`. The JSON text contains the learner, its parameters, the model's position in its topics, and the state's
digest.
"""

import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import orjson
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.learners import Learner, State, registered
from stream.recovery.state import state_digest
from stream.task.carry import StartModel
from stream.task.settings import TaskSettings
from stream.task.stored_settings import MODEL_SETTINGS, NAMES

FILE_FORMAT = 1

STATE_PREFIX = "state."

STATE_RATIO_MAX, STATE_SLACK_BYTES = 4, 1_000_000
"""Limits on the computed size of a learner's state, relative to the size of the state in the file. The computed size is
approximate. The limits prevent a small file from making Onebit allocate a large learner."""


class ModelError(OnebitError, ValueError):
    """Raised when a model cannot be exported, read or imported."""


class Model(NamedTuple):
    """A learner's state and its description."""

    meta: dict[str, Any]
    state: State

    @property
    def moment(self) -> str:
        """The model's position in its topics, for messages."""
        position = self.meta["position"]
        if "log" in position:
            return f"after {position['decisions']:,} decisions in {position['log']}"
        if "version" in position:
            return f"at version {position['version']:,} of the shared model"
        return f"after step {position['journal']:,} of partition {position['partition']}"

    @property
    def names(self) -> dict[str, Any]:
        """The settings that name the model's classes and features, without those that are null."""
        settings = self.meta.get("settings", {})
        return {name: settings[name] for name in NAMES if settings.get(name) is not None}

    def learner(self) -> Learner:
        """Create the learner and load this state.

        Raises:
            ParameterError: the learner or a parameter is unknown.
            ModelError: the state does not fit the learner.
        """
        try:
            settings = TaskSettings(**identity(self.meta), **self.names).resolved()
            self._check_size(settings)
            learner = settings.make_learner()
            learner.load(self.state)
        except (MemoryError, OverflowError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise ModelError(f"the model's meta is invalid: {type(error).__name__}: {error}") from error
        except ValueError as error:
            raise error if isinstance(error, OnebitError) else ModelError(str(error)) from error
        return learner

    def start(self) -> StartModel:
        """Return the model as a challenger starts with it.

        Raises:
            ModelError: the settings in the file are invalid.
        """
        try:
            settings = TaskSettings(**identity(self.meta), **self.names).resolved()
            if settings.class_names is not None:
                settings = replace(settings, class_names=tuple(settings.class_names))
        except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            raise ModelError(f"the model's meta is invalid: {type(error).__name__}: {error}") from error
        return StartModel(settings, self.state)

    def _check_size(self, settings: TaskSettings) -> None:
        """Check the size of the learner's state before the learner allocates memory for it."""
        sizes = (settings.n_classes, settings.n_features)
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ModelError(f"expected whole numbers of classes and features; got {sizes}")
        kind = registered()[settings.learner]
        cost = kind.cost(*sizes, nnz=1, parameters=settings.parameters)
        expected = cost.state_bytes - cost.unused_bytes
        given = sum(np.asarray(value).nbytes for value in self.state.values())
        if expected > STATE_RATIO_MAX * given + STATE_SLACK_BYTES:
            raise ModelError(
                f"expected a state of at least {expected:,} bytes for {sizes[0]:,} classes and {sizes[1]:,} features; "
                f"got {given:,}"
            )


def model_of(
    settings: TaskSettings,
    learner: Learner,
    classes: Sequence[str] | None,
    position: Mapping[str, Any],
    counts: Mapping[str, Any],
) -> Model:
    """Return a learner's model.

    Args:
        settings: the settings, with all of the learner's parameters.
        learner: the learner.
        classes: the classes' names so far; None if they have no names.
        position: where the learner's decisions come from.
        counts: the number of updates, and others.
    """
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}
    state = learner.state()
    meta = {
        "format": FILE_FORMAT,
        **identity(plain),
        "classes": classes,
        "settings": plain,
        "position": position,
        **counts,
        "digest": state_digest([state]),
    }
    return Model(meta, state)


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings on which a learner's state depends."""
    return {name: settings[name] for name in (*MODEL_SETTINGS, "parameters")}


def write_model(path: Path, model: Model) -> None:
    """Write a model file atomically. After a crash or an error, an existing file is unchanged.

    Raises:
        ModelError: the file cannot be written.
    """
    scalars = {name: type(value).__name__ for name, value in model.state.items() if not isinstance(value, np.ndarray)}
    arrays: dict[str, Any] = {STATE_PREFIX + name: np.asarray(value) for name, value in model.state.items()}
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        try:
            with fresh.open("wb") as file:
                np.savez(file, meta=np.array(orjson.dumps({**model.meta, "scalars": scalars}).decode()), **arrays)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{path} cannot be written: {error}") from error


def read_model(path: Path) -> Model:
    """Read a model file. It needs at most as much memory as the file has bytes.

    Raises:
        ModelError: the file is not a model, has a different format, or was changed.
    """
    try:
        if path.is_file() or not path.exists():
            with path.open("rb") as file:
                return decode_model_file(file, path.stat().st_size, str(path))
    except OSError as error:
        raise _not_a_model(str(path), error.strerror or repr(error)) from error
    raise _not_a_model(str(path), "no regular file")


def decode_model_file(file: BinaryIO, size: int, place: str) -> Model:
    """Decode a model file.

    Args:
        file: the file.
        size: its number of bytes.
        place: its name, for messages.

    Raises:
        ModelError: see `read_model`.
    """
    try:
        with ZipFile(file) as archive:
            _check_members(archive, size)
            meta = orjson.loads(str(_array(archive, "meta.npy")))
            arrays = {
                name.removeprefix(STATE_PREFIX).removesuffix(".npy"): _array(archive, name)
                for name in archive.namelist()
                if name.startswith(STATE_PREFIX)
            }
        scalars = meta.pop("scalars")
        state: State = {name: array.item() if name in scalars else array for name, array in arrays.items()}
        written_format, digest = meta["format"], meta["digest"]
        identity(meta)
    except _DAMAGE as error:
        raise _not_a_model(place, repr(error)) from error
    if written_format != FILE_FORMAT:
        raise ModelError(f"{place}: expected a model in format {FILE_FORMAT}; got {written_format!r}")
    if state_digest([state]) != digest:
        raise ModelError(f"{place}: the digest of its state differs from the digest in meta, so the file was changed")
    return Model(meta, state)


def _not_a_model(place: str, got: str) -> ModelError:
    return ModelError(f"{place}: expected a file written by `onebit model export` or `onebit train`; got {got}")


_DAMAGE = (
    OSError, BadZipFile, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError, SyntaxError,
    OverflowError, MemoryError, zlib.error, struct.error, TokenError,
)  # fmt: skip
"""The errors that the standard library and numpy raise for damaged archives and headers."""


def _check_members(archive: ZipFile, size: int) -> None:
    """Raise ValueError unless the members are stored as `write_model` stores them, and are no larger than the file."""
    for member in archive.infolist():
        if member.compress_type != ZIP_STORED or member.flag_bits & _ENCRYPTED:
            raise ValueError(f"{member.filename}: expected neither compression nor encryption")
    if (total := sum(member.file_size for member in archive.infolist())) > size:
        raise ValueError(f"{total:,} bytes in a file of {size:,} bytes")


_ENCRYPTED = 0x1  # bit of a member's flags


def _array(archive: ZipFile, name: str) -> NDArray[Any]:
    """Read an array after checking that its shape fits the number of bytes in the archive."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
        content = file.read()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{name}: expected {math.prod(shape):,} entries of {dtype}; got {len(content):,} bytes")
    return np.frombuffer(bytearray(content), dtype).reshape(shape, order="F" if is_fortran else "C")


class Difference(NamedTuple):
    """The difference between two models in one part of their states."""

    name: str
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]  # None if the model does not have this part
    differing: int  # number of entries that are not bit-identical; all of them if the shapes differ
    greatest: float  # largest difference between two entries; nan if the entries cannot be subtracted

    @property
    def same(self) -> bool:
        """Whether this part is bit-identical in both models."""
        return self.differing == 0


def compare_models(first: Model, second: Model) -> list[Difference]:
    """Compare two models' states, array by array."""
    parts = [
        {**model.state, **({"classes": np.array(model.meta["classes"])} if model.meta["open_classes"] else {})}
        for model in (first, second)
    ]
    names = sorted(parts[0].keys() | parts[1].keys())
    return [_difference(name, parts[0].get(name), parts[1].get(name)) for name in names]


def _difference(name: str, first: Any, second: Any) -> Difference:
    arrays = [None if value is None else np.asarray(value) for value in (first, second)]
    a, b = arrays
    shapes = (None if a is None else a.shape, None if b is None else b.shape)
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        entries = max(0 if array is None else array.size for array in arrays)
        return Difference(name, shapes, max(entries, 1), float("nan"))
    if a.tobytes() == b.tobytes():
        return Difference(name, shapes, 0, 0.0)
    differs = (_raw(a) != _raw(b)).any(axis=1)
    greatest = float("nan")
    if a.dtype.kind in "fiub":
        with np.errstate(invalid="ignore", over="ignore"):
            apart = a.reshape(-1)[differs].astype(np.float64) - b.reshape(-1)[differs].astype(np.float64)
        greatest = float(np.max(np.abs(apart)))
    return Difference(name, shapes, int(np.count_nonzero(differs)), greatest)


def _raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return each entry's bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
