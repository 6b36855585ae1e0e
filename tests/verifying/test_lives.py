"""Each rule of the audit at its very edge: by hand-made evidence, where one millisecond or one offset decides."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from stream.randomness.draws import Purpose, uniform
from stream.task.join import JoinSettings
from stream.task.settings import TaskSettings
from stream.verifying.evidence import CONTEXTS, FEEDBACK, Evidence, Place, PredictionSeen, Settlement
from stream.verifying.lives import Judge
from stream.verifying.settings_by_step import SettingsByStep
from stream.wire.dead_letters import DEAD_LETTER_MISMATCHED, DEAD_LETTER_ORPHAN
from stream.wire.events import Example, Feedback, Logged, Outcome, Target
from tests.pipeline import small_task

WINDOW_MS, ORPHAN_MS, RETAIN_MS = 1_000, 500, 10_000  # of small_task


@dataclass
class Story:
    """What the topics of one partition say, in the order in which it is told; each kind has its own offsets.

    Decisions are dated by their contexts, or by the ticks that are told.
    """

    settings: TaskSettings = field(default_factory=lambda: small_task(dated_by="context"))
    change: tuple[int, TaskSettings] | None = None
    steps: list[tuple[int, int]] = field(default_factory=list)  # where each ended in the contexts and the feedback
    contexts: list[tuple[int, int, str | None, Logged | None]] = field(default_factory=list)
    feedback: list[tuple[int, int, Feedback | int | None]] = field(default_factory=list)
    predictions: list[PredictionSeen] = field(default_factory=list)
    examples: list[tuple[int, int, Example, int | None]] = field(default_factory=list)
    dead: list[tuple[int, int, int, str, int]] = field(default_factory=list)

    def decided(
        self,
        event_id: str,
        at_ms: int,
        action: int = 1,
        step: int = 1,
        logged: Logged | None = None,
        target: Target | None = None,
    ) -> None:
        offset = len(self.contexts)
        self.contexts.append((offset, at_ms, event_id, logged))
        self.predictions.append(PredictionSeen(event_id, offset, step, offset, action, 0.5, at_ms, target))

    def answered(self, event_id: str, at_ms: int, reward: int = 1, action: int | None = None) -> int:
        self.feedback.append((len(self.feedback), at_ms, Feedback(event_id, reward, action=action)))
        return len(self.feedback) - 1

    def tick(self, at_ms: int, of_step: int = 0) -> int:
        self.feedback.append((len(self.feedback), at_ms, of_step))
        return len(self.feedback) - 1

    def matched(self, event_id: str, delay_ms: int, by: int | None, settled_at_ms: int, **other: Any) -> None:
        step = other.pop("step", 1)
        example = Example(event_id, Outcome.MATCHED, 1, 0.5, 1, delay_ms, settled_at_ms)._replace(**other)
        self.examples.append((len(self.examples), step, example, by))

    def expired(self, event_id: str, settled_at_ms: int, step: int = 1, **other: Any) -> None:
        example = Example(event_id, Outcome.EXPIRED, 1, 0.5, None, None, settled_at_ms)._replace(**other)
        self.examples.append((len(self.examples), step, example, None))
        self.passed(settled_at_ms)

    def unmatched(self, event_id: str, settled_at_ms: int, passed: int | None = None, **other: Any) -> None:
        step = other.pop("step", 1)
        example = Example(event_id, Outcome.UNMATCHED, 1, 0.5, None, None, settled_at_ms)._replace(**other)
        self.examples.append((len(self.examples), step, example, passed))
        self.passed(settled_at_ms)

    def passed(self, stream_ms: int) -> None:
        """Let time pass by a tick, if it has not."""
        if all(append_ms < stream_ms for _, append_ms, _ in self.feedback):
            self.tick(stream_ms)

    def refused(self, of_feedback: int, kind: str, step: int = 1) -> None:
        self.dead.append((len(self.dead), FEEDBACK, of_feedback, kind, step))

    def evidence(self) -> Evidence:
        found = Evidence()
        for contexts_end, feedback_end in self.steps or [(len(self.contexts), len(self.feedback))]:
            found.add_step(contexts_end, feedback_end)
        found.add_predictions(self.predictions)
        found.add_contexts(self.contexts)
        found.add_feedback(self.feedback)
        if self.settings.dated_by == "context":
            found.date_by_contexts()
        found.add_examples(self.examples)
        found.add_dead_letters(self.dead)
        found.index_settlements()
        return found

    def judge(self, evidence: Evidence, fault: Callable[[str], None] = print) -> Judge:
        settings = SettingsByStep(self.settings, evidence.stream_ms)
        if self.change is not None:
            settings.change(*self.change)
        return Judge(evidence, settings, len(self.steps) or 1, fault)

    def judged(self) -> tuple[dict[str, int], list[str]]:
        """The counts that are not 0, and the faults."""
        faults: list[str] = []
        evidence = self.evidence()
        judge = self.judge(evidence, faults.append)
        for life in evidence.lives():
            judge.judge(life)
        evidence.close()
        return {name: number for name, number in judge.counts.items() if number}, faults


@pytest.mark.parametrize(("stream_ms", "is_overdue"), [(1_999, False), (2_000, False), (2_001, True)])
def test_decision_is_overdue_only_after_its_deadline(stream_ms: int, *, is_overdue: bool) -> None:
    story = Story()
    story.decided("a", 1_000)
    story.tick(stream_ms)
    counts, faults = story.judged()
    assert counts == {"contexts": 1, "decided": 1}
    assert faults == ([f"'a' is pending at {stream_ms} ms; its deadline was 2000 ms"] if is_overdue else [])


@pytest.mark.parametrize(("delay_ms", "is_wrong"), [(WINDOW_MS, False), (WINDOW_MS + 1, True)])
def test_feedback_matches_up_to_the_deadline_itself(delay_ms: int, *, is_wrong: bool) -> None:
    story = Story()
    story.decided("a", 1_000)
    story.matched("a", delay_ms, story.answered("a", 1_000 + delay_ms), 1_000 + delay_ms)
    counts, faults = story.judged()
    assert counts == {"contexts": 1, "decided": 1, "feedback": 1, "matched": 1}
    assert len(faults) == is_wrong


@pytest.mark.parametrize(("settled_at_ms", "is_wrong"), [(1_999, True), (2_000, True), (2_001, False)])
def test_decision_expires_after_its_deadline_and_not_at_it(settled_at_ms: int, *, is_wrong: bool) -> None:
    story = Story()
    story.decided("a", 1_000)
    story.expired("a", settled_at_ms)
    counts, faults = story.judged()
    assert counts == {"contexts": 1, "decided": 1, "expired": 1}
    assert len(faults) == is_wrong


@pytest.mark.parametrize(("decisions", "is_wrong"), [(2, True), (3, False)])
def test_decision_makes_room_before_its_deadline_only_when_more_are_pending_than_may_be(
    decisions: int, *, is_wrong: bool
) -> None:
    story = Story(small_task(dated_by="context", join=JoinSettings(window_ms=WINDOW_MS, orphan_ms=500, pending_max=2)))
    for number in range(decisions):
        story.decided(f"e{number}", 1_000, step=2)
    story.expired("e0", 1_000, step=2)
    _, faults = story.judged()
    assert len(faults) == is_wrong


def test_decisions_of_later_steps_made_no_room_and_those_of_earlier_ones_are_counted() -> None:
    story = Story(small_task(dated_by="context", join=JoinSettings(window_ms=WINDOW_MS, orphan_ms=500, pending_max=2)))
    for number, step in enumerate((2, 2, 5)):  # the steps 1, 3 and 4 have decided nothing
        story.decided(f"e{number}", 1_000, step=step)
    found = story.evidence()
    assert [found.predictions_up_to(step) for step in (-1, 0, 1, 2, 3, 4, 5, 6)] == [0, 0, 0, 2, 2, 2, 3, 3]
    story.expired("e0", 1_000, step=4)
    assert len(story.judged()[1]) == 1
    story.examples.clear()
    story.expired("e0", 1_000, step=5)
    assert story.judged()[1] == []


def test_examples_before_it_take_no_room() -> None:
    story = Story(small_task(dated_by="context", join=JoinSettings(window_ms=WINDOW_MS, orphan_ms=500, pending_max=2)))
    for number in range(4):
        story.decided(f"e{number}", 1_000, step=1)
    for number in range(2):
        story.matched(f"e{number}", 0, story.answered(f"e{number}", 1_000), 1_000)
    story.expired("e2", 1_000)
    assert len(story.judged()[1]) == 1  # only e2 and e3 were pending


@pytest.mark.parametrize(("at_ms", "is_wrong"), [(2_000, True), (2_001, False)])
def test_feedback_is_late_after_the_deadline_and_not_at_it(at_ms: int, *, is_wrong: bool) -> None:
    story = Story()
    story.decided("a", 1_000)
    story.answered("a", at_ms)
    story.expired("a", 2_001)
    counts, faults = story.judged()
    assert counts == {"contexts": 1, "decided": 1, "expired": 1, "feedback": 1, "late": 1}
    assert len(faults) == is_wrong


def test_feedback_in_time_is_late_all_the_same_when_its_decision_had_made_room() -> None:
    story = Story(small_task(dated_by="context", join=JoinSettings(window_ms=WINDOW_MS, orphan_ms=500, pending_max=1)))
    for name in "ab":
        story.decided(name, 1_000)
    story.expired("a", 1_000)
    story.answered("a", 1_500)
    counts, faults = story.judged()
    assert (counts["late"], faults) == (1, [])


@pytest.mark.parametrize(("at_ms", "waits"), [(1_000 + ORPHAN_MS, 1), (1_001 + ORPHAN_MS, 2)])
def test_second_feedback_is_a_duplicate_of_one_that_waits_as_long_as_that_does(at_ms: int, waits: int) -> None:
    story = Story()
    story.answered("a", 1_000, reward=1)
    story.answered("a", at_ms, reward=0)
    counts, faults = story.judged()
    duplicates = {} if waits == 2 else {"feedback_duplicates": 1, "conflicts": 1}
    assert (counts, faults) == ({"feedback": 2, "orphans_waiting": waits, **duplicates}, [])


@pytest.mark.parametrize(("at_ms", "is_forgotten"), [(1_000 + RETAIN_MS, False), (1_001 + RETAIN_MS, True)])
def test_settled_id_is_remembered_for_its_time_and_no_longer(at_ms: int, *, is_forgotten: bool) -> None:
    story = Story()
    story.decided("a", 1_000)
    story.matched("a", 0, story.answered("a", 1_000), 1_000)
    story.answered("a", at_ms)
    counts, faults = story.judged()
    assert counts.get("feedback_duplicates", 0) == (not is_forgotten)
    assert counts.get("orphans_waiting", 0) == is_forgotten
    assert faults == []


@pytest.mark.parametrize(("decided_at_ms", "is_wrong"), [(999, True), (1_000, True), (1_001, False)])
def test_feedback_is_an_orphan_only_before_its_decision(decided_at_ms: int, *, is_wrong: bool) -> None:
    """A context of the same time is applied before feedback."""
    story = Story()
    story.decided("a", decided_at_ms)
    story.refused(story.answered("a", 1_000), DEAD_LETTER_ORPHAN)
    counts, faults = story.judged()
    assert counts == {"contexts": 1, "decided": 1, "feedback": 1, "orphans_dropped": 1}
    assert faults == (["feedback at offset 0 was dropped as an orphan; 'a' was decided"] if is_wrong else [])


def test_feedback_of_a_step_is_applied_after_a_context_of_the_step_before_whatever_their_times() -> None:
    story = Story(steps=[(1, 0), (1, 1)])
    story.decided("a", 2_000)
    story.refused(story.answered("a", 1_000), DEAD_LETTER_ORPHAN)
    assert len(story.judged()[1]) == 1
    assert Story(steps=[(0, 1), (1, 1)], contexts=story.contexts, feedback=story.feedback, dead=story.dead,
                 predictions=story.predictions).judged()[1] == []  # fmt: skip


def test_refused_feedback_names_another_action_than_the_decision_that_it_came_to() -> None:
    story = Story()
    story.decided("a", 1_000, action=1)
    story.refused(story.answered("a", 1_100, action=2), DEAD_LETTER_MISMATCHED)
    assert story.judged() == ({"contexts": 1, "decided": 1, "feedback": 1, "mismatched": 1}, [])
    story.feedback[0] = (0, 1_100, Feedback("a", 1, action=1))
    assert len(story.judged()[1]) == 1


def test_orphan_that_is_refused_names_another_action_than_the_decision_that_came_to_it() -> None:
    story = Story()
    story.refused(story.answered("a", 1_000, action=2), DEAD_LETTER_MISMATCHED, step=2)
    story.steps = [(0, 1), (1, 1)]
    story.decided("a", 1_100, action=1, step=2)
    assert story.judged() == ({"contexts": 1, "decided": 1, "feedback": 1, "mismatched": 1}, [])
    story.predictions.clear()
    story.decided("a", 1_100, action=2, step=2)
    story.contexts.pop()
    story.predictions[0] = story.predictions[0]._replace(context_offset=0)
    assert story.judged()[1] == ["feedback at offset 0 was refused as of another action, 2; decided for 'a' was 2"]


def test_feedback_that_was_refused_although_nothing_was_decided_is_told() -> None:
    story = Story()
    story.refused(story.answered("a", 1_000, action=2), DEAD_LETTER_MISMATCHED)
    counts, faults = story.judged()
    assert counts == {"feedback": 1, "mismatched": 1}
    assert faults == ["feedback at offset 0 was refused as of another action, 2; decided for 'a' was nothing"]


def twice_decided(actions: tuple[int, int], named: int) -> Story:
    """An id that was forgotten and is decided again, and feedback for its second decision that was refused."""
    story = Story()
    again_ms = 1_001 + RETAIN_MS
    story.decided("a", 1_000, action=actions[0])
    story.matched("a", 0, story.answered("a", 1_000), 1_000, action=actions[0])
    story.decided("a", again_ms, action=actions[1])
    story.refused(story.answered("a", again_ms + 1, action=named), DEAD_LETTER_MISMATCHED)
    return story


def test_feedback_is_refused_by_the_action_of_the_decision_that_is_pending_and_not_by_an_earlier_one() -> None:
    counts, faults = twice_decided((1, 2), 1).judged()
    assert (counts["mismatched"], faults) == (1, [])
    assert len(twice_decided((1, 2), 2).judged()[1]) == 1
    assert len(twice_decided((2, 1), 1).judged()[1]) == 1


def test_duplicate_of_another_action_should_have_been_refused() -> None:
    story = Story()
    story.decided("a", 1_000)
    story.matched("a", 0, story.answered("a", 1_000), 1_000)
    story.answered("a", 1_100, action=2)
    counts, faults = story.judged()
    assert (counts["feedback_duplicates"], len(faults)) == (1, 1)


def test_step_of_a_record_is_the_one_that_ends_behind_it() -> None:
    evidence = Evidence()
    for ends in ((2, 1), (2, 1), (5, 4), (6, 4)):
        evidence.add_step(*ends)
    assert [evidence.step_of(CONTEXTS, offset) for offset in range(7)] == [1, 1, 3, 3, 3, 4, 5]
    assert [evidence.step_of(FEEDBACK, offset) for offset in range(5)] == [1, 3, 3, 3, 5]
    assert [evidence.feedback_end(step) for step in range(5)] == [0, 1, 1, 4, 4]
    evidence.close()


def test_inputs_merge_by_the_largest_time_so_far_of_a_step_where_a_clock_steps_back() -> None:
    story = Story(steps=[(2, 3), (3, 4)])
    for name, at_ms in (("a", 1_300), ("b", 1_200), ("c", 1_100)):
        story.decided(name, at_ms)
    for at_ms in (1_250, 1_350, 1_200, 1_150):
        story.answered("other", at_ms)
    found = story.evidence()
    lives = list(found.lives())
    places = [seen.place for life in lives for seen in life.contexts]
    places += [seen.place for life in lives for seen in life.feedback]
    assert [(place.input, place.offset) for place in sorted(places)] == [
        (FEEDBACK, 0), (CONTEXTS, 0), (CONTEXTS, 1), (FEEDBACK, 1), (FEEDBACK, 2), (CONTEXTS, 2), (FEEDBACK, 3)
    ]  # fmt: skip
    assert [found.stream_ms(step) for step in range(3)] == [0, 1_350, 1_350]
    found.close()


def ticked(*ticks: tuple[int, int], steps: int = 3) -> Story:
    """An event decided in each of some steps, of which each applies, after the first, the next of these ticks."""
    story = Story(small_task())
    for number in range(steps):
        story.decided(f"e{number + 1}", 1_000, step=number + 1)
    story.steps = [(number + 1, min(number, len(ticks))) for number in range(steps)]
    story.steps.append((steps, len(ticks)))
    for at_ms, of_step in ticks:
        story.tick(at_ms, of_step)
    return story


@pytest.mark.parametrize(
    ("ticks", "dates"),
    [
        ([(1_100, 1), (1_200, 2), (1_300, 3)], [1_100, 1_200, 1_300]),
        ([(1_100, 1), (1_150, 1), (1_200, 2)], [1_100, 1_200, None]),  # a second one of a step
        ([(1_100, 2), (1_200, 1), (1_300, 2)], [1_200, 1_300, None]),  # of a step that is not made yet
        ([(1_100, 0), (1_200, 4), (1_300, 9)], [None, None, None]),  # of none that ever wrote one
        ([(1_100, 1), (1_050, 2), (1_300, 3)], [1_100, 1_100, 1_300]),  # times do not go back
    ],
)
def test_decisions_of_a_step_are_dated_by_the_first_tick_that_names_it_and_is_applied_after_it(
    ticks: list[tuple[int, int]], dates: list[int | None]
) -> None:
    found = ticked(*ticks).evidence()
    dated = [prediction.dated for life in found.lives() for prediction in life.predictions]
    assert [one and one.ms for one in dated] == dates
    assert list(found.undated()) == [number + 1 for number, at_ms in enumerate(dates) if at_ms is None]
    found.close()


def test_decision_that_was_dated_before_one_of_an_earlier_step_may_wait_for_that() -> None:
    story = ticked((1_100, 0), (1_200, 0), (1_300, 2), (2_400, 1), (3_300, 0), (9_000, 0))
    found = story.evidence()
    dated = [prediction.dated for life in found.lives() for prediction in life.predictions if prediction.dated]
    assert [(one.ms, one.is_early) for one in dated] == [(2_400, False), (1_300, True)]
    assert story.judged()[1] == ["'e1' is pending at 9000 ms; its deadline was 3400 ms"]


def test_feedback_that_came_before_the_tick_has_no_delay() -> None:
    story = Story(small_task())
    story.decided("a", 1_000)
    story.steps = [(1, 0), (1, 3)]
    story.matched("a", 0, story.answered("a", 1_500), 1_500, step=2)
    story.tick(1_400, 1)
    assert story.judged()[1] == []
    story.feedback.reverse()
    story.feedback = [(offset, at_ms, event) for offset, (_, at_ms, event) in enumerate(story.feedback)]
    story.examples = [(*story.examples[0][:3], 1)]
    assert len(story.judged()[1]) == 1


@pytest.mark.parametrize(("step", "settled_at_ms", "is_wrong"), [(2, 1_400, False), (3, 1_700, True)])
def test_decision_that_is_overdue_by_other_settings_expires_in_their_first_step(
    step: int, settled_at_ms: int, *, is_wrong: bool
) -> None:
    story = Story(steps=[(1, 1), (1, 1), (1, 2)])
    story.change = (2, small_task(dated_by="context", join=JoinSettings(window_ms=300)))
    story.decided("a", 1_000)
    story.tick(1_400)
    story.tick(1_700)
    story.expired("a", settled_at_ms, step)
    assert bool(story.judged()[1]) == is_wrong


MATCH, LOGGED = small_task(dated_by="context", play="match"), small_task("late-ucb", dated_by="context", play="logged")
THIRD = 1 / 3


@pytest.mark.parametrize(("logged", "is_told"), [(2, "unmatched"), (1, "expired")])
@pytest.mark.parametrize("settled_as", ["unmatched", "expired"])
def test_decision_is_unmatched_where_the_log_has_another_action_and_nowhere_else(
    logged: int, is_told: str, settled_as: str
) -> None:
    story = Story(MATCH)
    story.decided("a", 1_000, logged=Logged(logged, THIRD), target=Target(1, 0.5))
    (story.unmatched if settled_as == "unmatched" else story.expired)("a", 2_001)
    counts, faults = story.judged()
    assert counts == {"contexts": 1, "decided": 1, settled_as: 1}
    tells = "cannot" if is_told == "unmatched" else "can"
    wrong = [f"example at offset 0: 'a' is {settled_as}, and the log {tells} tell its bit"]
    assert faults == ([] if is_told == settled_as else wrong)


@pytest.mark.parametrize("event_id", [f"e{number}" for number in range(8)])
def test_decision_of_a_log_that_was_not_uniform_counts_by_the_draw_of_its_id(event_id: str) -> None:
    story = Story(small_task(dated_by="context", play="match", propensity_min=0.3))
    story.decided(event_id, 1_000, logged=Logged(1, 0.6), target=Target(1, 0.5))
    story.unmatched(event_id, 1_000)
    assert bool(story.judged()[1]) == (uniform(0, Purpose.LOG, event_id) < 0.5)


def test_feedback_before_and_after_an_unmatched_decision_is_counted_as_its() -> None:
    story = Story(MATCH)
    waited = story.answered("a", 900)
    story.answered("a", 950, 0)
    story.decided("a", 1_000, logged=Logged(2, THIRD), target=Target(1, 0.5))
    story.unmatched("a", 950, waited)
    story.answered("a", 1_001, 1, action=2)
    counts, faults = story.judged()
    assert (counts, faults) == (
        {"contexts": 1, "decided": 1, "unmatched": 1, "feedback": 3, "feedback_unmatched": 2, "feedback_duplicates": 1,
         "conflicts": 1},
        [],
    )  # fmt: skip


@pytest.mark.parametrize(("dropped_in", "counted"), [(1, "feedback_unmatched"), (2, "feedback_duplicates")])
def test_feedback_waits_anew_where_an_earlier_one_had_made_room_and_the_example_names_it(
    dropped_in: int, counted: str
) -> None:
    story = Story(MATCH)
    first = story.answered("a", 900)
    second = story.answered("a", 950)
    story.steps = [(0, 1), (1, 2)]
    story.refused(first, DEAD_LETTER_ORPHAN, dropped_in)
    story.decided("a", 1_000, logged=Logged(2, THIRD), target=Target(1, 0.5))
    story.unmatched("a", 950, second if dropped_in == 1 else None, step=2)
    counts, faults = story.judged()
    assert (counts["orphans_dropped"], counts[counted], faults) == (1, 1, [])


def test_feedback_that_waited_for_an_unmatched_decision_is_the_one_that_its_example_names() -> None:
    unnamed, later = Story(MATCH), Story(MATCH)
    unnamed.answered("a", 900)
    for story in (unnamed, later):
        story.decided("a", 1_000, logged=Logged(2, THIRD), target=Target(1, 0.5))
    unnamed.unmatched("a", 1_000)
    later.unmatched("a", 1_000, later.answered("a", 1_100))
    (one,), (other,) = unnamed.judged()[1], later.judged()[1]
    assert one == "feedback at offset 0 waited for 'a', whose example does not name it"
    assert other.endswith("'a' is unmatched, and feedback offset 0, which it names, did not wait for it")


def test_unmatched_decision_has_no_reward() -> None:
    story = Story(MATCH)
    story.decided("a", 1_000, logged=Logged(2, THIRD), target=Target(1, 0.5))
    story.unmatched("a", 1_000, reward=0)
    assert story.judged()[1] == ["example at offset 0: unmatched with reward 0; expected none"]


@pytest.mark.parametrize(
    ("settings", "logged", "target", "says"),
    [
        (LOGGED, Logged(1, 0.5), Target(2, 1.0), None),
        (LOGGED, Logged(2, 0.5), Target(2, 1.0), "action 1 with propensity 0.5; the log has 2 with 0.5"),
        (LOGGED, Logged(1, 0.4), Target(2, 1.0), "action 1 with propensity 0.5; the log has 1 with 0.4"),
        (LOGGED, Logged(1, 0.5), None, "has no target, and its context has a decision of a log"),
        (small_task(dated_by="context"), None, Target(2, 1.0), "has a target, and no decision of a log was looked at"),
        (MATCH, Logged(1, THIRD), Target(2, 0.5), "action 1 with propensity 0.5 is not its target"),
    ],
)
def test_prediction_is_what_is_to_be_played(
    settings: TaskSettings, logged: Logged | None, target: Target | None, says: str | None
) -> None:
    story = Story(settings)
    story.decided("a", 1_000, logged=logged, target=target)
    counts, faults = story.judged()
    assert counts == {"contexts": 1, "decided": 1}
    assert [says in fault for fault in faults if says is not None] == [True] * (says is not None)
    assert len(faults) == (says is not None)


def test_propensity_below_the_least_is_counted_where_the_learner_weighs_by_it() -> None:
    for learner, floored in (("banditron", {"propensities_floored": 1}), ("late-ucb", {})):
        story = Story(small_task(learner, dated_by="context", play="logged", propensity_min=0.6))
        story.decided("a", 1_000, logged=Logged(1, 0.5), target=Target(2, 1.0))
        assert story.judged() == ({"contexts": 1, "decided": 1} | floored, [])


def test_unmatched_decision_was_settled_when_its_context_was_applied() -> None:
    story = Story(MATCH)
    story.decided("a", 1_000, logged=Logged(2, THIRD), target=Target(1, 0.5))
    story.unmatched("a", 900)
    assert story.judge(story.evidence())._settlement_place(1) == Place(1, 1_000, CONTEXTS, 0)


def test_settlement_is_that_of_the_decision_with_as_many_of_its_id_before_it() -> None:
    story = Story()
    story.decided("a", 1_000)
    story.decided("b", 1_005)
    story.decided("a", 1_010)
    story.matched("a", 7, story.answered("a", 1_007), 1_007)
    story.expired("b", 2_006)
    story.expired("a", 2_011)
    found = story.evidence()
    settled = [found.settlement(number) for number in (1, 2, 3)]
    assert [one.prediction and one.prediction.offset for one in settled] == [0, 1, 2]
    assert [one.prediction and one.prediction.dated and one.prediction.dated.ms for one in settled] == [
        1_000, 1_005, 1_010,
    ]  # fmt: skip
    assert [one._replace(prediction=None) for one in settled] == [
        Settlement(1, Outcome.MATCHED, 1_007, None, Place(1, 1_000, CONTEXTS, 0), Place(1, 1_007, FEEDBACK, 0)),
        Settlement(1, Outcome.EXPIRED, 2_006, None, Place(1, 1_005, CONTEXTS, 1), None),
        Settlement(1, Outcome.EXPIRED, 2_011, None, Place(1, 1_010, CONTEXTS, 2), None),
    ]
    assert [found.decision_place(number) for number in (1, 3)] == [
        Place(1, 1_000, CONTEXTS, 0),
        Place(1, 1_010, CONTEXTS, 2),
    ]
    assert found.decision_place(4) is None
    found.close()


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_id_is_forgotten_for_a_settlement_before_a_feedback_and_not_for_a_later_one(*, is_forgotten: bool) -> None:
    limits = JoinSettings(window_ms=WINDOW_MS, orphan_ms=500, retain_ms=60_000, retained_max=1)
    story = Story(small_task(dated_by="context", join=limits))
    for name in "ab":
        story.decided(name, 1_000)
    story.matched("a", 0, story.answered("a", 1_000), 1_000)
    for name in "ba" if is_forgotten else "ab":
        answered = story.answered(name, 1_500)
        if name == "b":
            story.matched("b", 500, answered, 1_500)
    counts, faults = story.judged()
    assert counts.get("orphans_waiting", 0) == is_forgotten
    assert counts.get("feedback_duplicates", 0) == (not is_forgotten)
    assert faults == []


def test_second_dead_letter_of_a_record_is_told_and_of_the_other_input_is_not() -> None:
    evidence = Evidence()
    evidence.add_dead_letters(
        [(0, CONTEXTS, 4, "malformed", 1), (1, FEEDBACK, 4, "malformed", 1), (2, FEEDBACK, 5, "orphan", 1),
         (3, FEEDBACK, 4, "orphan", 2), (4, CONTEXTS, 4, "malformed", 2)]
    )  # fmt: skip
    assert sorted(evidence.dead_letters_again()) == [3, 4]
    evidence.close()


@pytest.mark.parametrize(("decided_again", "is_wrong"), [(1, False), (2, True)])
def test_feedback_that_came_after_its_id_was_forgotten_is_refused_by_the_next_decision(
    decided_again: int, *, is_wrong: bool
) -> None:
    story = Story()
    again_ms = 1_001 + RETAIN_MS
    story.decided("a", 1_000, action=1)
    story.matched("a", 0, story.answered("a", 1_000), 1_000, action=1)
    story.refused(story.answered("a", again_ms, action=2), DEAD_LETTER_MISMATCHED)
    story.decided("a", again_ms + 1, action=decided_again)
    story.matched("a", 0, story.answered("a", again_ms + 1), again_ms + 1, action=decided_again)
    says = "feedback at offset 1 was refused as of another action, 2; decided for 'a' was 2"
    assert story.judged()[1] == ([says] if is_wrong else [])
