"""The simulation itself: a seed always produces the same run, and no seed in a campaign fails."""

import os
import subprocess
import sys
from unittest.mock import patch

import pytest

from onebit.simulation.campaign import (
    COVERED_FROM_SEEDS,
    Campaign,
    Result,
    examine,
    expected_coverage,
    parse_ranges,
    ranges,
    run_seed,
    run_seeds,
    shrink,
)
from onebit.simulation.random_schedule import draw_schedule
from onebit.simulation.schedule import (
    ENVIRONMENT,
    OTHER_FAULTS,
    SHARED_FAULTS,
    TIMED_FAULTS,
    TIMELESS_FAULTS,
    ItemKind,
    Schedule,
)
from stream.randomness.draws import Luck
from stream.task.join import Join
from stream.task.join_table import State
from stream.task.settings import Sharing

SEEDS = {"own": 250, "shared": 240}
"""Number of seeds per kind of model. Every type of event occurs within the first 200 (own) or 180 (shared) seeds."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", ["own", "shared"])
def test_no_seed_fails_and_every_type_of_event_occurs(model: Sharing) -> None:
    campaign = Campaign(model)
    for result in run_seeds(range(SEEDS[model]), jobs=os.cpu_count() or 1, model=model):
        campaign.add(result)
    assert [(failure.seed, failure.wrong) for failure in campaign.failures] == []
    assert campaign.seeds == SEEDS[model]
    assert 0.4 < campaign.timeless / campaign.seeds < 0.6
    assert set(expected_coverage(model)) <= {name for name, times in campaign.coverage.items() if times}


@pytest.mark.slow
def test_seed_is_reproducible_in_another_process() -> None:
    code = (
        "from onebit.simulation.campaign import examine;"
        "from onebit.simulation.random_schedule import draw_schedule;"
        "from onebit.simulation.tracing import trace_digest;"
        "print(*(trace_digest(examine(draw_schedule(seed))[1].lines) for seed in range(5)))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0].split())) == 5


def test_every_kind_of_scheduled_item_is_either_an_input_or_a_fault() -> None:
    faults = {*TIMED_FAULTS, *SHARED_FAULTS, *OTHER_FAULTS}
    assert ENVIRONMENT.isdisjoint(faults)
    assert ENVIRONMENT | faults == set(ItemKind)
    assert set(TIMELESS_FAULTS) < set(TIMED_FAULTS)


def test_faults_have_no_duration_in_a_run_without_time() -> None:
    schedules = [schedule for seed in range(200) if (schedule := draw_schedule(seed)).timeless]
    assert {item.for_ms for schedule in schedules for item in schedule.items} == {0}
    assert all(item.polls for schedule in schedules for item in schedule.items)


def test_trace_contains_timed_inputs_and_faults() -> None:
    crashing = [s for s in map(draw_schedule, range(50)) if any(i.kind is ItemKind.CRASH_IN_COMMIT for i in s.items)]
    traces = (examine(schedule)[1].lines for schedule in crashing)  # a run can end before a scheduled crash
    lines = next(lines for lines in traces if any(line.what == "is dead" for line in lines))
    times = [line.at_ms for line in lines]
    assert times == sorted(times)
    assert any(line.what.startswith("context e") for line in lines)
    assert any(line.what.startswith("FAULT crash") for line in lines)


receive_duplicate = Join.receive_duplicate


def counts_duplicates_twice(join: Join, event_id: str) -> None:
    receive_duplicate(join, event_id)
    if join.state_of(event_id) in (State.PENDING, State.MATCHED, State.EXPIRED):
        receive_duplicate(join, event_id)


def has_no_change(schedule: Schedule) -> bool:
    return all(item.kind is not ItemKind.CHANGE for item in schedule.items)


def test_failing_schedule_is_reduced_to_the_necessary_items() -> None:
    with patch.object(Join, "receive_duplicate", counts_duplicates_twice):
        schedule = next(
            one for one in map(draw_schedule, range(100)) if has_no_change(one) and run_seed(one.seed).wrong
        )
        kept = shrink(schedule)
        assert examine(schedule.only(kept))[0] != []
    assert sorted(schedule.items[index].kind for index in kept) == [ItemKind.CONTEXT, ItemKind.CONTEXT_AGAIN]
    assert examine(schedule.only(kept))[0] == []  # without the bug, the schedule passes


@pytest.mark.parametrize("indices", [[0], [0, 1], [3, 5, 6, 7, 11], [0, 2, 4]])
def test_formatted_ranges_of_indices_can_be_parsed(indices: list[int]) -> None:
    assert parse_ranges(ranges(indices)) == indices


def test_campaign_fails_if_an_event_type_does_not_occur_within_many_seeds() -> None:
    campaign = Campaign()
    name = expected_coverage()[-1]
    for seed in range(COVERED_FROM_SEEDS):
        result = run_seed(seed, events=1) if seed == 0 else Result(seed, (), campaign.coverage, False)
        campaign.seeds += 1
        campaign.coverage.update({other: 1 for other in expected_coverage() if other != name})
        assert result.wrong == ()
        if seed < COVERED_FROM_SEEDS - 1:
            assert campaign.ok
    assert campaign.never_occurred() == [name]
    assert not campaign.ok


def test_simulation_draws_are_uniform() -> None:
    rng = Luck(7)
    counts = [0] * 6
    for _ in range(6_000):
        counts[rng.below(6)] += 1
    assert min(counts) > 850
    assert max(counts) < 1_150
