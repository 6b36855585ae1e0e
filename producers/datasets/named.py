"""Named data sets, and functions that load them by name or from a file."""

from collections.abc import Callable
from importlib import import_module
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

from producers.datasets import svmlight
from producers.datasets.base import Dataset, DatasetError
from producers.datasets.logs.formats import Format, format_of
from producers.datasets.logs.streams import STDIN, Source
from stream.parsing import close_matches
from stream.plugins import Plugins


class Entry(NamedTuple):
    """A named data set."""

    name: str
    rows: int
    n_features: int
    n_classes: int
    summary: str
    terms: str
    load: Callable[[int], Dataset]  # function of a seed, which affects only generated data
    is_generated: bool = False


OPTDIGITS_TERMS = (
    "UCI Machine Learning Repository, Optical Recognition of Handwritten Digits (Alpaydin, Kaynak 1998); probably "
    "CC BY 4.0 (not verified); cite UCI. See producers/datasets/files/README.md"
)


def entries() -> tuple[Entry, ...]:
    """Return all named data sets, sorted by name, including those from the `onebit.datasets` entry points."""
    return tuple(_ALL.values())


def problems() -> list[str]:
    """Return an error for each plug-in that cannot be loaded."""
    return _ALL.problems()


def load(name_or_file: str, n_features: int | None = None, seed: int = 0) -> Dataset:
    """Load a data set by name, or an svmlight file by path.

    Args:
        name_or_file: A name, otherwise a path.
        n_features: Number of features in a file. Required if the file may lack values for the last features.
        seed: Seed for generated data.
    """
    if name_or_file in _ALL:
        entry = _ALL[name_or_file]
        if n_features not in (None, entry.n_features):
            raise DatasetError(
                f"{entry.name} has {entry.n_features} features; n_features={n_features} applies to files only"
            )
        return _load(entry, seed)
    path = Path(name_or_file)
    if path.is_dir():
        raise DatasetError(
            f"{name_or_file} is a directory; expected an svmlight file or a built-in data set ({_names()})"
        )
    if path.exists():
        return svmlight.read(path, n_features)
    raise DatasetError(
        f"no data set or file named {name_or_file!r}; available: {_names()}{close_matches(name_or_file, _ALL)}"
    )


def is_log(name_or_file: str, *, is_mapped: bool = False) -> bool:
    """Return whether a name or file denotes a log rather than a labelled data set.

    Standard input is always a log, and so is a file with a column mapping.

    Raises:
        DatasetError: the file has an unsupported format.
    """
    if name_or_file == STDIN:
        return True
    if name_or_file in _ALL:
        return False
    if is_mapped:
        return True
    if not Path(name_or_file).is_file():
        return False
    try:
        return format_of(Source(name_or_file).head(), name_or_file) is not Format.SVMLIGHT
    except DatasetError:
        if svmlight.has_svmlight_suffix(Path(name_or_file)):
            return False  # the svmlight reader reports the invalid line
        raise


def _load(entry: Entry, seed: int) -> Dataset:
    with _ALL.blamed(entry.name):
        dataset = entry.load(seed)
        sizes = (dataset.name, dataset.rows, dataset.n_features, dataset.n_classes)
        if sizes != entry[:4]:
            raise ValueError(f"expected the name, rows, features and classes {entry[:4]}; got {sizes}")
    return dataset


def _load_optdigits(_seed: int) -> Dataset:
    with as_file(files("producers.datasets") / "files" / "optdigits.scale.svm.gz") as path:
        return svmlight.read(path, 64, index_base=1, name="optdigits", terms=OPTDIGITS_TERMS)


def _generated(name: str, module: str, n_features: int, n_classes: int, summary: str) -> Entry:
    """Return the entry of a generated data set: the function in `producers.datasets` with the data set's name.

    Its module is imported when the data set is loaded, because few commands need it, and some modules load numba.
    """

    def load_generated(seed: int) -> Dataset:
        generate = getattr(import_module(f"producers.datasets.{module}"), name.replace("-", "_"))
        dataset: Dataset = generate(seed)
        return dataset

    terms = "generated; no restrictions"
    return Entry(name, 1_000_000, n_features, n_classes, summary, terms, load_generated, is_generated=True)


def _names() -> str:
    return ", ".join(_ALL)


_OWN = (
    Entry(
        "optdigits",
        rows=5_620,
        n_features=64,
        n_classes=10,
        summary="handwritten digits, 8 x 8 grey values in [0, 1]; included with Onebit",
        terms=OPTDIGITS_TERMS,
        load=_load_optdigits,
    ),
    _generated(
        "catalogue",
        "offers",
        n_features=325,
        n_classes=15,
        summary="visits that offer 15 items with features; 10 of the 60 items are new every 1,000 rows",
    ),
    _generated(
        "catalogue-graded",
        "offers",
        n_features=325,
        n_classes=15,
        summary="catalogue with graded rewards, 0 to 1",
    ),
    _generated(
        "ratings",
        "ratings",
        n_features=10,
        n_classes=8,
        summary="dense data with graded rewards, 1 to 5 stars",
    ),
    _generated(
        "synsep",
        "synthetic",
        n_features=400,
        n_classes=9,
        summary="document-like binary data, linearly separable (Kakade et al. 2008)",
    ),
    _generated(
        "synnonsep",
        "synthetic",
        n_features=400,
        n_classes=9,
        summary="synsep with 5% of the labels wrong",
    ),
)


def _check_plugin(name: str, plugin: object) -> Entry:
    if not isinstance(plugin, Entry):
        raise TypeError(f"expected a onebit.DatasetEntry; got {plugin!r}")
    if plugin.name != name:
        raise ValueError(f"the data set's name is {plugin.name!r}; expected {name!r}, the name of the entry point")
    return plugin


_ALL = Plugins("onebit.datasets", {entry.name: entry for entry in _OWN}, _check_plugin)
