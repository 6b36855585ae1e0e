"""`onebit data show` with decision logs."""

import json
from pathlib import Path

import pytest

from producers.data import data_sizes
from stream.errors import ExitCode
from stream.programs.pipeline_settings import settings_for
from stream.settings.sources import load_settings
from tests.cli.conftest import Onebit
from tests.producers.logs import offers


@pytest.fixture
def log(tmp_path: Path) -> Path:
    offers.write(tmp_path)
    return tmp_path / offers.LOG_NAME


def test_log_is_shown_with_a_guessed_mapping(log: Path, tmp_path: Path, onebit: Onebit) -> None:
    (tmp_path / "offers.toml").unlink()
    shown = onebit("data", "show", str(log))
    assert shown.code == ExitCode.OK
    assert "offers.csv.gz: CSV\n10 columns: visit, shown_at, device" in shown.out
    _, _, rest = shown.out.partition("use it with --map:\n")
    toml, _, rows = rest.partition("\n2,000 valid rows, ")
    (tmp_path / "guessed.toml").write_text(toml)
    assert rows.startswith("10 features\n10 classes: offer-")
    assert (
        "id visit-00001  time 2024-03-01 08:00:38.197  action offer-09  propensity 0.1  reward 0  delay 6015ms" in rows
    )
    assert "hours_away: 0.53, one, device=phone, region=west" in rows
    again = onebit("data", "show", str(log), "--map", "guessed.toml")
    assert "2,000 valid rows, 10 features" in again.out
    assert "a mapping, guessed" not in again.out


def test_log_is_shown_as_json(log: Path, onebit: Onebit) -> None:
    shown = json.loads(onebit("data", "show", str(log), "--map", str(log.parent / "offers.toml"), "--json").out)
    assert (shown["format"], shown["rows"], shown["features"], shown["classes"]) == ("CSV", 2_000, 10, 10)
    assert shown["mapping"]["action"] == "action"
    assert shown["guessed"] is False
    assert len(shown["first"]) == 5
    assert json.loads(onebit("data", "show", str(log), "--json").out) == shown  # the mapping beside the log
    (log.parent / "offers.toml").unlink()
    guessed = json.loads(onebit("data", "show", str(log), "--json").out)
    assert guessed["guessed"] is True
    assert guessed["mapping"] == {key: value for key, value in shown["mapping"].items() if key != "classes"} | {
        "features": {"numeric": ["hours_away", "one"], "categorical": ["device", "region"], "text": []}
    }


def test_missing_fields_of_a_guessed_mapping_are_reported(tmp_path: Path, onebit: Onebit) -> None:
    (tmp_path / "log.csv").write_text("which,click,price\nx,1,2.5\ny,0,1.5\n")
    shown = onebit("data", "show", "log.csv")
    assert shown.code == ExitCode.OK
    assert "# no column looks like the played action or the correct label" in shown.out
    assert "\n# complete the mapping to show rows: map action or label" in shown.out


def test_skipped_rows_are_counted_with_the_first_line(
    tmp_path: Path, onebit: Onebit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.csv").write_text("action,click,price\nx,1,2.5\ny,0,1.5\nx,7,1.5\n")
    shown = onebit("data", "show", "log.csv").out
    assert "1 row of log skipped: reward: expected 0 or 1" in shown
    assert "rewards=graded) (at line 4; got 7.0)\n" in shown
    assert "# not all rewards are 0 or 1" in shown
    (tmp_path / "more.csv").write_text("action,p,click,price\nx,1,1,2.5\n" + "y,0.5,0,3\n" * 98 + "x,abc,1,3\n" * 2)
    more = onebit("data", "show", "more.csv").out
    assert "2 rows of more skipped: p: expected a probability in (0, 1] (first at line 101; got 'abc')\n" in more
    counted = json.loads(onebit("data", "show", "more.csv", "--json").out)
    reason = "p: expected a probability in (0, 1]"
    assert (counted["skipped"], counted["first_skipped"]) == ({reason: 2}, {reason: "line 101; got 'abc'"})
    monkeypatch.setenv("ONEBIT_REWARD_ABOVE", "2")
    assert "skipped" not in onebit("data", "show", "log.csv").out
    assert "3 valid rows" in onebit("data", "show", "log.csv", "--reward-above", "0.5").out


def test_unknown_file_is_rejected_with_its_apparent_format(tmp_path: Path, onebit: Onebit) -> None:
    (tmp_path / "notes.md").write_text("# notes\n")
    raised = onebit("data", "show", "notes.md")
    assert (raised.code, raised.out) == (ExitCode.USAGE, "")
    assert "notes.md looks like text with one column ('# notes')" in raised.err


def test_svmlight_file_is_shown_as_a_data_set(tmp_path: Path, onebit: Onebit) -> None:
    (tmp_path / "letters").write_text("0 1:1\n1 2:0.5\n")
    assert "letters: 2 rows, 2 features" in onebit("data", "show", "letters").out
    for name in ("letters.svm", "letters.txt"):
        (tmp_path / name).write_text("0 1:1\n1,2 2:0.5\n")
        assert "line 2: expected one label" in onebit("data", "show", name).err
    (tmp_path / "letters.svm").write_text("only words\n")
    assert "line 1: expected INDEX:VALUE" in onebit("data", "show", "letters.svm").err


def test_feature_encoder_is_saved_for_a_learner(log: Path, tmp_path: Path, onebit: Onebit) -> None:
    saved = onebit("data", "show", str(log), "--map", "offers.toml", "--save-features", "offers.json")
    assert saved.code == ExitCode.OK
    settings = load_settings({"features": tmp_path / "offers.json", "n_classes": 10, "learner": ["late-ucb"]})
    wanted = settings_for(settings, {}, "journal 0", sizes_of=data_sizes).task
    assert (wanted.n_features, wanted.n_classes) == (10, 10)
    encoder = wanted.feature_encoder()
    assert encoder is not None
    x, _ = encoder.encode({"hours_away": 0.5, "device": "phone", "region": "nowhere"})
    assert len(x.indices) == 2


def test_invalid_features_file_is_rejected(tmp_path: Path, onebit: Onebit) -> None:
    (tmp_path / "bad.json").write_text("{}")
    for name in ("bad.json", "nowhere.json"):
        raised = onebit("learn", "--features", name, "--n-classes", "3")
        assert raised.code == ExitCode.USAGE
        assert f"--features {name}: expected a file from `onebit data show --save-features`" in raised.err


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_column_whose_values_begin_late_is_guessed(tmp_path: Path, onebit: Onebit, kind: str) -> None:
    rows = [{"action": k % 3, "reward": k % 2, "x": k / 7, "city": ""} for k in range(40_000)]
    for row in rows[-200:]:
        row["city"] = "rome" if row["reward"] else "paris"
    path = tmp_path / f"late.{kind}"
    if kind == "csv":
        path.write_text("action,reward,x,city\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    else:
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if v != ""}) + "\n" for row in rows))
    shown = json.loads(onebit("data", "show", str(path), "--json").out)
    assert shown["mapping"]["features"]["categorical"] == ["city"]
    assert (shown["rows"], shown["skipped"]) == (40_000, {})
