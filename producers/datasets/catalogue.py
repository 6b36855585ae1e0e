"""Data sets by name, or by file."""

from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

from producers.datasets import svmlight, synthetic
from producers.datasets.base import Dataset, DatasetError
from producers.datasets.logs.looks import Format, format_of
from producers.datasets.logs.streams import STDIN, Source
from stream.near_names import close_matches


class Entry(NamedTuple):
    """A data set that is known by name."""

    name: str
    rows: int
    n_features: int
    n_classes: int
    summary: str
    terms: str
    load: Callable[[int], Dataset]  # from a seed, which only generated data uses
    is_generated: bool = False


OPTDIGITS_TERMS = (
    "UCI Machine Learning Repository, Optical Recognition of Handwritten Digits (Alpaydin, Kaynak 1998); believed to "
    "be CC BY 4.0, which could not be checked; cite UCI. See producers/datasets/files/README.md"
)


def catalogue() -> tuple[Entry, ...]:
    """All data sets that have a name."""
    return _ENTRIES


def load(name_or_file: str, n_features: int | None = None, seed: int = 0) -> Dataset:
    """Load a data set by its name, or an svmlight file by its path.

    Args:
        name_or_file: a name of the catalogue; what is not one is taken for a file.
        n_features: only for files: the number of features, when the last ones may be empty.
        seed: only for generated data: which of all SynSeps it is.
    """
    for entry in _ENTRIES:
        if entry.name == name_or_file:
            if n_features not in (None, entry.n_features):
                raise DatasetError(
                    f"{entry.name} has {entry.n_features} features; n_features={n_features} is for files only"
                )
            return entry.load(seed)
    path = Path(name_or_file)
    if path.is_dir():
        raise DatasetError(f"{name_or_file} is a folder; give an svmlight file, or one of {_names()}")
    if path.exists():
        return svmlight.read(path, n_features)
    raise DatasetError(
        f"no data set and no file is called {name_or_file!r}; the names are {_names()}"
        f"{close_matches(name_or_file, [entry.name for entry in _ENTRIES])}"
    )


def is_log(name_or_file: str) -> bool:
    """Whether a data set, by its name or file, is a log; otherwise it has labels, or is nothing that can be read.

    Standard input is one: nothing else is read from there.

    Raises:
        DatasetError: a file that cannot be read; the message says what it looks like.
    """
    if name_or_file == STDIN:
        return True
    if name_or_file in (entry.name for entry in _ENTRIES) or not Path(name_or_file).is_file():
        return False
    try:
        return format_of(Source(name_or_file).head(), name_or_file) is not Format.SVMLIGHT
    except DatasetError:
        if svmlight.is_named_so(Path(name_or_file)):
            return False  # its own reader says which line is wrong
        raise


def _load_optdigits(_seed: int) -> Dataset:
    with as_file(files("producers.datasets") / "files" / "optdigits.scale.svm.gz") as path:
        return svmlight.read(path, 64, index_base=1, name="optdigits", terms=OPTDIGITS_TERMS)


def _names() -> str:
    return ", ".join(entry.name for entry in _ENTRIES)


_ENTRIES = (
    Entry(
        "optdigits",
        rows=5_620,
        n_features=64,
        n_classes=10,
        summary="handwritten digits, 8 x 8 grey values in [0, 1]; ships with the program",
        terms=OPTDIGITS_TERMS,
        load=_load_optdigits,
    ),
    Entry(
        "synsep",
        rows=synthetic.ROWS,
        n_features=synthetic.N_FEATURES,
        n_classes=synthetic.N_CLASSES,
        summary="document-like binary data, linearly separable (Kakade et al. 2008)",
        terms=synthetic.TERMS,
        load=synthetic.synsep,
        is_generated=True,
    ),
    Entry(
        "synnonsep",
        rows=synthetic.ROWS,
        n_features=synthetic.N_FEATURES,
        n_classes=synthetic.N_CLASSES,
        summary="synsep with 5 % of the labels wrong",
        terms=synthetic.TERMS,
        load=synthetic.synnonsep,
        is_generated=True,
    ),
)
