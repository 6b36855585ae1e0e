from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stream.learners import Cost, Learner, create
from stream.learners.base import State
from stream.offline import NEVER, Examples, Patience, run
from stream.task.settings import PolicyError
from stream.wire.records import Decision, Features, FloatArray, IndexArray


class CallRecorder(Learner):
    """A learner without kernels that records all calls to its methods."""

    name = "scribe"
    retractable = True

    def __init__(self) -> None:
        super().__init__(2, 4)
        self.calls: list[str] = []

    def predict(self, x: Features | FloatArray, u: float, eligible: IndexArray | None = None) -> Decision:
        self.calls.append(f"decide {self.event(x)}")
        return Decision(0, 0, 1.0, np.zeros(2))

    def update(
        self, x: Features | FloatArray, decision: Decision, reward: float, v: float = 0.0, label: int | None = None
    ) -> bool:
        self.calls.append(f"learn {self.event(x)}" if reward else f"learn {self.event(x)} wrong")
        return True

    def retract(
        self, x: Features | FloatArray, decision: Decision, assumed_reward: float, reward: float, v: float = 0.0
    ) -> bool:
        self.calls.append(f"correct {self.event(x)} from {assumed_reward} to {reward}")
        return True

    def event(self, x: Features | FloatArray) -> int:
        assert isinstance(x, Features)
        return int(x.indices[0])

    def state(self) -> State:
        return {}

    def load(self, state: Mapping[str, Any]) -> None: ...

    def weights(self) -> FloatArray:
        raise NotImplementedError

    @classmethod
    def cost(cls, n_classes: int, n_features: int, nnz: int, parameters: Mapping[str, Any]) -> Cost:
        return Cost(0, 0, 0)


FOUR = Examples(
    np.arange(5, dtype=np.int64), np.arange(4, dtype=np.int32), np.ones(4), np.array([0, 1, 0, 1], dtype=np.int64)
)
ALL_RIGHT = FOUR._replace(labels=np.zeros(4, dtype=np.int64))


@pytest.mark.parametrize(
    ("delays", "calls"),
    [
        ([0, 0, 0, 0], "d0 l0 d1 l1 d2 l2 d3 l3"),
        ([2, 0, 1, 0], "d0 d1 l1 d2 l0 d3 l2 l3"),
        ([3, 2, 1, 0], "d0 d1 d2 d3 l0 l1 l2 l3"),
        ([9, 1, 8, 0], "d0 d1 d2 l1 d3 l3 l0 l2"),
        ([NEVER, 0, NEVER, 5], "d0 d1 l1 d2 d3 l3"),
    ],
)
def test_feedback_is_applied_in_the_order_of_its_due_round_and_event(delays: list[int], calls: str) -> None:
    scribe = CallRecorder()
    run(scribe, ALL_RIGHT, np.zeros(4), delays=np.array(delays, dtype=np.int64))
    words = {"d": "decide", "l": "learn"}
    assert scribe.calls == [f"{words[call[0]]} {call[1]}" for call in calls.split()]


@pytest.mark.parametrize(
    ("policies", "calls"),
    [
        ({}, ["decide 0", "decide 1", "learn 1", "decide 2", "decide 3"]),
        (
            {"on_expiry": "negative"},
            ["decide 0", "decide 1", "learn 1", "decide 2", "learn 0 wrong", "decide 3", "learn 2 wrong",
             "learn 3 wrong"],
        ),
        (
            {"on_expiry": "negative", "late": "correct"},
            ["decide 0", "decide 1", "learn 1", "decide 2", "learn 0 wrong", "correct 0 from 0 to 1", "decide 3",
             "learn 2 wrong", "correct 2 from 0 to 1", "learn 3 wrong"],
        ),
    ],
)  # fmt: skip
def test_decision_expires_before_feedback_is_applied_in_the_round_after_its_window(
    policies: dict[str, Any], calls: list[str]
) -> None:
    scribe = CallRecorder()
    result = run(scribe, ALL_RIGHT, np.zeros(4), delays=np.array([2, 0, 2, NEVER]), patience=Patience(1, **policies))
    assert scribe.calls == calls
    assert (result.matched, result.expired, result.late) == (1, 3, 2)


def test_feedback_at_the_deadline_is_in_time() -> None:
    result = run(create("banditron", 2, 4), FOUR, np.zeros(4), delays=np.full(4, 3), patience=Patience(3))
    assert (result.matched, result.expired, result.late) == (4, 0, 0)


def test_policy_that_a_learner_does_not_support_is_rejected() -> None:
    with pytest.raises(PolicyError, match="arow learns from labels"):
        run(create("arow", 2, 4), FOUR, np.zeros(4), patience=Patience(3, "negative"))


def test_two_consecutive_runs_equal_a_single_run() -> None:
    whole, cut = (create("soba-diag", n_classes=2, n_features=4) for _ in range(2))
    u = np.array([0.1, 0.9, 0.5, 0.3])
    run(whole, FOUR, u)
    half = Examples(FOUR.offsets[:3], FOUR.indices[:2], FOUR.values[:2], FOUR.labels[:2])
    rest = Examples(FOUR.offsets[2:] - 2, FOUR.indices[2:], FOUR.values[2:], FOUR.labels[2:])
    run(cut, half, u[:2])
    run(cut, rest, u[2:])
    np.testing.assert_array_equal(whole.weights(), cut.weights())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": np.zeros(3)}, "expected 4 entries in u"),
        ({"u": np.ones(4)}, r"expected u in \[0, 1\)"),
        ({"v": np.full(4, -0.5)}, r"expected v in \[0, 1\)"),
        ({"delays": np.full(4, -2)}, "expected delays in rounds"),
        ({"patience": Patience(-1)}, "expected a window in rounds"),
        ({"patience": Patience(None, "negative")}, "requires a window"),
        ({"examples": FOUR._replace(labels=np.array([0, 1, 2, 0]))}, r"expected labels in 0\.\.1"),
        ({"examples": FOUR._replace(offsets=np.array([0, 2, 1, 3, 4]))}, "increasing offsets"),
    ],
)
def test_arrays_with_a_wrong_shape_or_range_are_rejected(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"examples": FOUR, "u": np.zeros(4)} | change
    with pytest.raises(ValueError, match=message):
        run(create("banditron", n_classes=2, n_features=4), **arguments)
