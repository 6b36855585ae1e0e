"""Topics that `onebit monitor` reads directly, without its Faust application."""

from threading import Event

import orjson

from consumers.monitor.dashboard import Dashboard
from consumers.monitor.loop import _poll
from consumers.monitor.verdict import STUCK_MS, Condition
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task


class EventAfterWaits(Event):
    """An event that is set after a given number of waits."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def wait(self, timeout: float | None = None) -> bool:
        """Return False for the given number of calls, then True."""
        self._left -= 1
        return self._left < 0


def test_page_shows_learner_window_and_instances() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner(group="test.learner")
    pipeline.context("a", 1)
    run_until_idle(learner)
    dashboard = Dashboard(TOPICS, 1, lambda: 0)
    _poll(pipeline.broker, (), dashboard, TOPICS, 1, EventAfterWaits(1))
    task = small_task()
    assert orjson.loads(dashboard.as_json())["pipeline"] == {
        "learner": task.learner,
        "window_ms": task.join.window_ms,
        "instances": {"learner-1": [0]},
    }


def test_pipeline_with_an_unapplied_tick_is_idle() -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.answer("a", 1)
    pipeline.context("a", 1)
    run_until_idle(learner)
    assert learner.tasks[0].join.ledger().pending == 0
    host_ms = [0]
    dashboard = Dashboard(TOPICS, 1, lambda: host_ms[0])
    _poll(pipeline.broker, (), dashboard, TOPICS, 1, EventAfterWaits(1))
    host_ms[0] += 10 * STUCK_MS
    _poll(pipeline.broker, (), dashboard, TOPICS, 1, EventAfterWaits(1))
    assert dashboard.verdict().condition is Condition.IDLE
