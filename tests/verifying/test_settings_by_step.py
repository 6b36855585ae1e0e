"""Which settings were in force at which step, and what had passed by them."""

from dataclasses import replace

import pytest

from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings
from stream.verifying.settings_by_step import SettingsByStep
from tests.pipeline import small_task


def limits(retain_ms: int, orphan_ms: int, retained_max: int) -> TaskSettings:
    return small_task(join=JoinSettings(retain_ms=retain_ms, orphan_ms=orphan_ms, retained_max=retained_max))


A, B, C = limits(1_000, 100, 50), limits(10, 1, 60), limits(5_000, 500, 40)


STREAM_MS = {4: 2_000, 8: 3_000}
"""After the steps before the changes."""


def opened() -> SettingsByStep:
    """A at every step."""
    return SettingsByStep(A, STREAM_MS.__getitem__)


def three() -> SettingsByStep:
    """A up to step 4, B from step 5 and C from step 9 on."""
    found = opened()
    assert found.change(5, B) == ""
    assert found.change(9, C) == ""
    return found


def test_settings_of_a_step_are_those_of_the_last_change_before_it() -> None:
    found = three()
    assert [found.at(step) for step in (0, 1, 4, 5, 8, 9, 99)] == [A, A, A, B, B, C, C]
    assert (found.latest, found.settings_from) == (C, 9)
    assert (opened().latest, opened().settings_from) == (A, 1)


@pytest.mark.parametrize(
    ("since_ms", "step", "now_ms", "passed"),
    [
        (1_000, 4, 2_000, False),  # just not, by A
        (1_000, 4, 2_001, True),
        (1_500, 4, 2_400, False),
        (1_500, 5, 2_000, True),  # by B
        (1_995, 5, 2_005, False),
        (1_995, 5, 2_006, True),
        (999, 9, 3_000, True),  # by A, before there were the others
        (2_985, 9, 3_000, True),  # by B, before there was C
        (2_990, 9, 3_000, False),  # B ended when it had just not passed, and C has more patience
        (2_990, 9, 7_990, False),
        (2_990, 9, 7_991, True),
    ],
)
def test_what_has_passed_under_any_settings_stays_so(since_ms: int, step: int, now_ms: int, passed: bool) -> None:
    assert three().retain_passed(since_ms, step, now_ms) == passed


def test_orphans_wait_by_their_own_setting() -> None:
    assert [three().orphan_passed(2_000, 6, now_ms) for now_ms in (2_001, 2_002)] == [False, True]
    assert [three().orphan_passed(3_000, 9, now_ms) for now_ms in (3_500, 3_501)] == [False, True]


def test_limit_of_memory_holds_until_the_next_change() -> None:
    assert three().retained_max == 40
    assert three().retained_limits(1) == [(50, 5)]
    assert three().retained_limits(8) == [(50, 5), (60, 9)]
    assert three().retained_limits(9) == [(50, 5), (60, 9), (40, None)]
    assert opened().retained_limits(7) == [(50, None)]


def test_change_that_cannot_be_is_told() -> None:
    found = opened()
    assert "has seed = 0; got 3: this cannot change" in found.change(2, replace(A, seed=3))
