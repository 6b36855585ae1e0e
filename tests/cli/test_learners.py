"""`onebit learners`: the description and measured cost of each learner, and the selection by auto."""

import json
from pathlib import Path

import pytest

from stream.app import learners
from stream.errors import ExitCode
from stream.learners import registered
from stream.learners.auto import choose
from tests.cli.conftest import Onebit


def test_with_data_the_costs_are_measured_and_auto_takes_one_of_them(onebit: Onebit) -> None:
    ended = onebit("learners", "late-ucb", "perceptron", "--data", "optdigits", "--json")
    late_ucb, perceptron = json.loads(ended.out)

    assert [late_ucb["name"], perceptron["name"]] == ["late-ucb", "perceptron"]
    assert 0.1 < perceptron["us_per_event"] < late_ucb["us_per_event"] < 1e5
    assert (late_ucb["auto"], perceptron["auto"]) == (choose(10, 64, 33).why, None)


def test_people_are_told_the_time_and_what_auto_takes(onebit: Onebit) -> None:
    reported = " ".join(onebit("learners", "perceptron", "--data", "optdigits").out.split())

    assert " µs, state 5 kB" in reported
    assert "auto selects late-ucb: 64 features, 33 of them non-zero on average, are few and dense" in reported
    assert "flops" not in reported


def test_a_log_is_measured_on_by_its_mapping(onebit: Onebit, tmp_path: Path) -> None:
    log = tmp_path / "clicks.csv"
    log.write_text("shown,price,clicked\n" + "left,0.5,1\nright,0.25,0\n" * 20)
    by = "action=shown,reward=clicked,numeric=price"
    ended = onebit("learners", "banditron", "perceptron", "--data", str(log), "--map", by, "--json")
    banditron, perceptron = json.loads(ended.out)
    assert banditron["us_per_event"] > 0.0
    assert banditron["cost"]["state_bytes"] == registered()["banditron"].cost(2, 1, 1, {}).state_bytes
    assert "true classes" in perceptron["unmeasured"]


def test_people_are_told_how_far_the_measuring_is(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "NOTICE_INTERVAL_MS", 0)
    names = ("perceptron", "banditron", "late-ucb")
    reported = onebit("learners", *names, "--data", "optdigits").err
    assert [line.split(maxsplit=1)[1] for line in reported.splitlines()[1:]] == ["1 of 3 measured", "2 of 3 measured"]
    assert "measured" not in onebit("learners", *names).err


def test_for_a_size_alone_operations_are_counted(onebit: Onebit) -> None:
    (perceptron,) = json.loads(onebit("learners", "perceptron", "--nnz", "10", "--json").out)
    reported = " ".join(onebit("learners", "perceptron", "--nnz", "10").out.split())

    assert perceptron["us_per_event"] is None
    assert f"{perceptron['cost']['flops_per_event']:,} flops" in reported
    assert "auto selects stack-igw: 400 features, 10 of them non-zero on average, are sparse" in reported
    assert "auto selects late-ucb: 400 features are few" in reported


def test_the_parameters_that_auto_gives_are_told_and_measured(onebit: Onebit) -> None:
    reported = " ".join(onebit("learners", "late-ucb", "--n-features", "784", "--nnz", "150").out.split())
    (fields,) = json.loads(onebit("learners", "late-ucb", "--n-features", "784", "--nnz", "150", "--json").out)

    assert "auto selects late-ucb, project=256: 784 features, 150 of them non-zero on average, are many" in reported
    assert fields["cost"]["state_bytes"] < 9 * 784 * 784 * 8


def test_every_learner_is_told_and_those_that_are_best_for_something_say_so(onebit: Onebit) -> None:
    fields = json.loads(onebit("learners", "--json").out)
    best = {one["name"]: one["best_for"] for one in fields if one["best_for"]}
    reported = " ".join(onebit("learners").out.split())

    assert [one["name"] for one in fields] == list(registered())
    assert {"late-ucb", "stack-igw", "igw-logistic", "perceptron"} <= best.keys()
    assert [name for name, text in best.items() if f"best for {text}" not in reported] == []


def test_what_takes_too_long_is_estimated(onebit: Onebit) -> None:
    (newtron,) = json.loads(onebit("learners", "newtron", "--data", "synsep", "--json").out)

    assert newtron["us_per_event"] is None
    assert newtron["unmeasured"].startswith("not measured: about ")


def test_a_large_state_is_not_made_to_be_measured(onebit: Onebit, tmp_path: Path) -> None:
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
def test_what_contradicts_itself_is_refused(flags: tuple[str, ...], reported: str, onebit: Onebit) -> None:
    ended = onebit("learners", *flags)

    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert reported in " ".join(ended.err.split())
