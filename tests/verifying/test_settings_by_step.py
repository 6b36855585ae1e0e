"""Which settings were in force at which step, and what had passed by them."""

from dataclasses import replace

import pytest

from stream.joining.join import JoinSettings
from stream.joining.task_settings import TaskSettings
from stream.recovery.journal import SettingsChange
from stream.verifying.settings_by_step import SettingsByStep
from stream.wire.records import Record
from tests.pipeline import small_task


def limits(retain_ms: int, orphan_ms: int, retained_max: int) -> TaskSettings:
    return small_task(join=JoinSettings(retain_ms=retain_ms, orphan_ms=orphan_ms, retained_max=retained_max))


A, B, C = limits(1_000, 100, 50), limits(10, 1, 60), limits(5_000, 500, 40)


def feedback(offset: int, append_ms: int) -> Record:
    return Record("feedback", 0, offset, append_ms, None, b"", ())


def three(feedback_end_ms: tuple[int, int] = (2_000, 3_000)) -> SettingsByStep:
    """A up to step 4, B from step 5 and C from step 9 on."""
    found = SettingsByStep(A)
    assert found.change(SettingsChange(5, B), 20, feedback_end_ms[0]) == ""
    assert found.change(SettingsChange(9, C), 30, feedback_end_ms[1]) == ""
    return found


def test_settings_of_a_step_are_those_of_the_last_change_before_it() -> None:
    found = three()
    assert [found.at(step) for step in (0, 1, 4, 5, 8, 9, 99)] == [A, A, A, B, B, C, C]
    assert (found.latest, found.settings_from) == (C, 9)
    assert (SettingsByStep(A).latest, SettingsByStep(A).settings_from) == (A, 0)


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


def test_time_before_a_change_is_that_of_its_feedback_too() -> None:
    found = three(feedback_end_ms=(-1, -1))
    assert not found.retain_passed(1_000, 9, 2_000)
    found.heard(feedback(20, 2_500))  # of step 5 or later
    found.heard(feedback(30, 2_600))
    assert not found.retain_passed(1_000, 5, 1_000)
    assert [found.retain_passed(since_ms, 9, 2_600) for since_ms in (2_489, 2_490)] == [True, False]
    found.heard(feedback(19, 2_100))
    assert [found.retain_passed(since_ms, 5, 2_110) for since_ms in (1_099, 2_100)] == [True, False]
    found.heard(feedback(19, 1_000))  # time does not go back
    assert found.retain_passed(1_099, 9, 1_100)


def test_limit_of_memory_holds_until_the_next_change() -> None:
    assert three().retained_max == 40
    assert three().retained_limits(1) == [(50, 5)]
    assert three().retained_limits(8) == [(50, 5), (60, 9)]
    assert three().retained_limits(9) == [(50, 5), (60, 9), (40, None)]
    assert SettingsByStep(A).retained_limits(7) == [(50, None)]


def test_change_that_cannot_be_is_told() -> None:
    found = SettingsByStep(A)
    assert "has seed = 0; got 3: this cannot change" in found.change(SettingsChange(2, replace(A, seed=3)), 0, 0)
