"""`onebit estimate`: flags, input files and output."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from onebit.cli.app import main
from stream.learners import create
from stream.recovery.model_files import FILE_FORMAT, Model, write_model
from stream.recovery.state import state_digest
from stream.wire.named_features import Kind, build, to_plain
from tests.estimating.logs import N_CLASSES, N_FEATURES, a_log, a_world

MAP = """
id = "id"
timestamp = "time"
action = "played"
reward = "clicked"
propensity = "chance"
delay = "delay_ms"
classes = ["a", "b", "c", "d"]
[features]
numeric = ["x0", "x1", "x2", "x3", "x4"]
"""


@pytest.fixture
def log(tmp_path: Path) -> list[str]:
    """Write a log of 1,200 decisions, of which the last 100 have no outcome. Return the command that evaluates it."""
    rows = a_log(1_200)
    lines = ["id,time,played,clicked,chance,delay_ms," + ",".join(f"x{i}" for i in range(N_FEATURES))]
    x = rows.values.reshape(-1, N_FEATURES)
    for j, one in enumerate(rows.ids):
        bit = str(rows.rewards[j]) if j < 1_100 else ""
        numbers = ",".join(map(repr, x[j].tolist()))
        lines.append(
            f"{one},{1_700_000_000_000 + rows.decided_at_ms[j]},{'abcd'[rows.actions[j]]},{bit},"
            f"{rows.propensities[j]!r},1500,{numbers}".replace("np.float64(", "").replace(")", "")
        )
    (tmp_path / "shop.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "shop.toml").write_text(MAP)
    return ["estimate", "--data", str(tmp_path / "shop.csv"), "--map", str(tmp_path / "shop.toml")]


def last_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    assert ended.value.code == 0
    found: dict[str, Any] = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def failure(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_json_line_has_the_documented_fields(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(capsys, [*log, "--policy", "uniform", "--policy", "late-ucb", "--policy", "logged"])
    assert list(found) == ["data", "events", "policies"]
    assert (found["data"], found["events"]) == ("shop", 1_200)
    assert [policy["policy"] for policy in found["policies"]] == ["uniform", "late-ucb", "logged"]
    for policy in found["policies"]:
        assert list(policy) == ["policy", "ess", "weight_max", "flags", "estimates"]
        assert "outcome-missing" in policy["flags"]
        names = [one["estimator"] for one in policy["estimates"]]
        assert names == ["replay", "dm", "ips", "snips", "clipped-ips", "dr"]
        for one in policy["estimates"]:
            assert list(one) == ["estimator", "value", "low", "high", "anytime_low", "anytime_high"]
            assert one["low"] <= one["value"] <= one["high"]
            assert (one["anytime_low"] is None) == (one["estimator"] not in ("ips", "dr"))


def test_ips_estimate_equals_weighted_mean_of_rows(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(capsys, [*log, "--policy", "uniform"])
    rows = a_log(1_200)
    terms = 0.25 / rows.propensities[:1_100] * rows.rewards[:1_100]
    ips = next(one for one in found["policies"][0]["estimates"] if one["estimator"] == "ips")
    assert ips["value"] == pytest.approx(terms.mean())
    assert ips["low"] < a_world().value("uniform") < ips["high"]


def test_mapping_can_be_set_by_variable(
    log: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_flag = last_line(capsys, [*log, "--policy", "uniform"])
    *without_map, _, mapping = log
    monkeypatch.setenv("ONEBIT_MAP", mapping)
    assert last_line(capsys, [*without_map, "--policy", "uniform"]) == by_flag


def test_bernstein_intervals_can_be_chosen(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    by_bootstrap = last_line(capsys, [*log, "--policy", "uniform"])
    by_bernstein = last_line(capsys, [*log, "--policy", "uniform", "--interval", "bernstein"])
    widths = [
        {one["estimator"]: one["low"] and one["high"] - one["low"] for one in found["policies"][0]["estimates"]}
        for found in (by_bootstrap, by_bernstein)
    ]
    assert widths[1]["snips"] is None
    assert widths[0]["ips"] < widths[1]["ips"]


def test_model_file_is_evaluated(log: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learner = create("late-ucb", N_CLASSES, N_FEATURES)
    rows = a_log(800, seed=5)
    x = rows.values.reshape(-1, N_FEATURES)
    for j in range(800):
        own = learner.predict(x[j], 0.0)
        decision = learner.as_played(x[j], own, int(rows.actions[j]), float(rows.propensities[j]))
        learner.observe(x[j], decision)
        learner.update(x[j], decision, int(rows.rewards[j]))
    path = tmp_path / "model.npz"
    write_file(path, N_FEATURES, learner.state())
    found = last_line(capsys, [*log, "--policy", f"model:{path}", "--policy", "logged"])
    model, logged = ({one["estimator"]: one["value"] for one in policy["estimates"]} for policy in found["policies"])
    assert model["snips"] > logged["snips"] + 0.1


def test_model_file_is_evaluated_with_a_warning_about_its_training(
    log: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.npz"
    write_file(path, N_FEATURES, create("late-ucb", N_CLASSES, N_FEATURES).state())
    for policy, is_warned in ((f"model:{path}", True), ("uniform", False)):
        with pytest.raises(SystemExit) as ended:
            main([*log, "--policy", policy])
        assert ended.value.code == 0
        assert ("the model learned from decisions" in " ".join(capsys.readouterr().err.split())) is is_warned


def write_file(path: Path, n_features: int, state: Any, **settings: Any) -> None:
    parameters = {"eta": 0.1}
    meta = {
        "format": FILE_FORMAT, "digest": state_digest([state]), "learner": "late-ucb", "n_classes": N_CLASSES,
        "n_features": n_features, "parameters": parameters, "scale": "none", "open_classes": False,
        "rewards": "bit", "reward_range": "0,1", "actions": None,
        "settings": settings,
    }  # fmt: skip
    write_model(path, Model(meta, state))


def plain_encoder(*names: str) -> dict[str, Any]:
    return to_plain(build(dict.fromkeys(names, (Kind.NUMERIC, ())), None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"class_names": ["a", "c", "b", "d"]},
            "class 1 is 'c' in the model, but in shop it is 'b'",
        ),
        (
            {"features": plain_encoder("x0", "x1", "x2", "x4", "x3")},
            "the indices of x4, x3 in shop differ from those in the model",
        ),
        (
            {"features": plain_encoder("x0", "x1", "x2", "x3", "y")},
            "the indices of y, x4 in shop differ from those in the model",
        ),
    ],
)
def test_model_whose_names_differ_from_the_log_is_rejected(
    log: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / "model.npz"
    write_file(path, N_FEATURES, create("late-ucb", N_CLASSES, N_FEATURES).state(), **settings)
    assert message in " ".join(failure(capsys, [*log, "--policy", f"model:{path}"]).split())


def test_model_with_the_same_names_as_the_log_is_evaluated(
    log: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.npz"
    same = {"class_names": list("abcd"), "features": plain_encoder("x0", "x1", "x2", "x3", "x4")}
    write_file(path, N_FEATURES, create("late-ucb", N_CLASSES, N_FEATURES).state(), **same)
    assert last_line(capsys, [*log, "--policy", f"model:{path}"])["policies"][0]["policy"] == f"model:{path}"


def test_model_of_another_size_is_rejected(log: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.npz"
    write_file(path, 7, create("late-ucb", N_CLASSES, 7).state())
    assert "has 4 classes and 7 features, but shop has 4 and 5" in " ".join(
        failure(capsys, [*log, "--policy", f"model:{path}"]).split()
    )


def test_text_output_has_a_table_and_flags(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*log, "--policy", "late-ucb"])
    shown = capsys.readouterr().out
    assert "shop: 1,200 events, 1,100 with an action and an outcome" in shown
    assert "clipped-ips" in shown
    assert "feedback with logged delays, or without delay if none is logged" in shown
    assert "outcome-missing: 100 of 1,200 events have no outcome" in shown


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--policy", "perceptron"], "perceptron cannot be evaluated"),
        (["--policy", "constant:z"], "got 'z'"),
        (["--policy", "uniform", "--propensity-min", "0"], "--propensity-min: expected a number in (0, 1]; got 0.0"),
        (["--policy", "uniform", "--confidence", "1"], "--confidence: expected a number between 0 and 1"),
        (["--policy", "uniform", "--clip", "-1"], "--clip: expected a number above 0; got -1.0"),
        (["--policy", "late-ucb", "--delay", "soon"], "delay 'soon'"),
        (["--policy", "model:nowhere.npz"], "nowhere.npz: expected a file written by `onebit model export`"),
    ],
)
def test_invalid_input_is_rejected_with_a_reason(
    log: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], text: str
) -> None:
    assert text in " ".join(failure(capsys, [*log, *flags]).split())


def test_skipped_rows_are_counted(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(log[2])
    path.write_text(path.read_text().replace("\nevent-7,", "\nevent-6,"))
    assert "event-6" in failure(capsys, [*log, "--policy", "uniform"])
    with pytest.raises(SystemExit) as ended:
        main([*log, "--policy", "uniform", "--on-bad-row", "skip", "--json"])
    captured = capsys.readouterr()
    assert ended.value.code == 0
    expected = "1 row of shop skipped: id: expected a unique id (at line 9; got 'event-6')"
    assert expected in " ".join(captured.err.split())
    assert orjson.loads(captured.out)["events"] == 1_199


def test_learner_ignores_feedback_after_the_end_of_the_log(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(log[2])
    path.write_text(path.read_text().replace(",1500,", ",,"))
    late = last_line(capsys, [*log, "--policy", "late-ucb:expand=none", "--delay", "fixed:2h"])
    soon = last_line(capsys, [*log, "--policy", "late-ucb:expand=none", "--delay", "fixed:1s"])
    learned = [
        next(one["value"] for one in found["policies"][0]["estimates"] if one["estimator"] == "snips")
        for found in (late, soon)
    ]
    assert np.diff(learned)[0] > 0.1


def test_report_flag_writes_an_html_page(log: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "shop.html"
    last_line(capsys, [*log, "--policy", "uniform", "--report", str(page)])
    assert "uniform on shop" in page.read_text()
    (tmp_path / "taken").mkdir()
    assert "cannot write" in failure(capsys, [*log, "--policy", "uniform", "--report", str(tmp_path / "taken")])
