"""Model files and model comparison.

A model file is a numpy archive without pickles. It contains the arrays in the learner's state as `state.NAME`, and JSON
text as `meta`. The JSON text contains the learner, its parameters, the model's position in its topics, and the state's
digest.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import orjson
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.learners import Learner, State
from stream.recovery.state import state_digest
from stream.task.settings import TaskSettings
from stream.task.stored_settings import MODEL_SETTINGS

FILE_FORMAT = 1

STATE_PREFIX = "state."


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
        if "version" in position:
            return f"at version {position['version']:,} of the shared model"
        return f"after step {position['journal']:,} of partition {position['partition']}"

    def learner(self) -> Learner:
        """Create the learner and load this state.

        Raises:
            ParameterError: the learner or a parameter is unknown.
            ValueError: the state does not fit the learner.
        """
        learner = TaskSettings(**identity(self.meta)).make_learner()
        learner.load(self.state)
        return learner


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
    """Read a model file.

    Raises:
        ModelError: the file is not a model, has a different format, or was changed.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            meta = orjson.loads(str(archive["meta"]))
            arrays = {
                name.removeprefix(STATE_PREFIX): archive[name]
                for name in archive.files
                if name.startswith(STATE_PREFIX)
            }
        scalars = meta.pop("scalars")
        state: State = {name: array.item() if name in scalars else array for name, array in arrays.items()}
        written_format, digest = meta["format"], meta["digest"]
        identity(meta)
    except (OSError, BadZipFile, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise ModelError(f"{path}: expected a file written by `onebit model export`; got {error!r}") from error
    if written_format != FILE_FORMAT:
        raise ModelError(f"{path}: expected a model in format {FILE_FORMAT}; got {written_format!r}")
    if state_digest([state]) != digest:
        raise ModelError(f"{path}: the digest of its state differs from the digest in meta, so the file was changed")
    return Model(meta, state)


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
