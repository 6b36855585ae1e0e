"""The monitor's comparisons of the learner with its holdout and its challengers."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from consumers.live_estimates import results_from_topics
from consumers.monitor.dashboard import Dashboard
from consumers.monitor.loop import follow_settings
from consumers.monitor.named_policies import live_policies
from consumers.monitor.policies import Policies
from stream.recovery.recover import settings_in_force
from stream.reporting.live_results import arm_cells, challenger_rows
from stream.settings.task_fields import JoinSettings
from stream.wire.records import Record
from tests.pipeline import TOPICS, Pipeline, plan, small_synsep, synsep_task

EVENTS = 300


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    """A pipeline with a holdout and two challengers. Some decisions expire and count as wrong."""
    task = synsep_task(
        "igw-logistic", floor=0.3, holdout=0.3, challengers={"late-ucb": {"m": 2}, "banditron": {}},
        on_expiry="negative", join=JoinSettings(window_ms=200),
    )  # fmt: skip
    made, data = Pipeline(task), small_synsep()
    made.run([made.replay(data, EVENTS, rate=200.0), made.feedback(data, plan("fixed:20ms", loss=0.2))], made.learner())
    return made


def policies_of(pipeline: Pipeline) -> Policies:
    return live_policies([], settings_in_force(pipeline.broker, TOPICS, 0).settings, TOPICS)


def shown(dashboard: Dashboard) -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(dashboard.as_json())
    return found


@pytest.mark.parametrize("first", [TOPICS.predictions, TOPICS.examples])
def test_comparisons_equal_those_of_the_report_despite_restarts_and_any_read_order(
    pipeline: Pipeline, first: str
) -> None:
    states: dict[int, bytes] = {}
    second = ({TOPICS.predictions, TOPICS.examples} - {first}).pop()
    for records in (pipeline.records(first)[:200], pipeline.records(second), pipeline.records(first)[200:]):
        dashboard = Dashboard(TOPICS, 1, lambda: 0)
        dashboard.judge(policies_of(pipeline), lambda wanted: {})
        for partition, state in states.items():
            dashboard.restore(partition, state)
        states = dashboard.take(records)
    _, arms, challengers = results_from_topics(pipeline.broker, TOPICS, 1, pipeline.settings, is_estimated=False)
    assert arms is not None
    assert challengers is not None
    assert arms.learner.n + arms.holdout.n == challengers.n == EVENTS
    found = shown(dashboard)
    assert found["holdout"]["rows"] == [list(arm_cells(arms))]
    assert found["challengers"]["rows"] == [list(row) for row in challenger_rows(challengers)]
    assert (found["holdout"]["flag"], found["challengers"]["flag"]) == ("", "")


def test_comparison_adds_partitions_and_shows_the_champion_of_the_latest_record(pipeline: Pipeline) -> None:
    def of_partition(records: Sequence[Record], partition: int, later_ms: int) -> list[Record]:
        return [one._replace(partition=partition, append_ms=one.append_ms + later_ms) for one in records]

    dashboard = Dashboard(TOPICS, 2, lambda: 0)
    dashboard.judge(policies_of(pipeline), lambda wanted: {})
    predictions, examples = pipeline.records(TOPICS.predictions), pipeline.records(TOPICS.examples)
    promoted = [
        one._replace(value=(one.value or b"").replace(b'"champion":"igw-logistic"', b'"champion":"banditron"')
        .replace(b'"banditron":', b'"igw-logistic":'))
        for one in predictions
    ]  # fmt: skip
    dashboard.take(of_partition(promoted, 0, 0) + of_partition(examples, 0, 0))
    champions = [shown(dashboard)["challengers"]["rows"][0][4]]
    dashboard.take(of_partition(predictions, 1, 60_000) + of_partition(examples, 1, 60_000))
    champions.append(shown(dashboard)["challengers"]["rows"][0][4])
    assert champions == ["banditron", "igw-logistic"]
    arms = results_from_topics(pipeline.broker, TOPICS, 1, pipeline.settings, is_estimated=False).holdout
    assert arms is not None
    learner, holdout = shown(dashboard)["holdout"]["rows"][0][2:]
    assert learner.startswith(f"{2 * arms.learner.rewards:,} of {2 * arms.learner.n:,}")
    assert holdout.startswith(f"{2 * arms.holdout.rewards:,} of {2 * arms.holdout.n:,}")


def test_pipeline_without_holdout_and_challengers_has_no_comparisons() -> None:
    made, data = Pipeline(synsep_task("banditron")), small_synsep()
    made.run([made.replay(data, 30, rate=200.0), made.feedback(data, plan())], made.learner())
    dashboard = Dashboard(TOPICS, 1, lambda: 0)
    dashboard.judge(policies_of(made), lambda wanted: {})
    dashboard.take(made.records(TOPICS.predictions) + made.records(TOPICS.examples))
    assert (shown(dashboard)["holdout"], shown(dashboard)["challengers"]) == (None, None)


def test_page_follows_a_holdout_and_challengers_that_are_added_while_it_runs(pipeline: Pipeline) -> None:
    settings = settings_in_force(pipeline.broker, TOPICS, 0).settings
    records = [pipeline.records(topic) for topic in (TOPICS.predictions, TOPICS.examples)]
    dashboard = Dashboard(TOPICS, 1, lambda: 0)
    dashboard.judge(live_policies([], settings | {"holdout": 0.0, "challengers": {}}, TOPICS), lambda wanted: {})
    dashboard.take([record for one in records for record in one[:100]])
    before = shown(dashboard)
    follow_settings(dashboard, ["constant:1", "constant:none"], settings, TOPICS)
    dashboard.take([record for one in records for record in one[100:]])
    after = shown(dashboard)
    assert (before["holdout"], before["challengers"]) == (None, None)
    assert {row[0] for row in after["challengers"]["rows"]} == {"banditron", "late-ucb"}
    assert after["holdout"] is not None
    assert "constant:1" in dashboard.policies.names
    assert "constant:none" not in dashboard.policies.names
