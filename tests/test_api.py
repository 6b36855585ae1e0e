"""The Python API (`import onebit`): one test for each claim in docs/python.md."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from msgspec import to_builtins

import onebit
from producers.datasets import named
from stream.reporting.runs import read_runs

OFFERS = Path(__file__).parents[1] / "producers" / "datasets" / "files"
HEAVY = {"numpy", "numba", "scipy", "pyarrow", "matplotlib", "pydantic", "rich", "typer", "stream", "stream.programs"}


@pytest.fixture(scope="module")
def report() -> onebit.RunReport:
    return onebit.run("optdigits", learners=["banditron", "perceptron"], events=300, delay="fixed:1s", loss=0.1, seed=1)


@pytest.mark.slow
def test_import_loads_no_heavy_modules() -> None:
    code = f"import onebit, sys; print(sorted({HEAVY} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_exists_and_is_documented() -> None:
    assert [name for name in onebit.__all__ if getattr(onebit, name) is None] == []
    assert set(onebit.__all__) <= set(dir(onebit))
    with pytest.raises(AttributeError):
        onebit.nothing  # noqa: B018


def test_package_has_type_information() -> None:
    assert (Path(onebit.__file__).parent / "py.typed").exists()


def test_report_contains_one_run_per_learner(report: onebit.RunReport) -> None:
    run = report["banditron"]
    assert report.keys() == ["banditron", "perceptron"]
    assert run.curve.events.dtype == np.int64
    assert (run.curve.events[-1], run.curve.error[-1]) == (300, run.error)
    assert np.isnan(run.curve.window_error[0])
    with pytest.raises(KeyError, match="'banditron', 'perceptron'"):
        report["late-ucb"]


def test_run_with_a_holdout_compares_it_with_the_learner() -> None:
    run = onebit.run("optdigits", learners="banditron", events=60, delay="fixed:1s", holdout=0.5)["banditron"]
    assert run.holdout is not None
    assert run.holdout.learner.n + run.holdout.holdout.n == 60
    assert run.to_dict()["arms"] == to_builtins(run.holdout)


def test_report_ledger_is_the_sum_of_the_runs(report: onebit.RunReport) -> None:
    own = [run.ledger for run in report]
    assert report.ok
    assert [ledger.decided for ledger in own] == [300, 300]
    assert report.ledger == own[0] + own[1]


@pytest.mark.slow
def test_run_equals_the_command_line_and_is_reproducible(report: onebit.RunReport) -> None:
    again = onebit.run("optdigits", learners="banditron", events=300, delay="fixed:1s", loss=0.1, seed=1)
    flags = [
        "--learner", "banditron", "--events", "300", "--delay", "fixed:1s", "--loss", "0.1", "--seed", "1",
        "--no-report", "--json"
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "onebit", "run", *flags], capture_output=True, text=True, check=True)
    digests = {run.to_dict()["state_sha256"] for run in (report["banditron"], again["banditron"])}
    assert digests == {orjson.loads(done.stdout)["state_sha256"]}


def test_report_can_be_converted_to_dicts_files_and_a_table(report: onebit.RunReport, tmp_path: Path) -> None:
    assert [orjson.loads(orjson.dumps(run))["learner"] for run in report.to_dicts()] == ["banditron", "perceptron"]
    for name in ("run.html", "run.json"):
        assert [run.learner for run in read_runs(report.save(tmp_path / name))] == ["banditron", "perceptron"]
    with pytest.raises(ValueError, match=r"expected the extension \.html or \.json"):
        report.save(tmp_path / "run.txt")
    assert report._repr_html_().count("<tr>") == len(repr(report).splitlines()) == 3


def test_parameters_can_be_given_per_learner() -> None:
    found = onebit.run("optdigits", learners={"banditron": {"gamma": 0.25}, "perceptron": {}}, events=20)
    assert found["banditron"].parameters["gamma"] == 0.25


def test_run_is_selected_by_learner_and_seed_if_there_are_several_seeds() -> None:
    found = onebit.run("optdigits", learners="banditron", events=20, seed=5, seeds=2)
    assert [run.seed for run in found] == [5, 6]
    assert found["banditron", 6].seed == 6
    with pytest.raises(KeyError, match=r"2 runs.*\['banditron', 5\]"):
        found["banditron"]


def test_run_calls_the_progress_callback() -> None:
    seen: list[onebit.Progress] = []
    onebit.run("optdigits", learners="banditron", events=50, progress=seen.append)
    assert (seen[-1].name, seen[-1].decided, seen[-1].pending, seen[-1].done) == ("banditron", 50, 0, 1.0)


@pytest.mark.slow
def test_run_prints_nothing() -> None:
    code = "import onebit; onebit.run('optdigits', learners='auto', events=20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_environment_variables_and_config_file_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONEBIT_EVENTS", "7")
    monkeypatch.chdir(tmp_path)
    Path("onebit.toml").write_text("window = '1s'\n")
    found = onebit.run("optdigits", learners="banditron", events=20)
    assert (found.ledger.decided, found["banditron"].changed) == (20, ("events", "learner"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"widow": "5s"}, "widow"), ({"window": "5 parsecs"}, "window"), ({"delay": "soon"}, "delay")],
)
def test_error_for_an_invalid_setting_has_the_name_and_the_exit_code(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(onebit.OnebitError, match=f"^{message}: ") as raised:
        onebit.run("optdigits", **settings)
    assert raised.value.exit_code is onebit.ExitCode.USAGE


def test_run_and_estimate_accept_the_same_mapping() -> None:
    given = {"data": OFFERS / "offers.csv.gz", "map": OFFERS / "offers.toml", "reward": "any"}
    run = onebit.run(**given, learners="late-ucb", play="logged", events=20)  # type: ignore[arg-type]
    assert run.ledger.decided == 20
    assert onebit.estimate(**given, policies=["logged"], resamples=50).events > 20  # type: ignore[arg-type]


SHOP = "label=city,numeric=age,categorical=device,action=shown,reward=right,propensity=p"


def shop() -> Any:
    """A log of decisions as a DataFrame."""
    rng = np.random.default_rng(1)
    age, shown = rng.normal(40.0, 9.0, 300), rng.choice(["berlin", "paris"], 300)
    city = np.where(age > 40.0, "berlin", "paris")
    columns = {"age": age, "device": rng.choice(["phone", "desk"], 300), "city": city, "shown": shown, "p": 0.5}
    return pd.DataFrame(columns | {"right": shown == city}, index=rng.permutation(300))


def test_run_and_estimate_of_a_dataframe_equal_those_of_the_same_parquet_file(tmp_path: Path) -> None:
    shop().to_parquet(path := tmp_path / "dataframe.parquet")
    runs = [onebit.run(data, map=SHOP, learners="banditron", seed=3, seeds=2) for data in (path, shop())]
    assert [run.to_dict()["state_sha256"] for run in runs[0]] == [run.to_dict()["state_sha256"] for run in runs[1]]
    assert (runs[1]["banditron", 3].data, runs[1]["banditron", 3].settings["data"]) == (
        "dataframe", "DataFrame (300 rows)",
    )  # fmt: skip
    policies = ["uniform", "banditron", "constant:paris"]
    estimates = [onebit.estimate(data, map=SHOP, policies=policies, resamples=50) for data in (path, shop())]
    assert estimates[0].to_dict() == estimates[1].to_dict()


def test_run_of_arrays_equals_that_of_the_data_set_with_these_rows() -> None:
    digits = named.load("optdigits")
    x = np.zeros((200, digits.n_features))
    for row in range(200):
        x[row, digits.row(row).x.indices] = digits.row(row).x.values
    y = [int(digits.class_names[digits.label(row)]) for row in range(200)]
    found = onebit.run((x, y), learners=["banditron", "late-ucb"], delay="fixed:1s")
    same = onebit.run(onebit.dense_dataset("arrays", x, y), learners=["banditron", "late-ucb"], delay="fixed:1s")
    assert [run["state_sha256"] for run in found.to_dicts()] == [run["state_sha256"] for run in same.to_dicts()]
    assert (found.ledger.decided, found["late-ucb"].classes, found["late-ucb"].data) == (400, 10, "arrays")


@pytest.mark.slow
def test_parallel_runs_of_data_in_memory_equal_single_runs() -> None:
    for data, by in ((shop(), SHOP), ((shop()[["age"]], shop()["city"]), None)):
        together, alone = (onebit.run(data, map=by, learners="banditron", seeds=2, jobs=jobs) for jobs in (2, 1))
        assert [run.to_dict()["state_sha256"] for run in together] == [run.to_dict()["state_sha256"] for run in alone]


@pytest.mark.parametrize("data", [shop(), (np.eye(2), [0, 1])], ids=["DataFrame", "arrays"])
def test_data_in_memory_are_rejected_for_a_run_on_kafka(data: Any) -> None:
    with pytest.raises(onebit.OnebitError) as raised:
        onebit.run(data, map=SHOP, kafka=True)
    assert raised.value.exit_code is onebit.ExitCode.USAGE


def test_estimate_has_a_row_for_each_policy_and_estimator(tmp_path: Path) -> None:
    given = {"map": OFFERS / "offers.toml", "policies": ["logged", "uniform"], "resamples": 50}
    found = onebit.estimate(OFFERS / "offers.csv.gz", reward="any", **given)  # type: ignore[arg-type]
    rows = found.to_dicts()
    assert [policy.policy for policy in found] == ["logged", "uniform"]
    assert {row["policy"] for row in rows} == {"logged", "uniform"}
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows if row["low"] is not None)
    assert found["uniform"].ess > 0
    assert found._repr_html_().count("<tr>") == len(rows) + 1
    assert found.save(tmp_path / "page.html").read_text().startswith("<!")


def test_embedded_pipeline_decides_and_learns_in_virtual_time() -> None:
    with onebit.embedded(n_classes=3, n_features=4, learner="late-ucb", window="5m") as pipeline:
        decision = pipeline.decide("visit-1", [0.3, 1.2, 0.1, 1.0])
        pipeline.feedback("visit-1", 1, after="30s")
        before = pipeline.ledger
        pipeline.advance("1m")
        assert (decision.scores.shape, 0 < decision.propensity <= 1) == ((3,), True)
        assert (before.pending, pipeline.ledger.matched, pipeline.now_ms) == (1, 1, 61_000)
        assert pipeline.example("visit-1")["delay_ms"] == 30_000


@pytest.mark.parametrize(
    ("context", "reason"),
    [({"x": [1.0]}, "x: expected 2 numbers"), ({"x": [1.0, 2.0], "eligible": [7]}, "eligible: expected indices")],
)
def test_embedded_pipeline_raises_the_reason_for_a_malformed_context(context: dict[str, Any], reason: str) -> None:
    with onebit.embedded(n_classes=2, n_features=2, learner="banditron") as pipeline:
        with pytest.raises(onebit.OnebitError, match=f"^{reason}"):
            pipeline.decide("visit-1", **context)
        assert pipeline.ledger.context_malformed == 1


@pytest.mark.parametrize(
    ("reward", "fields", "after"),
    [(0.5, {}, "0ms"), (2, {}, "0ms"), (-1, {}, "1s"), (1, {"action": 9}, "0ms"), (1, {"action": -1}, "1s"),
     (1, {"action": 0.5}, "0ms"), (1, {"label": 3}, "0ms"), (float("nan"), {}, "0ms")],
)  # fmt: skip
def test_embedded_pipeline_rejects_invalid_feedback(reward: int, fields: dict[str, Any], after: str) -> None:
    with onebit.embedded(n_classes=3, n_features=2, learner="banditron") as pipeline:
        pipeline.decide("a", [1.0, 0.0])
        with pytest.raises(onebit.OnebitError):
            pipeline.feedback("a", reward, after=after, **fields)
        assert pipeline.ledger.feedback == 0


@pytest.mark.parametrize("duration", [3, 1.5, None, "3"])
def test_embedded_pipeline_rejects_a_duration_without_a_unit(duration: Any) -> None:
    with onebit.embedded(n_classes=3, n_features=2, learner="banditron") as pipeline:
        with pytest.raises(onebit.OnebitError):
            pipeline.advance(duration)
        with pytest.raises(onebit.OnebitError):
            pipeline.feedback("a", 1, after=duration)


def test_embedded_feedback_is_delivered_in_time_order() -> None:
    with onebit.embedded(n_classes=2, n_features=1, learner="banditron", window="20s") as pipeline:
        for name, after in (("a", "30s"), ("b", "10s")):
            pipeline.decide(name, [1.0])
            pipeline.feedback(name, 1, after=after)
        pipeline.settle()
        assert (pipeline.ledger.matched, pipeline.ledger.late) == (1, 1)


def test_deferred_embedded_decision_becomes_pending_when_it_is_shown() -> None:
    settings: dict[str, Any] = {"window": "1m", "activation_window": "10s"}
    with onebit.embedded(n_classes=2, n_features=1, learner="banditron", **settings) as pipeline:
        for name in "ab":
            pipeline.decide(name, [1.0], deferred=True)
        pipeline.shown("a", after="5s")
        pipeline.feedback("a", 1, after="30s")
        pipeline.advance("20s")
        assert (pipeline.ledger.deferred, pipeline.ledger.pending, pipeline.ledger.unshown) == (0, 1, 1)
        pipeline.restart()
        pipeline.advance("20s")
        assert [pipeline.example(name)["outcome"] for name in "ab"] == ["matched", "unshown"]
        assert pipeline.example("a")["delay_ms"] == 25_000


def test_verify_reports_an_unresponsive_broker() -> None:
    with pytest.raises(onebit.OnebitError) as raised:
        onebit.verify(bootstrap="127.0.0.1:1", connect_timeout="0ms")
    assert raised.value.exit_code is onebit.ExitCode.UNAVAILABLE


def test_learner_works_without_a_pipeline() -> None:
    assert "late-ucb" in onebit.learners()
    learner = onebit.create("late-ucb", n_classes=3, n_features=4)
    x = np.array([1.0, 0.0, 0.5, 0.0])
    decision = learner.predict(x, u=0.5)
    learner.observe(x, decision)
    assert learner.update(x, decision, reward=1)


def test_notices_are_written_to_pythons_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="onebit"):
        onebit.run("optdigits", learners="auto", events=20)
    assert {(record.name, record.levelname) for record in caplog.records} == {("onebit", "INFO")}
