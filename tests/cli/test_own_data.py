"""Warnings from `onebit run` and `onebit data show` about a user's own file, and the scaling of its columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from producers.data import data_sizes, dataset_of
from stream.programs.pipeline_settings import settings_for
from stream.settings.definitions import SettingsError
from stream.settings.sources import given_settings
from stream.task.settings import TaskSettings
from stream.task.stored_settings import SettingsDifferError, stored_settings
from stream.wire.named_features import Kind, Scale, build, to_plain
from tests.cli.conftest import Onebit

UNEVEN = "column 1 (counted from 0) varies "
RUN = ("run", "--learner", "perceptron", "--delay", "none", "--no-report", "--json")
LOG = ("--map", "label=city,numeric=age,categorical=price+device")
ROWS = "city;age;price;device\nulm;3;2,5;pc\nköln;;3,5;pc\nulm;4;2;\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def uneven(tmp_path: Path) -> str:
    x = np.random.default_rng(1).normal(size=(60, 3)) * [1.0, 1e4, 2.0]
    rows = (f"{row % 2} {' '.join(f'{i + 1}:{v!r}' for i, v in enumerate(x[row].tolist()))}\n" for row in range(60))
    (tmp_path / "uneven.svm").write_text("".join(rows))
    return "uneven.svm"


def lines(text: str) -> list[str]:
    return [line.removeprefix("warning: ") for line in text.splitlines()]


def test_uneven_column_is_reported_once_unless_scaled(uneven: str, onebit: Onebit) -> None:
    ran = onebit(*RUN, "--data", uneven, "--learner", "banditron")
    shown = onebit("data", "show", uneven)

    for err in (ran.err, shown.err):
        (line,) = [line for line in lines(err) if UNEVEN in line]
        assert line.endswith("Use --scale standard")
    assert lines(ran.err)[0].startswith(UNEVEN)
    for command in ((*RUN, "--data", uneven), ("data", "show", uneven)):
        assert UNEVEN not in onebit(*command, "--scale", "standard").err


def test_scale_can_be_set_by_variable(uneven: str, monkeypatch: pytest.MonkeyPatch, onebit: Onebit) -> None:
    plain = orjson.loads(onebit(*RUN, "--data", uneven).out)
    monkeypatch.setenv("ONEBIT_SCALE", "standard")
    scaled = orjson.loads(onebit(*RUN, "--data", uneven).out)

    assert (plain["settings"]["scale"], scaled["settings"]["scale"]) == ("none", "standard")
    assert plain["state_sha256"] != scaled["state_sha256"]
    values = dataset_of(given_settings({"data": uneven, "scale": "standard"})).block(0, 60).values.reshape(60, 3)
    np.testing.assert_allclose((values.mean(axis=0), values.std(axis=0)), ([0.0] * 3, [1.0] * 3), atol=1e-12)


def test_run_and_data_show_report_the_same_data_problems(tmp_path: Path, onebit: Onebit) -> None:
    latin_1 = "köln;5;1;pc\n".encode("latin-1")
    (tmp_path / "log.csv").write_bytes(ROWS.encode() + latin_1 + b"bonn;5;1;pc\n")
    ran = onebit(*RUN, "--data", "log.csv", *LOG, "--on-bad-row", "skip")
    shown = onebit("data", "show", "log.csv", *LOG)

    remarks = [line for line in lines(shown.out) if " skipped: " in line or line.startswith("log: ")]
    assert [remark.partition(" (")[0] for remark in remarks] == [
        "1 row of log skipped: row: expected UTF-8 text",
        "log: empty cells, for which no entries are created: 'age' 1, 'device' 1",
        "log: 'price': numbers with a decimal comma are read as text; use a decimal point, as in 3.5",
    ]
    assert remarks[2].endswith("(2 values)")
    assert [line.removeprefix("warning: ") for line in ran.err.splitlines() if line.startswith("warning: ")] == remarks
    again = onebit(*RUN, "--data", "log.csv", *LOG, "--on-bad-row", "skip")
    assert lines(again.err)[:3] == remarks, "a cached log causes the same warnings"


def test_scale_is_a_task_setting_only_without_a_data_set(tmp_path: Path) -> None:
    def requested(stored: Mapping[str, Any] | None = None, **given: object) -> TaskSettings:
        return settings_for(
            given_settings({"scale": "standard", **given}), stored or {}, "journal", sizes_of=data_sizes
        ).task

    (tmp_path / "own.json").write_bytes(orjson.dumps(to_plain(build({"price": (Kind.NUMERIC, None)}, None))))
    service: dict[str, Any] = {"n_classes": 3, "n_features": 4}
    assert requested(**service).scale == "standard"
    assert requested(n_classes=3, features=tmp_path / "own.json").scale == "standard"
    assert requested().scale == "none"
    stored = stored_settings(requested(**service))
    assert requested(stored).scale == "standard"
    with pytest.raises(SettingsDifferError, match="scale = 'standard'; got 'none'"):
        requested(stored, **service | {"scale": "none"})
    of_data = stored_settings(requested())
    assert requested(of_data).scale == "none"


def test_scale_standard_is_rejected_for_an_encoder_with_scales(tmp_path: Path) -> None:
    names = build({"price": (Kind.NUMERIC, None)}, None, scales={"price": Scale(1.0, 2.0)})
    (tmp_path / "own.json").write_bytes(orjson.dumps(to_plain(names)))
    given = {"scale": "standard", "n_classes": 3, "features": tmp_path / "own.json"}
    with pytest.raises(SettingsError, match=r"already contains a scale computed from a log; .*onebit data show"):
        settings_for(given_settings(given), {}, "journal", sizes_of=data_sizes)
