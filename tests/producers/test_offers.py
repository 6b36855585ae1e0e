"""The synthetic data sets of offers from a catalogue that changes."""

import numpy as np
import pytest

from onebit.runs.embedded import EmbeddedPrograms, prepare_embedded, run_embedded
from onebit.runs.plan import resolve_run
from producers.data import check_play, check_rewards, dataset_of
from producers.datasets.base import Dataset
from producers.datasets.offers import BLOCKS, DAY_ROWS, ITEMS, NEW_ITEMS, OFFERED, catalogue, catalogue_graded, id_of
from stream.kafka.reading import read_partition
from stream.offline import Examples, run
from stream.randomness.draws import Draws, Purpose
from stream.recovery.state import state_digest
from stream.settings.definitions import Settings
from stream.wire.actions import key_of
from stream.wire.codec import decode_prediction
from stream.wire.records import TopicPartition

ROWS = 300
EVENTS = 150


def test_rows_depend_on_the_row_and_the_seed_alone() -> None:
    data, again, other = catalogue(3), catalogue(3), catalogue(4)
    values = np.stack([data.row(row).x.values for row in range(50)])
    assert np.array_equal(values, [again.row(row).x.values for row in reversed(range(50))][::-1])
    assert not np.array_equal(values, [other.row(row).x.values for row in range(50)])
    block = data.block(20, 30)
    assert np.array_equal(block.values, values[20:30].ravel())
    assert np.array_equal(np.diff(block.offsets), np.full(10, BLOCKS.n_features))


def test_x_contains_the_key_of_each_offered_item() -> None:
    data = catalogue(1)
    x, ids = data.row(7).x, data.actions(7)
    assert len(set(ids)) == len(ids) == OFFERED
    assert [BLOCKS.key_at(x, place) for place in range(OFFERED)] == [key_of(name) for name in ids]


def test_item_has_the_same_features_in_all_rows() -> None:
    data = catalogue(2)
    seen: dict[str, list[float]] = {}
    for row in range(0, 3 * DAY_ROWS, 100):
        _, blocks = BLOCKS.split(data.row(row).x)
        for name, block in zip(data.actions(row), blocks, strict=True):
            assert seen.setdefault(name, block.values.tolist()) == block.values.tolist()


@pytest.mark.parametrize("day", [0, 5, 999])
def test_oldest_items_leave_the_catalogue_at_the_end_of_a_day(day: int) -> None:
    data = catalogue(0)
    offered = {name for row in range(day * DAY_ROWS, (day + 1) * DAY_ROWS, 10) for name in data.actions(row)}
    assert offered == {id_of(item) for item in range(day * NEW_ITEMS, day * NEW_ITEMS + ITEMS)}


def test_rewards_follow_their_probabilities() -> None:
    bits, graded = catalogue(5), catalogue_graded(5)
    drawn = np.stack([bits.offers.visit(row).rewards for row in range(ROWS)])
    shares = np.stack([graded.offers.visit(row).rewards for row in range(ROWS)])
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert 0.0 <= shares.min() < 0.1 < 0.9 < shares.max() <= 1.0
    assert abs(drawn.mean() - shares.mean()) < 0.03
    known = bits.known_of(bits.event_id(4, epoch=1))
    assert [known.reward_of(place) for place in range(OFFERED)] == drawn[4].tolist()
    of_graded = graded.known_of(graded.event_id(4))
    assert [type(one.reward_of(0)) for one in (known, of_graded)] == [int, float]


@pytest.mark.parametrize(("name", "rewards"), [("catalogue", "bit"), ("catalogue-graded", "graded")])
def test_own_actions_can_be_played(name: str, rewards: str) -> None:
    settings = Settings.model_validate({"data": name, "rewards": rewards})
    data = dataset_of(settings)
    check_play("own", data)
    check_rewards(settings, data)
    assert data.blocks == BLOCKS


def pipeline_of(data: Dataset, delay: str) -> EmbeddedPrograms:
    settings = Settings.model_validate({"learner": ["igw-log"], "rate": 1_000.0, "seed": 3, "delay": delay})
    return prepare_embedded(resolve_run(settings, "igw-log", data))


def test_pipeline_equals_the_compiled_loop() -> None:
    data = catalogue(6, EVENTS)
    pipeline = pipeline_of(data, "fixed:9ms")
    pipeline.run_to_end()
    topic = TopicPartition(pipeline.run.topics.predictions, 0)
    made = [decode_prediction(record)[0] for record in read_partition(pipeline.broker, topic)]
    task = pipeline.run.task
    ids = [data.event_id(t) for t in range(EVENTS)]
    u, v = (np.array(list(map(Draws(task.seed, purpose), ids))) for purpose in (Purpose.ACTION, Purpose.UPDATE))
    rewards = np.stack([data.offers.visit(row).rewards for row in range(EVENTS)]).astype(np.int64)
    learner = task.make_learner()
    result = run(learner, Examples(*data.block(0, EVENTS), rewards), u, v, np.full(EVENTS, 9))
    assert [one.decision.action for one in made] == result.actions.tolist()
    assert [one.class_name for one in made] == [data.actions(t)[k] for t, k in enumerate(result.actions)]
    state = pipeline.learner.tasks[0].learner.state()
    assert state_digest([state]) == state_digest([learner.state()])


def test_report_shows_mean_rewards() -> None:
    data = catalogue(6, EVENTS)
    settings = Settings.model_validate({"learner": ["igw-log"], "rate": 1_000.0, "delay": "none"})
    found = run_embedded(resolve_run(settings, "igw-log", data)).to_dict()
    assert found["ledger_ok"] is True
    assert (found["error_rate"], found["constant_mean_reward"]) == (None, None)
    assert 0.1 < float(str(found["mean_reward"])) < 0.8
