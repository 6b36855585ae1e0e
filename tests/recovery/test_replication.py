"""A high watermark that lags behind the log: feedback that was appended in time is never missed."""

import pytest

from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, small_task

FEEDBACK = TopicPartition(TOPICS.feedback, 0)
WINDOW_MS = 1_000


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="the end that the learner asks for is the high watermark, not the end of the log",
)
def test_feedback_in_time_that_is_not_replicated_yet_is_matched() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(snapshot_interval_ms=0)
    pipeline.context("a")
    while learner.step(0):
        pass
    pipeline.broker.hold(FEEDBACK)
    pipeline.answer("a", 1)  # at once: long before the deadline
    pipeline.clock.advance_to(pipeline.now_ms() + 50 * WINDOW_MS)
    while learner.step(0):
        pass
    pipeline.broker.release(FEEDBACK)
    while learner.step(0):
        pass
    assert [example["outcome"] for example in pipeline.values(TOPICS.examples)] == ["matched"]
