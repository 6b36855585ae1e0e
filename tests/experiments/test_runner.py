from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from onebit.experiments.definition import Conditions, Experiment, ExperimentError, read_experiment, shipped
from onebit.experiments.measure import Job, Row
from onebit.experiments.opponents import OPPONENTS
from onebit.experiments.plan import check_learners
from onebit.experiments.rows import read_rows
from onebit.experiments.runner import ROWS_FILE, ExperimentProgress, rows_of, run_experiment
from onebit.experiments.sets import Sets
from stream.learners import registered

ACCEPTED = {name: frozenset(p.name for p in cls.parameters) for name, cls in registered().items()} | OPPONENTS


def sweep(name: str = "one", **fields: Any) -> dict[str, Any]:
    learners = [{"learner": "banditron", "parameters": {"gamma": [0.1, 0.2]}}, {"learner": "perceptron"}]
    return {"name": name, "data": ["linear-models"], "events": 200, "seeds": 2, "learners": learners, **fields}


def experiment(*sweeps: dict[str, Any], **fields: Any) -> Experiment:
    return Experiment.model_validate({"name": "x", "title": "X", "about": "", "sweeps": list(sweeps), **fields})


def run(one: Experiment, folder: Path, jobs: int = 1, **given: Any) -> Sequence[Any]:
    return run_experiment(one, Sets(one.sets, None), folder, jobs, **given)


def figures(row: Row) -> tuple[Any, ...]:
    return row._replace(seconds=0.0)


def test_each_combination_of_parameters_conditions_and_seeds_has_a_row(tmp_path: Path) -> None:
    run(experiment(sweep(conditions={"delay": [0, 5]})), tmp_path)
    rows = read_rows(tmp_path / ROWS_FILE)
    assert len({row.key for row in rows}) == len(rows) == 2 * 2 * 3
    assert {row.parameters for row in rows} == {'{"gamma": 0.1}', '{"gamma": 0.2}', "{}"}
    assert {row.conditions for row in rows} == {"{}", '{"delay": 5}'}
    assert all(row.events == row.matched == row.curve_events[-1] == 200 for row in rows)
    assert all(row.curve_mistakes[-1] == round(200 * row.error) and row.numpy for row in rows)


@pytest.mark.slow
def test_parallel_and_sequential_runs_have_the_same_rows(tmp_path: Path) -> None:
    one = experiment(sweep())
    run(one, tmp_path / "one")
    run(one, tmp_path / "two", jobs=2)
    alone, together = (read_rows(tmp_path / name / ROWS_FILE) for name in ("one", "two"))
    assert sorted(map(figures, together)) == sorted(map(figures, alone))


def test_interrupted_run_resumes_without_repeating_rows(tmp_path: Path) -> None:
    one = experiment(sweep())

    def stop(far: ExperimentProgress) -> None:
        if far.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(one, tmp_path, progress=stop)
    before = read_rows(tmp_path / ROWS_FILE)
    assert len(before) == 4
    made: list[Job | None] = []
    run(one, tmp_path, progress=lambda far: made.append(far.job))
    assert len(made) == 1 + 2, "expected a report at the start and one per run"
    assert read_rows(tmp_path / ROWS_FILE)[:4] == before


def test_missing_data_set_is_skipped_and_reported_with_its_source(tmp_path: Path) -> None:
    one = experiment(sweep(data=["reuters4", "linear-models"]))
    reported = Sets({}, tmp_path).missing(one)
    assert list(reported) == ["reuters4"]
    assert "reuters4.svm.gz does not exist. Source: RCV1-v2" in reported["reuters4"]
    assert "Conversion: keep the documents" in reported["reuters4"]
    run(one, tmp_path)
    assert {row.data for row in read_rows(tmp_path / ROWS_FILE)} == {"linear-models"}


def test_users_data_set_is_read_from_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.svm").write_text("0 1:1\n1 2:1\n" * 20)
    own = {"mine": {"file": "mine.svm", "n_features": 2, "title": "mine", "get": "it is mine"}}
    one = experiment(sweep(data=["mine"], events=None), sets=own)
    assert run_experiment(one, Sets(one.sets, tmp_path), tmp_path, 1) == []
    assert {(row.data, row.events) for row in read_rows(tmp_path / ROWS_FILE)} == {("mine", 40)}


def test_unsupported_run_is_skipped_and_reported_with_the_reason(tmp_path: Path) -> None:
    raised = run(experiment(sweep(conditions={"window": 5, "on_expiry": "negative"})), tmp_path)
    assert {one.job.learner for one in raised} == {"perceptron"}
    assert "perceptron learns from labels" in raised[0].reason
    assert {row.learner for row in read_rows(tmp_path / ROWS_FILE)} == {"banditron"}


def test_best_parameters_of_an_earlier_sweep_are_used(tmp_path: Path) -> None:
    tuned = sweep("tuned", evaluate="split", events=None, seeds=1)
    one = experiment(tuned, sweep("folds", evaluate="folds", best_of="tuned", seeds=1))
    run(one, tmp_path)
    rows = rows_of(one, read_rows(tmp_path / ROWS_FILE))
    by_parameter = {row.parameters: row.error for row in rows["tuned"] if row.learner == "banditron"}
    best = min(by_parameter, key=lambda parameters: by_parameter[parameters])
    assert {row.parameters for row in rows["folds"] if row.learner == "banditron"} == {best}
    assert sorted(row.fold for row in rows["folds"] if row.learner == "banditron") == list(range(10))


def test_selected_sweep_is_preceded_by_the_sweep_that_provides_its_parameters(tmp_path: Path) -> None:
    chain = (sweep("tuned", seeds=1), sweep("other", seeds=1), sweep("then", best_of="tuned", seeds=1))
    run(experiment(*chain), tmp_path, only=["then"])
    assert list(dict.fromkeys(row.sweep for row in read_rows(tmp_path / ROWS_FILE))) == ["tuned", "then"]


def test_best_parameters_do_not_include_values_removed_from_the_experiment(tmp_path: Path) -> None:
    def of(gamma: float) -> Experiment:
        learners = [{"learner": "banditron", "parameters": {"gamma": gamma}}]
        tuned = sweep("tuned", evaluate="split", seeds=1, learners=learners)
        return experiment(tuned, sweep("then", best_of="tuned", seeds=1, learners=learners))

    run(of(1.0), tmp_path)
    run(of(0.01), tmp_path)
    found = rows_of(of(0.01), read_rows(tmp_path / ROWS_FILE))
    errors = {row.parameters: row.error for row in read_rows(tmp_path / ROWS_FILE) if row.sweep == "tuned"}
    assert errors['{"gamma": 1.0}'] < errors['{"gamma": 0.01}'], "the removed value must be the best"
    assert [row.parameters for row in found["then"]] == ['{"gamma": 0.01}']


def test_error_increases_if_the_state_is_lost_or_partitioned(tmp_path: Path) -> None:
    conditions = ({"partitions": [1, 8]}, {"forget_every": [0, 50]})
    learner = [{"learner": "perceptron"}]
    one = experiment(*(sweep(str(n), events=1_000, learners=learner, conditions=c) for n, c in enumerate(conditions)))
    run(one, tmp_path)
    for rows in rows_of(one, read_rows(tmp_path / ROWS_FILE)).values():
        whole, parted = (
            [row.error for row in rows if (row.conditions == "{}") == is_whole] for is_whole in (True, False)
        )
        assert len(whole) == len(parted) == 2
        assert max(whole) < min(parted)


def test_error_with_a_shared_model_grows_with_lag(tmp_path: Path) -> None:
    learner = [{"learner": "perceptron"}]
    shared = {"model": "shared", "partitions": 8, "lag": [1, 500]}
    one = experiment(
        sweep("alone", events=1_000, learners=learner),
        sweep("shared", events=1_000, learners=learner, conditions=shared),
    )
    run(one, tmp_path)
    rows = rows_of(one, read_rows(tmp_path / ROWS_FILE))
    alone = [row.error for row in rows["alone"]]
    assert [row.error for row in rows["shared"] if "lag" not in row.conditions] == alone
    assert max(alone) < min(row.error for row in rows["shared"] if "lag" in row.conditions)


def test_key_of_a_row_does_not_change_if_a_new_condition_has_its_default() -> None:
    assert Job(sweep="a", data="b", learner="c", title="d").key == "c0d2df0fef30d41ed1a7bc8a"
    assert Conditions.model_validate({"model": "shared"}).known_by["model"] == "shared"


@pytest.mark.parametrize("conditions", [{"lag": 2}, {"outage": 2}, {"model": "shared", "forget_every": 9}], ids=str)
def test_contradictory_conditions_are_rejected(conditions: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        experiment(sweep(conditions=conditions))


def test_rows_of_an_earlier_definition_are_kept_but_ignored(tmp_path: Path) -> None:
    run(experiment(sweep()), tmp_path)
    changed = experiment(sweep(learners=[{"learner": "perceptron"}]))
    assert {row.learner for row in rows_of(changed, read_rows(tmp_path / ROWS_FILE))["one"]} == {"perceptron"}
    run(changed, tmp_path)
    assert len(read_rows(tmp_path / ROWS_FILE)) == 6


def test_file_without_rows_is_rejected(tmp_path: Path) -> None:
    (tmp_path / ROWS_FILE).write_text("rows")
    with pytest.raises(ExperimentError):
        read_rows(tmp_path / ROWS_FILE)


@pytest.mark.parametrize("name", shipped())
def test_shipped_experiments_use_existing_learners_and_data_sets(name: str) -> None:
    one = read_experiment(shipped()[name])
    check_learners(one, ACCEPTED)
    assert Sets(one.sets, None).missing(one) is not None
    assert one.figures or one.tables


@pytest.mark.parametrize(
    "text",
    [
        "title = ",
        'title = "x"\nabout = ""\nsweep = []',
        'title = "x"\nabout = ""\nsweeps = [{name = "a", data = [], learners = [], conditions = {dely = 1}}]',
        'title = "x"\nabout = ""\nsweeps = [{name = "a", data = [], learners = [], best_of = "b"}]',
    ],
    ids=["not TOML", "misspelled table", "misspelled condition", "unknown sweep"],
)
def test_invalid_experiment_definition_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ExperimentError):
        read_experiment(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    "learner", [{"learner": "sobba"}, {"learner": "soba", "parameters": {"gama": 1}}], ids=["learner", "parameter"]
)
def test_unknown_learners_and_parameters_are_rejected_before_the_run(learner: dict[str, Any]) -> None:
    with pytest.raises(ExperimentError):
        check_learners(experiment(sweep(learners=[learner])), ACCEPTED)


def test_unknown_data_set_is_rejected() -> None:
    with pytest.raises(ExperimentError):
        Sets({}, None).missing(experiment(sweep(data=["reuters5"])))
