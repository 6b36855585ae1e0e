"""Delayed progressive validation, compared with plain counting and with River's implementation."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from river import base, evaluate, metrics

from onebit.runs.embedded import run_embedded
from onebit.runs.plan import resolve_run
from producers.data import dataset_of
from producers.datasets.base import Dataset
from producers.feedback.plan import feedback_plan
from stream.learners import Learner, create
from stream.measures.errors import DelayedPoint, Settlements
from stream.randomness.draws import Purpose, uniform
from stream.reporting.run_charts import error_charts, time_charts
from stream.reporting.runs import LearnerRun
from stream.reporting.tables import series_of
from stream.settings.definitions import Settings
from stream.settings.sources import load_settings
from stream.wire.records import Decision, Example, Features, Outcome


class TimedDecision(NamedTuple):
    """A decision and its outcome: the decision time, and the delay until the decision is settled."""

    decided_ms: int
    after_ms: int
    outcome: Outcome
    reward: int

    @property
    def known_ms(self) -> int:
        return self.decided_ms + (0 if self.outcome is Outcome.UNMATCHED else self.after_ms)

    def example(self) -> Example:
        reward = self.reward if self.outcome is Outcome.MATCHED else None
        return Example("id", self.outcome, 0, 1.0, reward, None, self.known_ms, None)


DECISIONS = st.lists(
    st.builds(TimedDecision, st.integers(0, 50), st.integers(0, 60), st.sampled_from(list(Outcome)), st.integers(0, 1)),
    min_size=1,
    max_size=30,
)


def curve(decisions: list[TimedDecision]) -> tuple[DelayedPoint, ...]:
    settlements = Settlements()
    assert list(settlements.take(life.example() for life in decisions)) == [life.example() for life in decisions]
    return settlements.curve([life.decided_ms for life in decisions]).points


@given(DECISIONS)
def test_every_point_of_the_delayed_curve_agrees_with_plain_counting(decisions: list[TimedDecision]) -> None:
    times = sorted(life.decided_ms for life in decisions)
    for point in curve(decisions):
        known = [life for life in decisions if life.known_ms <= times[point.decided - 1]]
        matched = [life for life in known if life.outcome is Outcome.MATCHED]
        assert tuple(point) == (
            point.decided,
            len(matched),
            sum(life.reward == 0 for life in matched),
            sum(life.outcome is Outcome.EXPIRED for life in known),
            sum(life.outcome in (Outcome.UNMATCHED, Outcome.UNSHOWN) for life in known),
        )
        if matched:
            assert point.error_rate == sum(life.reward == 0 for life in matched) / len(matched)


def test_delayed_curve_excludes_outcomes_after_the_last_decision() -> None:
    matched = Outcome.MATCHED
    decisions = [
        TimedDecision(0, 5, matched, 1),
        TimedDecision(10, 11, matched, 0),
        TimedDecision(20, 0, Outcome.UNMATCHED, 0),
        TimedDecision(20, 1, matched, 0),
    ]
    last = curve(decisions)[-1]
    assert last == DelayedPoint(decided=4, matched=1, mistakes=0, expired=0, unmatched=1)
    assert (last.outstanding, last.error_rate) == (2, 0.0)
    assert Settlements().curve([]).points == ()


def settings_with(**given: Any) -> Settings:
    return load_settings({"events": 400, "rate": 100.0, "delay": DELAY, **given})


DELAY = ";".join(f"{label}=fixed:{delay_ms}ms" for label, delay_ms in enumerate((15, 155, 555, 1_005, 4_005))) + (
    ";*=fixed:75ms"
)
"""Events arrive every 10 ms. With these delays, feedback never arrives at the same time as an event. If it did, River
and Onebit would process the two in different orders."""


class Rounds:
    """The data set's rows in River's format, and the feedback delay for each row."""

    def __init__(self, settings: Settings) -> None:
        self.data: Dataset = dataset_of(settings)
        self.plan = feedback_plan(settings, self.data)

    def __iter__(self) -> Iterator[tuple[dict[Any, Any], Any]]:
        for position, (event_id, row) in enumerate(self.data.schedule(0, 400)):
            yield {"id": event_id, "at_ms": 10 * position, "row": row}, self.data.label(row)

    def delay_ms(self, x: dict[Any, Any], y: int) -> int:
        (delay_ms,) = self.plan(x["id"], y)
        return delay_ms


class DelayedClassifier(base.Classifier):
    """A River classifier that wraps a learner and passes it both the reward and the true class."""

    def __init__(self, learner: Learner, rounds: Rounds) -> None:
        self.learner = learner
        self.rounds = rounds
        self.made: dict[str, tuple[Features, Decision]] = {}

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> int:
        features = self.rounds.data.row(x["row"]).x
        decision = self.learner.predict(features, uniform(0, Purpose.ACTION, x["id"]))
        self.learner.observe(features, decision)
        self.made[x["id"]] = features, decision
        return decision.action

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        features, decision = self.made.pop(x["id"])
        self.learner.update(features, decision, int(decision.action == y), 0.0, y)


@pytest.mark.parametrize("name", ["late-ucb", "banditron", "perceptron", "stack-igw"])
def test_curve_and_error_agree_with_rivers_delayed_progressive_validation(name: str) -> None:
    settings = settings_with(learner=[name])
    rounds = Rounds(settings)
    pupil, accuracy = DelayedClassifier(create(name, 10, 64), rounds), metrics.Accuracy()  # type: ignore[no-untyped-call]
    by_answers: dict[int, float] = {}
    for state in evaluate.iter_progressive_val_score(
        rounds, pupil, accuracy, moment="at_ms", delay=rounds.delay_ms, step=1
    ):
        reported: Any = state
        by_answers[reported["Step"]] = 1.0 - reported["Accuracy"].get()
    assert by_answers.keys() == set(range(1, 401))

    report = run_embedded(resolve_run(settings, name, rounds.data))
    last = report.delayed.points[-1]
    assert (last.decided, report.ledger.matched) == (400, 400)
    assert 0 < last.outstanding < 100
    assert report.errors.error_rate == pytest.approx(by_answers[400], abs=1e-12), "after all feedback is revealed"
    for point in report.delayed.points:
        if point.matched:
            assert point.error_rate == pytest.approx(by_answers[point.matched], abs=1e-12)


def test_run_with_lost_feedback_has_a_chart_of_expired_decisions() -> None:
    settings = settings_with(loss=0.5, window="1s", learner=["late-ucb"], delay="fixed:75ms")
    report = run_embedded(resolve_run(settings, "late-ucb", dataset_of(settings)))
    last = report.delayed.points[-1]
    assert last.matched + last.outstanding + last.expired == 400
    assert 0.25 < last.expired / (400 - 100) / 1.0 < 0.75, "half of the older decisions have expired"
    assert report.to_dict()["delayed"] == last.as_json()
    captions = captions_of(report)
    assert {"Error known so far", "Expired"} < captions.keys()
    assert f"At the last decision, {last.outstanding} were outstanding" in captions["Error known so far"]


def captions_of(report: LearnerRun) -> dict[str, str]:
    names, found = ["late-ucb"], series_of([report])
    return {chart.title: chart.caption for chart in (*error_charts(names, found), *time_charts(names, found))}


def test_run_without_lost_feedback_has_no_chart_of_expired_decisions() -> None:
    settings = settings_with(learner=["late-ucb"], events=50)
    report = run_embedded(resolve_run(settings, "late-ucb", dataset_of(settings)))
    assert "Expired" not in captions_of(report)
    assert np.isfinite(report.delayed.points[-1].error_rate)
