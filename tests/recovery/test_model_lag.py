"""An open transaction blocks a shared model's log. Meanwhile, decisions continue or stop, as configured."""

import pytest

from consumers.learner.program import LearnerProgram
from consumers.learner.shared_model import ENDED_BY, Hold, SharedModel
from consumers.learner.status import LagWarnings, status_lines
from consumers.tally import Tally
from stream.shared.replica import unchanged
from stream.wire.updates import HEADERS
from tests.pipeline import TOPICS, CrashError, Pipeline, crash_at, run_until_idle, small_task

AFTER_FLUSH = 4


def blocked_pipeline(lag_max_ms: int) -> tuple[Pipeline, LearnerProgram]:
    """Return a pipeline and its running learner. Another learner has died during a step and left a transaction open."""
    pipeline = Pipeline(small_task("late-ucb", model="shared"), partitions=2)
    left = pipeline.learner("left", model_lag_max_ms=lag_max_ms)
    dying = pipeline.learner("dying", crash_at(AFTER_FLUSH))
    run_until_idle(left, dying)
    assert {len(left.tasks), len(dying.tasks)} == {1}
    send(pipeline, 0, 12)
    run_until_idle(left)
    with pytest.raises(CrashError):
        run_until_idle(dying)
    left.read_log()
    return pipeline, left


def send(pipeline: Pipeline, start: int, stop: int) -> None:
    for number in range(start, stop):
        pipeline.context(f"event-{number}")


def decided(pipeline: Pipeline) -> int:
    return pipeline.ledger().decided


@pytest.mark.parametrize(("lag_max_ms", "goes_on"), [(-1, True), (1_000, False)])
def test_blocked_learner_continues_or_stops_deciding_as_configured(lag_max_ms: int, goes_on: bool) -> None:
    pipeline, left = blocked_pipeline(lag_max_ms)
    pipeline.clock.advance_to(pipeline.clock.now_ms + 1_000)
    before = decided(pipeline)
    send(pipeline, 12, 24)
    run_until_idle(left)
    assert decided(pipeline) > before  # a lag equal to the limit is allowed
    pipeline.clock.advance_to(pipeline.clock.now_ms + 1)
    before = decided(pipeline)
    send(pipeline, 24, 36)
    run_until_idle(left)
    assert (decided(pipeline) > before) == goes_on
    assert left.model_hold is not None
    assert left.model_hold.for_ms == 1_001
    assert left.model_hold.waiting > 0
    *partitions, model = status_lines(left, Tally())
    assert "blocked for 1 s" in model
    assert left.replica is not None
    assert f"version {left.replica.version:,}, {left.replica.updates:,} updates" in model
    assert not any("updates" in line for line in partitions), "updates are reported once, for the shared model"


def test_restarted_learner_immediately_aborts_its_old_transaction() -> None:
    pipeline, left = blocked_pipeline(1_000)
    pipeline.clock.advance_to(pipeline.clock.now_ms + 1_001)
    send(pipeline, 12, 24)
    before = decided(pipeline)
    run_until_idle(left)
    assert decided(pipeline) == before
    again = pipeline.learner("dying")
    run_until_idle(left, again)
    assert left.model_hold is None
    assert decided(pipeline) == 24
    assert left.replica is not None
    assert again.replica is not None
    assert left.replica.version == again.replica.version


def test_transaction_of_another_program_blocks_the_log_until_it_ends() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    learner = pipeline.learner()
    other = pipeline.broker.transactional_producer("other")
    other.begin()
    other.send(TOPICS.updates, 0, None, b"", HEADERS)
    other.flush()
    send(pipeline, 0, 3)
    run_until_idle(learner)
    pipeline.clock.advance_to(pipeline.clock.now_ms + 90_000)
    learner.read_log()
    held = learner.model_hold
    assert held is not None
    assert (held.offset, held.for_ms) == (0, 90_000)
    other.abort()
    learner.read_log()
    assert learner.model_hold is None
    assert decided(pipeline) == 3


def test_lag_is_measured_since_the_offset_last_advanced() -> None:
    pipeline = Pipeline(small_task("late-ucb", model="shared"))
    model = SharedModel(
        pipeline.broker, TOPICS, pipeline.settings, None,
        settings_after=unchanged, host_ms=pipeline.now_ms, lag_max_ms=500,
    )  # fmt: skip

    def lag(at_ms: int) -> tuple[int | None, bool]:
        pipeline.clock.advance_to(at_ms)
        assert all(model.read_on())
        return None if model.hold is None else model.hold.for_ms, model.stops_decisions

    assert lag(1_100) == (None, False)
    first, second = (pipeline.broker.transactional_producer(name) for name in ("first", "second"))
    for other in (first, second):
        other.begin()
        other.send(TOPICS.updates, 0, None, b"", HEADERS)
    assert [lag(1_200), lag(1_700), lag(1_701)] == [(0, False), (500, False), (501, True)]
    first.abort()
    assert [lag(1_800), lag(1_900)] == [(0, False), (100, False)]  # now the second transaction blocks the log
    second.abort()
    assert lag(1_950) == (None, False)


def test_each_open_transaction_is_reported_once_with_the_remedy() -> None:
    warnings = LagWarnings("onebit.updates", "kafka:9092", 60_000, 20_000)
    assert warnings.of(None) == warnings.of(Hold(7, 4_999, 3)) == []
    (held,) = warnings.of(Hold(7, 5_000, 3))
    assert held.startswith("onebit.updates/0 cannot be read beyond offset 7")
    assert held.endswith(ENDED_BY)
    assert warnings.of(Hold(7, 49_999, 3)) == []
    (overdue,) = warnings.of(Hold(7, 50_000, 3))
    assert overdue.endswith(
        "kafka-transactions.sh --bootstrap-server kafka:9092 abort --topic onebit.updates "
        "--partition 0 --start-offset 7"
    )
    (stopped,) = warnings.of(Hold(7, 60_000, 3))
    assert stopped.endswith("--model-lag-max 1m")
    assert warnings.of(Hold(7, 70_000, 3)) == []
    assert len(warnings.of(Hold(9, 5_000, 3))) == 1
    assert len(LagWarnings("onebit.updates", "kafka:9092", -1, 20_000).of(Hold(7, 90_000, 3))) == 2
