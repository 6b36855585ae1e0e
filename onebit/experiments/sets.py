"""The data sets for experiments: generated, included in Onebit, or files in the data directory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from onebit.experiments.definition import Experiment, ExperimentError, Scalar, SetEntry, read_sets
from producers.datasets import named, svmlight
from producers.datasets.base import Dataset
from stream.offline import Examples
from stream.parsing import close_matches

LINEAR = "linear-models"
"""Data for figure 2 in the Confidit paper: five random linear models of dimension 5, and four irrelevant features."""

LINEAR_CLASSES, LINEAR_INFORMATIVE, LINEAR_FEATURES, LINEAR_ROWS = 5, 5, 9, 1_000

GENERATED = ("synsep", "synnonsep", LINEAR)
"""Data sets that are generated separately for each seed."""


Fact = Callable[[float], float]
"""A function that computes a parameter from a statistic of the data set. The argument scales the statistic."""


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, so that it can be a cache key
class Loaded:
    """A data set in memory; if generated, the data set for one seed."""

    n_classes: int
    n_features: int
    examples: Examples
    is_generated: bool = False
    facts: Mapping[str, Fact] = field(default_factory=dict)


class Sets:
    """The data sets available to an experiment: its own data sets, those in `sets.toml`, and generated data sets."""

    def __init__(self, own: Mapping[str, SetEntry], folder: Path | None) -> None:
        self._entries = read_sets() | dict(own)
        self._folder = folder

    def missing(self, experiment: Experiment) -> dict[str, str]:
        """Return a message for each missing data set, keyed by name.

        Raises:
            ExperimentError: a name is unknown.
        """
        return {name: message for name in experiment.data() if (message := self._missing_message(name)) is not None}

    def _missing_message(self, name: str) -> str | None:
        if name in GENERATED or name == "optdigits":
            return None
        path = self._path(name)
        if path is not None and path.exists():
            return None
        entry = self._entries[name]
        place = f"{path} does not exist" if path else f"{entry.file} requires a data directory"
        return f"{name} ({entry.title}): {place}. Source: {entry.get}. Conversion: {entry.convert}."

    def _path(self, name: str) -> Path | None:
        if name not in self._entries:
            known = (*GENERATED, "optdigits", *self._entries)
            raise ExperimentError(
                f"unknown data set {name!r}{close_matches(name, known) or ';'} available: {', '.join(known)}"
            )
        return None if self._folder is None else self._folder / self._entries[name].file

    def title(self, name: str) -> str:
        """Return a data set's title for figures and tables."""
        return self._entries[name].title if name in self._entries else _TITLES[name]

    def note(self, name: str) -> str:
        """Describe how a data set differs from the one used in the papers. Return an empty string if it is the same."""
        return self._entries[name].note if name in self._entries else ""

    def load(self, name: str, seed: int, rows_max: int | None) -> Loaded:
        """Load a data set, or generate one for a seed, with at most `rows_max` rows."""
        if name == LINEAR:
            return linear_models(seed)
        if name in GENERATED:
            dataset = named.load(name, seed=seed)
            rows = min(dataset.rows, rows_max or dataset.rows)
            return _loaded(dataset, rows, is_generated=True)
        path = None if name == "optdigits" else self._path(name)
        return _from_file(name, path, self._entries[name].n_features if path else None)


_TITLES = {
    "synsep": "SynSep",
    "synnonsep": "SynNonSep",
    LINEAR: "five linear models, d = 9",
    "optdigits": "digits, 5,620 rows",
}


@lru_cache(maxsize=2)
def _from_file(name: str, path: Path | None, n_features: int | None) -> Loaded:
    dataset = named.load(name) if path is None else svmlight.read(path, n_features)
    return _loaded(dataset, dataset.rows)


def _loaded(dataset: Dataset, rows: int, *, is_generated: bool = False) -> Loaded:
    return Loaded(dataset.n_classes, dataset.n_features, Examples(*dataset.block(0, rows)), is_generated)


def linear_models(seed: int) -> Loaded:
    """Generate the data from Crammer, Gentile 2013, section 5.2: the class is the argmax of u·x over five random u.

    The paper does not specify the distributions of x and u in the relevant dimensions. Here, x is uniform in [-1, 1]
    and u is standard normal. The paper sets ‖U‖ to multiples of the models' squared norm. The parameter `u_norm_sq` is
    ‖U‖², so the statistic `squared_norm` is the square of such a multiple.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(LINEAR_ROWS, LINEAR_FEATURES))
    X[:, :LINEAR_INFORMATIVE] = rng.uniform(-1.0, 1.0, size=(LINEAR_ROWS, LINEAR_INFORMATIVE))
    U = rng.normal(size=(LINEAR_CLASSES, LINEAR_INFORMATIVE))
    offsets = np.arange(0, X.size + 1, LINEAR_FEATURES, dtype=np.int64)
    indices = np.tile(np.arange(LINEAR_FEATURES, dtype=np.int32), LINEAR_ROWS)
    labels = (X[:, :LINEAR_INFORMATIVE] @ U.T).argmax(axis=1).astype(np.int64)
    examples = Examples(offsets, indices, X.ravel(), labels)
    squared_norm = float(np.sum(U * U))
    facts = {"squared_norm": lambda times: (times * squared_norm) ** 2}
    return Loaded(LINEAR_CLASSES, LINEAR_FEATURES, examples, is_generated=True, facts=facts)


def with_facts(parameters: Mapping[str, Scalar], facts: Mapping[str, Fact]) -> dict[str, Scalar]:
    """Replace each parameter that is a multiple of a statistic of the data with its numeric value.

    >>> with_facts({"u_norm_sq": "0.5 squared_norm", "variant": 1}, {"squared_norm": lambda times: (times * 8.0) ** 2})
    {'u_norm_sq': 16.0, 'variant': 1}
    """
    found: dict[str, Scalar] = {}
    for name, value in parameters.items():
        factor, _, fact = str(value).partition(" ")
        found[name] = facts[fact](float(factor)) if fact in facts else value
    return found
