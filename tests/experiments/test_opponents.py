"""River's learners on Onebit's streams. Vowpal Wabbit is not tested, because it is not a test dependency."""

from typing import Any

import numpy as np
import pytest

from onebit.experiments.definition import Conditions
from onebit.experiments.opponents import oppose, play
from onebit.experiments.sets import linear_models
from onebit.experiments.streams import Stream, stream_of
from stream.learners import ParameterError
from stream.offline import NEVER


class CallRecorder:
    """A learner that records all calls to its methods."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def decide(self, t: int, u: float) -> tuple[int, Any]:
        self.calls.append(f"decide {t}")
        return 0, t

    def learn(self, kept: Any, action: int, label: int) -> None:
        self.calls.append(f"learn {kept}")


def small_stream(events: int, delays: list[int] | None = None) -> Stream:
    stream = stream_of(linear_models(1), 1, events, 1, Conditions())
    return stream if delays is None else stream._replace(delays=np.array(delays))


def test_other_learners_receive_feedback_in_the_order_of_the_compiled_loop() -> None:
    scribe = CallRecorder()
    play(scribe, small_stream(5, [2, 0, NEVER, 0, 9]))
    assert scribe.calls == [
        "decide 0", "decide 1", "learn 1", "decide 2", "learn 0", "decide 3", "learn 3", "decide 4",
    ]  # fmt: skip


def test_learners_of_river_learn_from_the_class_or_from_the_reward() -> None:
    data = linear_models(1)
    stream = stream_of(data, 1, 400, 1, Conditions())
    for model in ("logistic", "linucb"):
        wrong = oppose("river", {"model": model}, data, stream) != stream.truth
        assert wrong[-100:].mean() < 0.6, "uniform play has an error rate of 0.8"


def test_unknown_river_model_is_rejected() -> None:
    with pytest.raises(ParameterError):
        oppose("river", {"model": "tree"}, linear_models(1), small_stream(5))
