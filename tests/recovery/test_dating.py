"""Decisions are dated close before the append time of their predictions, whatever pauses there were."""

from typing import Any

import pytest

from consumers.learner import LearnerOptions, LearnerProgram
from stream.brokers.port import Broker
from stream.joining.join import JoinSettings
from stream.joining.task import Task
from stream.recovery.broker_time import PORTION_RECORDS, BrokerTime, Portion, tolerance_ms
from stream.recovery.recover import rebuild
from stream.simulation.checks import state_of
from stream.simulation.faulty_broker import FaultyBroker, Transactions, Verdict
from stream.wire import codec
from stream.wire.codec import HEADERS
from stream.wire.records import Record
from tests.pipeline import TOPICS, CrashError, Pipeline, context_value, small_task

TOLERANCE_MS = 100  # of small_task: a tenth of its window
STEPS_MAX = 200


def idle(*programs: LearnerProgram) -> None:
    """Step until none has anything left to do at this moment."""
    for _ in range(STEPS_MAX):
        if not sum(program.step(0) for program in programs):
            return
    pytest.fail("the learner works on and on")


def ages_ms(pipeline: Pipeline) -> list[int]:
    """How long before the append time of its prediction each decision is dated."""
    records = [record for partition in range(pipeline.partitions) for record in _predictions(pipeline, partition)]
    return [record.append_ms - codec.decode_prediction(record)[0].decided_at_ms for record in records]


def _predictions(pipeline: Pipeline, partition: int) -> list[Record]:
    return pipeline.records(TOPICS.predictions, partition)


def assert_state_is_that_of_the_journal(pipeline: Pipeline, learner: LearnerProgram) -> None:
    for partition, task in learner.tasks.items():
        assert state_of(rebuild(pipeline.broker, TOPICS, partition, pipeline.settings).task) == state_of(task)
    assert all(finding.ok for finding in pipeline.audits()), pipeline.audits()


class Slow:
    """Time passes after a step of a commit, in as many commits as it is told: a pause, or a broker that is slow."""

    def __init__(self, pipeline: Pipeline, number: int, for_ms: int = 8_000) -> None:
        self.pipeline, self.number, self.for_ms = pipeline, number, for_ms
        self.times = 0
        self.begun = 0  # transactions

    def __call__(self, number: int) -> None:
        self.begun += number == 1
        if number == self.number and self.times:
            self.times -= 1
            self.pipeline.clock.advance_to(self.pipeline.now_ms() + self.for_ms)


def slowed(number: int, for_ms: int = 8_000, partitions: int = 1) -> tuple[Pipeline, LearnerProgram, Slow]:
    """A learner that knows the time, and what makes its commits slow."""
    pipeline = Pipeline(small_task(), partitions)
    slow = Slow(pipeline, number, for_ms)
    learner = pipeline.learner(crash_point=slow)
    for name in "abcd":
        pipeline.context(name)
    idle(learner)
    slow.begun = 0
    return pipeline, learner, slow


def test_decision_after_a_pause_is_dated_after_it_and_waits_as_long_as_any_other() -> None:
    pipeline, learner, _ = slowed(1)
    for name in "abcd":
        pipeline.answer(name, 1)
    idle(learner)
    pipeline.clock.advance_to(1_050)
    pipeline.context("e")
    pipeline.clock.advance_to(9_000)  # the process was paused, for less than its session
    idle(learner)
    pipeline.clock.advance_to(9_900)
    pipeline.answer("e", 1)
    idle(learner)
    assert ages_ms(pipeline) == [0] * 5
    assert (pipeline.ledger().matched, pipeline.ledger().expired) == (5, 0)
    assert_state_is_that_of_the_journal(pipeline, learner)


def test_decision_that_waited_behind_a_foreign_transaction_is_dated_after_it() -> None:
    pipeline, learner, _ = slowed(1)
    for name in "abcd":
        pipeline.answer(name, 1)
    idle(learner)
    foreign = pipeline.broker.transactional_producer("foreign")
    foreign.begin()
    foreign.send(TOPICS.contexts, 0, b"theirs", context_value("theirs"), HEADERS)
    pipeline.context("ours")
    for _ in range(80):
        pipeline.clock.advance_to(pipeline.now_ms() + 100)
        idle(learner)
    foreign.commit()
    idle(learner)
    for name in ("theirs", "ours"):
        pipeline.answer(name, 1)
    idle(learner)
    assert [record.key for record in _predictions(pipeline, 0)][4:] == [b"theirs", b"ours"]
    assert max(ages_ms(pipeline)) <= TOLERANCE_MS
    assert (pipeline.ledger().matched, pipeline.ledger().expired) == (6, 0)
    assert_state_is_that_of_the_journal(pipeline, learner)


def test_step_that_is_paused_before_its_predictions_are_written_is_given_up_and_made_again() -> None:
    pipeline, learner, slow = slowed(1)
    pipeline.context("e")
    pipeline.context("f")
    slow.times = 1
    learner.step(0)
    assert (slow.begun, pipeline.ledger().decided) == (1, 4)  # begun, and given up
    idle(learner)
    assert pipeline.ledger().decided == 6
    assert ages_ms(pipeline) == [0] * 6
    assert learner.outdated == 0
    assert_state_is_that_of_the_journal(pipeline, learner)


def test_only_the_tasks_of_a_step_that_is_given_up_are_recovered() -> None:
    pipeline, learner, slow = slowed(1, partitions=3)
    (partition,) = {record.partition for record in _sent(pipeline, "e")}
    others = {number: task for number, task in learner.tasks.items() if number != partition}
    slow.times = 1
    learner.step(0)
    assert learner.tasks == others
    idle(learner)
    assert sorted(learner.tasks) == [0, 1, 2]
    assert_state_is_that_of_the_journal(pipeline, learner)


def _sent(pipeline: Pipeline, name: str) -> list[Record]:
    pipeline.context(name)
    everywhere = [
        record for partition in range(pipeline.partitions) for record in pipeline.records(TOPICS.contexts, partition)
    ]
    return [record for record in everywhere if record.key == name.encode()]


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 7])
def test_pause_after_the_predictions_are_written_gives_nothing_up(number: int) -> None:
    pipeline, learner, slow = slowed(number)
    pipeline.context("e")
    slow.times = 1
    learner.step(0)
    assert (slow.begun, pipeline.ledger().decided) == (1, 5)
    assert ages_ms(pipeline) == [0] * 5


def test_slow_broker_makes_each_step_once_more_at_most_and_what_stands_is_counted() -> None:
    pipeline, learner, slow = slowed(1, for_ms=TOLERANCE_MS + 1)
    slow.times = 1_000_000
    for number in range(20):
        pipeline.context(f"slow-{number}")
        idle(learner)
    assert pipeline.ledger().decided == 24
    assert learner.outdated == 20
    assert slow.begun < 60  # a question and a step for each, and expired decisions that are settled
    slow.times = 0
    pipeline.context("fast")
    idle(learner)
    assert learner.outdated == 20
    slow.times = 1
    pipeline.context("paused")
    idle(learner)
    assert (learner.outdated, ages_ms(pipeline)[-2:]) == (20, [0, 0])  # a pause is told from a slow broker again
    assert_state_is_that_of_the_journal(pipeline, learner)


@pytest.mark.parametrize("dies_in", ["the refusal", "the recovery", "the question"])
def test_learner_that_dies_when_it_has_given_a_step_up_ends_as_one_that_did_not(dies_in: str) -> None:
    pipeline, learner, slow = slowed(1)
    pipeline.context("e")
    slow.times = 1
    if dies_in == "the refusal":
        abort = learner._producer.abort

        def dies() -> None:
            abort()
            raise CrashError

        learner._producer.abort = dies  # type: ignore[method-assign]
        with pytest.raises(CrashError):
            idle(learner)
    else:
        learner.step(0)
        if dies_in == "the question":
            learner.step(0)
    again = pipeline.learner()
    idle(again)
    assert ages_ms(pipeline) == [0] * 5
    assert_state_is_that_of_the_journal(pipeline, again)


def test_busy_learner_asks_for_nothing_and_an_idle_one_once_before_it_decides() -> None:
    pipeline, learner, slow = slowed(1)
    for number in range(50):
        pipeline.clock.advance_to(pipeline.now_ms() + TOLERANCE_MS)
        pipeline.context(f"busy-{number}")
        idle(learner)
    expired = pipeline.ledger().expired
    assert slow.begun <= 50 + expired
    for name in [f"busy-{number}" for number in range(50)]:
        pipeline.answer(name, 1)
    idle(learner)
    assert pipeline.ledger().pending == 0
    for number in range(5):
        pipeline.clock.advance_to(pipeline.now_ms() + TOLERANCE_MS + 1)
        slow.begun = 0
        pipeline.context(f"idle-{number}")
        idle(learner)
        assert slow.begun == 2
        pipeline.answer(f"idle-{number}", 1)
        idle(learner)
        assert slow.begun == 3  # feedback is not dated by the learner, and waits for no question
    assert max(ages_ms(pipeline)) <= TOLERANCE_MS


@pytest.mark.parametrize(("for_ms", "asks"), [(TOLERANCE_MS, 0), (TOLERANCE_MS + 1, 1)])
def test_pause_after_the_answer_to_a_question_makes_it_ask_again_and_gives_nothing_up(for_ms: int, asks: int) -> None:
    pipeline, learner, slow = slowed(1)
    for name in "abcd":
        pipeline.answer(name, 1)
    idle(learner)
    pipeline.clock.advance_to(9_000)
    pipeline.context("e")
    learner.step(0)
    assert pipeline.ledger().decided == 4, "it has asked"
    pipeline.clock.advance_to(9_000 + for_ms)
    slow.begun = 0
    idle(learner)
    assert (slow.begun, pipeline.ledger().decided) == (asks + 1, 5)
    assert max(ages_ms(pipeline)) <= TOLERANCE_MS
    assert learner.outdated == 0


def test_learner_that_dates_by_contexts_neither_asks_nor_gives_up() -> None:
    pipeline = Pipeline(small_task())
    slow = Slow(pipeline, 1)
    learner = pipeline.learner(crash_point=slow, dates_by_contexts=True)
    pipeline.context("a")
    idle(learner)
    slow.begun = 0
    pipeline.clock.advance_to(1_090)
    pipeline.context("b")
    pipeline.clock.advance_to(1_900)
    slow.times = 1
    idle(learner)
    first, second = [codec.decode_prediction(record)[0] for record in _predictions(pipeline, 0)]
    assert (first.decided_at_ms, second.decided_at_ms) == (1_000, 1_090)


@pytest.mark.parametrize(
    ("idle_ms", "window_ms", "expected_ms"),
    [
        (1_000, 300_000, 1_000),
        (1_000, 1_000, 100),
        (20, 1_000, 20),
        (1_000, 10, 1),
        (1_000, 9, 1),
        (1_000, 0, 1),
        (0, 50, 1),
    ],
)
def test_tolerance_is_the_idle_interval_or_a_tenth_of_the_window_and_never_less_than_the_clock_can_tell(
    idle_ms: int, window_ms: int, expected_ms: int
) -> None:
    assert tolerance_ms(idle_ms, window_ms) == expected_ms


@pytest.mark.parametrize("window_ms", [0, 1, 5, 9, 10])
@pytest.mark.parametrize("for_ms", [0, 1, 15])
def test_tiny_window_stops_nothing_whether_the_broker_is_slower_than_it_or_not(window_ms: int, for_ms: int) -> None:
    pipeline = Pipeline(small_task(join=JoinSettings(window_ms=window_ms, orphan_ms=500, retain_ms=10_000)))
    slow = Slow(pipeline, 1, for_ms)
    slow.times = 1_000_000
    learner = pipeline.learner(crash_point=slow)
    for number in range(10):
        pipeline.context(f"event-{number}")
        idle(learner)
        pipeline.answer(f"event-{number}", 1)
        idle(learner)
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
    ledger = pipeline.ledger()
    assert ledger.decided == 10
    assert ledger.matched == (10 if for_ms <= window_ms else 0)
    assert learner.outdated == (10 if for_ms > 1 else 0)
    assert slow.begun < 60
    assert_state_is_that_of_the_journal(pipeline, learner)


class HostClock:
    """A host's clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


def test_time_is_as_old_as_the_last_record_that_told_it_and_not_as_its_acknowledgement() -> None:
    clock = HostClock()
    time = BrokerTime(clock, 100)
    assert time.may_be_old()
    time.sends()
    clock.ms = 60  # the commit takes so long
    time.hears(5_000)
    clock.ms = 100
    assert (time.may_be_old(), time.silent_ms) == (False, 40)
    clock.ms = 101
    assert time.may_be_old()


@pytest.mark.parametrize("call_ms", [1, 30, TOLERANCE_MS, 5 * TOLERANCE_MS])
def test_broker_by_which_every_call_is_slow_is_asked_once_for_a_decision_and_not_again_and_again(call_ms: int) -> None:
    pipeline = Pipeline(small_task(join=JoinSettings(window_ms=10 * TOLERANCE_MS, orphan_ms=500, retain_ms=10**6)))

    def consult(call: str) -> Verdict:
        pipeline.clock.advance_to(pipeline.now_ms() + call_ms)
        return Verdict.PROCEEDS

    slow: Broker = FaultyBroker(pipeline.broker, "slow", consult, Transactions())
    learner = LearnerProgram(slow, TOPICS, pipeline.settings, LearnerOptions(), pipeline.now_ms)
    for number in range(10):
        pipeline.clock.advance_to(pipeline.now_ms() + 10 * TOLERANCE_MS)
        pipeline.context(f"event-{number}")
        before = len(pipeline.journal())
        for _ in range(20):
            learner.step(0)
            if pipeline.ledger().decided == number + 1:
                break
        assert pipeline.ledger().decided == number + 1
        assert len(pipeline.journal()) - before <= (3 if number else 4)  # the question, the step; what has expired
    assert learner.outdated == (0 if call_ms < 30 else 10)
    assert_state_is_that_of_the_journal(pipeline, learner)


def test_learner_that_has_asked_does_not_wait_for_records_before_it_decides() -> None:
    pipeline, learner, _ = slowed(1)
    waits_ms: list[int] = []
    poll = learner._consumer.poll

    def polls(timeout_ms: int, records_max: int) -> list[Record]:
        waits_ms.append(timeout_ms)
        return poll(timeout_ms, records_max)

    learner._consumer.poll = polls  # type: ignore[method-assign]
    pipeline.clock.advance_to(9_000)
    pipeline.context("e")
    for _ in range(3):
        learner.step(100)
    assert waits_ms == [100, 0, 100]  # what asks, what decides, and what comes then
    assert pipeline.ledger().decided == 5


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        ([(250, 1)], 500),  # quick: twice as many
        ([(250, 1), (500, 1), (1_000, 1), (2_000, 1)], 2_000),  # up to the most that is allowed
        ([(10, 1)], 250),  # few were there: that tells nothing
        ([(250, 40)], 250),
        ([(250, 51)], 125),
        ([(250, 1), (40, 51)], 20),  # so few were too many
        ([(2, 900), (1, 900)], 1),
    ],
)
def test_step_takes_as_many_records_as_are_decided_in_time(took: list[tuple[int, int]], expected: int) -> None:
    portion = Portion(2_000, TOLERANCE_MS)
    for records, ms in took:
        portion.took(records, ms)
    assert portion.records == expected


@pytest.mark.parametrize(("step_max_ms", "works_ms"), [(500, TOLERANCE_MS // 2), (20, 20)])
def test_step_works_no_longer_than_the_dates_allow_and_than_is_asked_for(step_max_ms: int, works_ms: int) -> None:
    learner = Pipeline(small_task()).learner(step_max_ms=step_max_ms)
    records = learner._portion.records
    learner._portion.took(records, works_ms)
    assert learner._portion.records == records
    learner._portion.took(records, works_ms + 1)
    assert learner._portion.records == records // 2


def test_backlog_of_a_slow_learner_is_decided_in_steps_that_are_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    for number in range(600):
        pipeline.context(f"event-{number}")
    learner.step(0)
    original = Task._apply_context

    def slow(*arguments: Any) -> None:
        pipeline.clock.advance_to(pipeline.now_ms() + 2)  # 50 of them take all of the tolerance
        original(*arguments)

    monkeypatch.setattr(Task, "_apply_context", slow)
    for _ in range(100):
        learner.step(0)
    assert pipeline.ledger().decided == 600
    assert learner._portion.records < PORTION_RECORDS
    ages = ages_ms(pipeline)
    assert max(ages[-300:]) <= TOLERANCE_MS
    assert learner.outdated <= PORTION_RECORDS // 2 + PORTION_RECORDS // 4
