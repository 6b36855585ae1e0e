"""`onebit simulate`: its report, the trace for one seed, and invalid arguments."""

import orjson
import pytest

from onebit.cli.simulated import Runs
from onebit.simulation.schedule import EVENTS
from tests.cli.conftest import Onebit


def test_simulation_report_has_coverage_and_no_failures(onebit: Onebit) -> None:
    ended = onebit("simulate", "--seeds", "3", "--jobs", "1", "--json")
    assert ended.code == 0
    found = orjson.loads(ended.out)
    assert (found["ok"], found["seeds"], found["failures"]) == (True, 3, [])
    coverage = found["coverage"]
    sent = coverage["context"]["times"] + coverage["context in another producer's transaction"]["times"]
    assert (sent, coverage["context"]["seeds"]) == (60, 3)


def test_selected_schedule_items_of_a_seed_are_replayed_with_a_trace(onebit: Onebit) -> None:
    ended = onebit("simulate", "--seed", "3", "--only", "0-4", "--model", "shared")
    assert ended.code == 0
    assert "learner-1" in ended.out


def test_command_that_repeats_a_seed_contains_the_shared_model_flag() -> None:
    assert Runs(EVENTS, "shared").replay(3, "0-4") == "onebit simulate --seed 3 --trace --model shared --only 0-4"
    assert Runs(EVENTS, "own").replay(3) == "onebit simulate --seed 3 --trace"


@pytest.mark.parametrize("only", ["9999", "0-9999", "3-1", "0-2,7-5", "", "x", "-1", "1-x"])
def test_invalid_item_numbers_are_rejected(onebit: Onebit, only: str) -> None:
    ended = onebit("simulate", "--seed", "3", "--only", only)
    assert (ended.code, ended.out) == (2, "")
    assert "--only" in ended.err


def test_trace_is_printed_as_json(onebit: Onebit) -> None:
    ended = onebit("simulate", "--seed", "3", "--trace", "--json")
    found = orjson.loads(ended.out)
    assert (ended.code, found["ok"], found["seed"], found["wrong"]) == (0, True, 3, [])
    assert found["trace"][0].keys() == {"at_ms", "who", "what"}
