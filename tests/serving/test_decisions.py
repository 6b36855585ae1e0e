"""The decisions that a gateway remembers, and its fallback decisions."""

import asyncio
import gc
from itertools import islice

import numpy as np
import pytest

from producers.gateway.decisions import Answer, Decisions, FallbackError, PipelineFacts, fallback_answer

FACTS = PipelineFacts(n_classes=3, n_features=2, seed=7)


SCORES = np.array([0.5, -1.0, 0.25])


def at(append_ms: int, action: int = 0) -> Answer:
    return Answer(action, 0.5, append_ms=append_ms)


def test_gateway_keeps_the_first_decision_of_an_event() -> None:
    decisions = Decisions(1_000)
    decisions.add([("a", at(10, action=1), SCORES), ("a", at(20, action=2), SCORES)])
    decisions.add([("a", at(30, action=0), SCORES)])
    assert decisions.find("a") == at(10, action=1)


def test_gateway_forgets_decisions_older_than_the_time_limit() -> None:
    decisions = Decisions(1_000)
    decisions.add([("a", at(10), SCORES), ("b", at(11), SCORES), ("c", at(1_010), SCORES)])
    assert decisions.find("a") is not None
    decisions.add([("d", at(1_011), SCORES)])
    assert (decisions.find("a"), decisions.find("b")) == (None, at(11))


def test_gateway_forgets_the_oldest_decision_above_the_size_limit() -> None:
    decisions = Decisions(1_000, remembered_max=2)
    decisions.add([("a", at(1), SCORES), ("b", at(2), SCORES), ("c", at(3), SCORES)])
    assert (decisions.find("a"), decisions.remembered) == (None, 2)


def test_gateway_forgets_the_oldest_scores_above_their_limit_but_keeps_the_decisions() -> None:
    decisions = Decisions(1_000, scores_bytes_max=2 * SCORES.nbytes)
    decisions.add([("a", at(1), SCORES), ("b", at(2), SCORES), ("c", at(3), SCORES + 1)])
    found = decisions.scores("c")
    assert isinstance(found, np.ndarray)
    assert (decisions.find("a"), decisions.scores("a"), found.tolist()) == (at(1), None, [1.5, 0.0, 1.25])


def test_gateway_forgets_scores_with_their_decision() -> None:
    decisions = Decisions(1_000, remembered_max=1, scores_bytes_max=SCORES.nbytes)
    for number in range(10):
        decisions.add([(f"visit-{number}", at(number), SCORES)])
    assert decisions.scores("visit-9") is not None


def test_garbage_collector_does_not_track_decisions() -> None:
    assert not gc.is_tracked(at(1))


def test_decision_completes_all_requests_for_its_event() -> None:
    async def ask() -> tuple[int, list[Answer], int]:
        decisions = Decisions(1_000)
        with (
            decisions.expected("a", b"") as one,
            decisions.expected("a", b"") as other,
            decisions.expected("b", b"") as third,
        ):
            waiting = decisions.waiting
            decisions.add([("a", at(1, action=2), SCORES), ("b", at(2), SCORES)])
            answers = list(await asyncio.gather(one, other, third))
        return waiting, answers, decisions.waiting

    assert asyncio.run(ask()) == (3, [at(1, action=2), at(1, action=2), at(2)], 0)


def test_cancelled_request_does_not_affect_the_others() -> None:
    async def ask() -> Answer:
        decisions = Decisions(1_000)
        with decisions.expected("a", b"") as one, decisions.expected("a", b"") as other:
            one.cancel()
            decisions.add([("a", at(1), SCORES)])
            return await other

    assert asyncio.run(ask()) == at(1)


def test_uniform_fallback_is_uniform_over_events_and_the_same_in_repeats() -> None:
    actions = [fallback_answer("uniform", f"visit-{number}", FACTS).action for number in range(3_000)]
    assert [abs(actions.count(action) - 1_000) < 100 for action in range(3)] == [True] * 3
    assert fallback_answer("uniform", "visit-5", FACTS) == Answer(actions[5], 1 / 3)
    other = [fallback_answer("uniform", f"visit-{number}", FACTS._replace(seed=8)).action for number in range(100)]
    assert other != list(islice(actions, 100))


def test_fallback_decision_is_one_of_the_eligible_classes() -> None:
    eligible = np.array([0, 2], np.int32)
    found = [fallback_answer("uniform", f"visit-{number}", FACTS, eligible) for number in range(100)]
    assert {one.action for one in found} == {0, 2}
    assert {one.propensity for one in found} == {0.5}
    assert fallback_answer("2", "visit-1", FACTS, eligible).action == 2
    with pytest.raises(FallbackError):
        fallback_answer("1", "visit-1", FACTS, eligible)
    with pytest.raises(FallbackError):
        fallback_answer("uniform", "visit-1", FACTS._replace(open_classes=True))


@pytest.mark.parametrize("given", ["3", "-1", "offers", "²"])
def test_fallback_to_an_unknown_class_is_rejected(given: str) -> None:
    with pytest.raises(FallbackError, match=r"expected uniform, or a class of the pipeline \(0 to 2\); got "):
        fallback_answer(given, "a", FACTS)


def test_fallback_is_a_class_name_or_else_a_class_number() -> None:
    facts = FACTS._replace(class_names=("1", "uniform", "0"))
    found = [fallback_answer(given, "a", facts) for given in ("0", "1", "2", "uniform")]
    assert [(one.action, one.class_name, one.propensity) for one in found] == [
        (2, "0", 1.0), (0, "1", 1.0), (2, "0", 1.0), (1, "uniform", 1.0)
    ]  # fmt: skip
