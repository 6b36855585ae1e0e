"""Data sets loaded by name or from a file, including the bundled data set."""

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from producers.datasets.base import DatasetError
from producers.datasets.named import entries, load

SHIPPED = files("producers.datasets") / "files" / "optdigits.scale.svm.gz"


def test_entries_match_their_data_sets() -> None:
    names = ["catalogue", "catalogue-graded", "optdigits", "ratings", "synnonsep", "synsep"]
    assert [entry.name for entry in entries()] == names
    for entry in entries():
        data = load(entry.name)
        assert (data.name, data.rows, data.n_features, data.n_classes, data.terms) == (
            entry.name,
            entry.rows,
            entry.n_features,
            entry.n_classes,
            entry.terms,
        )
        assert entry.summary


def test_optdigits_is_complete() -> None:
    data = load("optdigits")
    block = data.block(0, data.rows)
    assert data.class_names == tuple("0123456789")
    assert np.bincount(block.labels).tolist() == [554, 571, 557, 572, 568, 558, 558, 566, 554, 562]
    assert block.indices.size == 184_017
    assert (block.values.min(), block.values.max()) == (0.0625, 1.0)
    assert data.event_id(123) == "optdigits-0-000123"


def test_shipped_file_matches_its_readme() -> None:
    readme = (files("producers.datasets") / "files" / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(SHIPPED.read_bytes()).hexdigest() in readme
    assert "terms:" in readme


def test_seed_changes_synthetic_data_but_not_optdigits() -> None:
    assert load("synsep", seed=1).label(0) == load("synsep", seed=1).label(0)
    assert load("synsep", seed=1).id_prefix != load("synsep", seed=2).id_prefix
    assert load("optdigits", seed=1).event_id(0) == load("optdigits", seed=2).event_id(0)


def test_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.svm"
    path.write_text("a 1:1\nb 2:1\n")
    data = load(str(path), n_features=9)
    assert (data.name, data.rows, data.n_features, data.class_names) == ("mine", 2, 9, ("a", "b"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("opdigits", "optdigits, ratings, synnonsep, synsep; did you mean optdigits?"),
        ("synonsep", "did you mean synnonsep or synsep?"),
        ("no/such/file.svm", "no data set or file named 'no/such/file.svm'; available:"),
        ("", "is a directory; expected an svmlight file or a built-in data set"),
    ],
)
def test_unknown_name_is_rejected_with_the_known_names(name: str, message: str) -> None:
    with pytest.raises(DatasetError, match=re.escape(message)):
        load(name)


def test_n_features_of_a_named_data_set_cannot_be_changed() -> None:
    assert load("optdigits", n_features=64).n_features == 64
    with pytest.raises(DatasetError, match="n_features=65"):
        load("optdigits", n_features=65)
