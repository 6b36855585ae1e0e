"""`onebit learners`: each learner's description and measured cost, and the learner that `auto` selects."""

import json
from pathlib import Path

import pytest

from onebit import learner_costs
from stream.errors import ExitCode
from stream.learners import registered
from stream.learners.auto import choose
from tests.cli.conftest import Onebit


def test_costs_are_measured_on_data_and_the_auto_choice_is_marked(onebit: Onebit) -> None:
    ended = onebit("learners", "late-ucb", "perceptron", "--data", "optdigits", "--json")
    late_ucb, perceptron = json.loads(ended.out)

    assert [late_ucb["name"], perceptron["name"]] == ["late-ucb", "perceptron"]
    assert 0.1 < perceptron["us_per_event"] < late_ucb["us_per_event"] < 1e5
    assert (late_ucb["auto"], perceptron["auto"]) == (choose(10, 64, 33).why, None)


def test_text_output_has_times_and_the_auto_choice(onebit: Onebit) -> None:
    reported = " ".join(onebit("learners", "perceptron", "--data", "optdigits").out.split())

    assert " µs, state 5 kB" in reported
    assert "auto selects late-ucb: 64 features, 33 of them non-zero on average: few and dense" in reported
    assert "flops" not in reported


def test_costs_are_measured_on_a_log_with_a_mapping_from_a_variable(
    onebit: Onebit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "clicks.csv"
    log.write_text("shown,price,clicked\n" + "left,0.5,1\nright,0.25,0\n" * 20)
    monkeypatch.setenv("ONEBIT_MAP", "action=shown,reward=clicked,numeric=price")
    ended = onebit("learners", "banditron", "perceptron", "--data", str(log), "--json")
    banditron, perceptron = json.loads(ended.out)
    assert banditron["us_per_event"] > 0.0
    assert banditron["cost"]["state_bytes"] == registered()["banditron"].cost(2, 1, 1, {}).state_bytes
    assert "true classes" in perceptron["unmeasured"]


def test_progress_of_the_measurements_is_printed(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_costs, "NOTICE_INTERVAL_MS", 0)
    names = ("perceptron", "banditron", "late-ucb")
    reported = onebit("learners", *names, "--data", "optdigits").err
    lines = [line.split(maxsplit=1)[1] for line in reported.splitlines()]
    assert "auto selects" in lines[0]  # before the measurements
    assert lines[2:] == ["1 of 3 measured", "2 of 3 measured"]
    assert "measured" not in onebit("learners", *names).err


def test_operations_are_counted_if_no_data_is_given(onebit: Onebit) -> None:
    (perceptron,) = json.loads(onebit("learners", "perceptron", "--nnz", "10", "--json").out)
    reported = " ".join(onebit("learners", "perceptron", "--nnz", "10").out.split())

    assert perceptron["us_per_event"] is None
    assert f"{perceptron['cost']['flops_per_event']:,} flops" in reported
    assert "auto selects stack-igw: 400 features, 10 of them non-zero on average: sparse" in reported
    assert "auto selects late-ucb: 400 features: few" in reported


def test_parameters_chosen_by_auto_are_printed_and_used_for_costs(onebit: Onebit) -> None:
    reported = " ".join(onebit("learners", "late-ucb", "--n-features", "784", "--nnz", "150").out.split())
    (fields,) = json.loads(onebit("learners", "late-ucb", "--n-features", "784", "--nnz", "150", "--json").out)

    assert "auto selects late-ucb, project=256: 784 features, 150 of them non-zero on average: many" in reported
    assert fields["cost"]["state_bytes"] < 9 * 784 * 784 * 8


def test_every_learner_is_listed_with_its_best_use(onebit: Onebit) -> None:
    fields = json.loads(onebit("learners", "--json").out)
    best = {one["name"]: one["best_for"] for one in fields if one["best_for"]}
    reported = " ".join(onebit("learners").out.split())

    assert [one["name"] for one in fields] == list(registered())
    assert {"late-ucb", "stack-igw", "igw-logistic", "perceptron"} <= best.keys()
    assert [name for name, text in best.items() if f"best for {text}" not in reported] == []


def test_time_of_a_slow_learner_is_estimated(onebit: Onebit) -> None:
    (newtron,) = json.loads(onebit("learners", "newtron", "--data", "synsep", "--json").out)

    assert newtron["us_per_event"] is None
    assert newtron["unmeasured"].startswith("not measured: about ")


def test_large_state_is_not_allocated_for_the_measurement(onebit: Onebit, tmp_path: Path) -> None:
    (tmp_path / "wide.svm").write_text("0 1:1 2:1\n1 1:1 3:1\n0 2:1\n")
    reported = onebit("learners", "late-ucb", "--data", str(tmp_path / "wide.svm"), "--n-features", "9000").out

    assert "not measured: state larger than 512 MB" in " ".join(reported.split())


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (("--data", "optdigits", "--nnz", "3"), "--data optdigits "),
        (("--data", "optdigits", "--n-classes", "3"), "--n-classes"),
        (("late-ubc",), "unknown learner 'late-ubc'; did you mean late-ucb? available: arow, "),
        (("zzz",), "unknown learner 'zzz'; available: "),
        (("--data", "optdigit"), "did you mean optdigits"),
    ],
)
def test_contradictory_flags_are_rejected(flags: tuple[str, ...], reported: str, onebit: Onebit) -> None:
    ended = onebit("learners", *flags)

    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert reported in " ".join(ended.err.split())
