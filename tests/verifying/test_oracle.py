"""The audit's oracle at the limit of each rule, where one more millisecond, entry or action changes the outcome."""

from typing import Any

import numpy as np
import pytest

from stream.settings.task_fields import JoinSettings
from stream.verifying.oracle import Corrected, Decided, Letter, Oracle, SettingsChanged
from stream.wire.records import Context, Decision, Example, Features, Feedback, Outcome, Prediction, Record
from tests.pipeline import TOPICS, small_task

LIMITS = JoinSettings(window_ms=1_000, activation_window_ms=700, orphan_window_ms=500, retain_ms=10_000)
X = Features(np.zeros(1, np.int32), np.ones(1))

Line = tuple[Any, ...]
"""An input to the oracle. Each context has its own step; the first step is step 1. Possible inputs:

- `("context", id, at_ms)`, optionally with an action, "deferred" or "unmatched"
- `("feedback", id, at_ms)`, optionally with a reward and an action
- `("part", id, at_ms, part, reward)`, `("final", id, at_ms, part, reward)`
- `("shown", id, at_ms)`
- `("tick", step, at_ms)`
- `("limits", join_settings)`
"""


def prediction(event_id: str, action: int) -> Prediction:
    return Prediction(event_id, Decision(action, action, 0.5, np.zeros(3)), 0)


def played(*lines: Line, **changes: Any) -> Oracle:
    """Return an oracle that has processed these inputs."""
    oracle = Oracle(small_task(**{"join": LIMITS, **changes}))
    steps = 0
    for offset, (kind, *line) in enumerate(lines):
        if kind == "limits":
            oracle.change_settings(small_task(**{**changes, "join": line[0]}))
            continue
        name, at_ms, *more = line
        topic = TOPICS.contexts if kind == "context" else TOPICS.feedback
        record = Record(topic, 0, offset, at_ms, None, b"", ())
        if kind == "context":
            steps += 1
            date: list[int] = []
            made = prediction(name, more[0] if more and isinstance(more[0], int) else 1)
            decides = oracle.events
            before = len(decides)
            context = Context(name, X, is_deferred="deferred" in more)
            oracle.context(context, record, made, date, is_unmatched="unmatched" in more)
            if any(isinstance(event, Decided) for event in decides[before:]):
                oracle.undated[steps] = date
        else:
            oracle.pass_time(at_ms)
            if kind == "tick":
                oracle.tick(name, at_ms)
            elif kind == "shown":
                oracle.shown(name, record)
            elif kind in ("part", "final"):
                oracle.feedback(Feedback(name, more[1], part=more[0], is_final=kind == "final"), record)
            else:
                oracle.feedback(
                    Feedback(name, more[0] if more else 1, action=more[1] if len(more) > 1 else None), record
                )
    return oracle


def counts(oracle: Oracle) -> dict[str, int]:
    """Return the ledger's nonzero counts, except the numbers of contexts, feedback records and decisions."""
    omitted = ("contexts", "feedback", "decided")
    return {name: n for name, n in oracle.ledger()._asdict().items() if n and name not in omitted}


DECIDED: tuple[Line, ...] = (("context", "a", 900), ("tick", 1, 1_000))
MATCHED: tuple[Line, ...] = (*DECIDED, ("feedback", "a", 1_000))
DEFERRED: tuple[Line, ...] = (("context", "a", 900, "deferred"), ("tick", 1, 1_000))
UNMATCHED: tuple[Line, ...] = (("context", "a", 900, "unmatched"),)
ONE = JoinSettings(
    window_ms=1_000, orphan_window_ms=500, retain_ms=10_000, pending_max=1, orphans_max=1, retained_max=1
)

CASES: dict[str, tuple[tuple[Line, ...], dict[str, int]]] = {
    "feedback before its tick": ((("context", "a", 900), ("feedback", "a", 5_000)), {"matched": 1}),
    "undated decision waits": ((("context", "a", 900), ("feedback", "b", 9_000)), {"pending": 1, "orphans_waiting": 1}),
    "feedback at the deadline": ((*DECIDED, ("feedback", "a", 2_000)), {"matched": 1}),
    "feedback after the deadline": ((*DECIDED, ("feedback", "a", 2_001)), {"expired": 1, "late": 1}),
    "tick at the deadline": ((*DECIDED, ("tick", 0, 2_000)), {"pending": 1}),
    "tick after the deadline": ((*DECIDED, ("tick", 0, 2_001)), {"expired": 1}),
    "tick of a later step": ((("context", "a", 900), ("tick", 2, 1_000), ("tick", 0, 9_000)), {"pending": 1}),
    "second tick of a step": ((*DECIDED, ("tick", 1, 1_500), ("feedback", "a", 2_001)), {"expired": 1, "late": 1}),
    "first decision not dated": (
        (("context", "a", 900), ("context", "b", 900), ("tick", 2, 1_000), ("tick", 0, 9_000)), {"pending": 2},
    ),
    "duplicate context": ((*DECIDED, ("context", "a", 1_100)), {"pending": 1, "context_duplicates": 1}),
    "duplicate within retention": ((*MATCHED, ("feedback", "a", 11_000)), {"matched": 1, "feedback_duplicates": 1}),
    "duplicate after retention": ((*MATCHED, ("feedback", "a", 11_001)), {"matched": 1, "orphans_waiting": 1}),
    "conflict": ((*MATCHED, ("feedback", "a", 1_001, 0)), {"matched": 1, "feedback_duplicates": 1, "conflicts": 1}),
    "orphan": ((("feedback", "a", 800), *DECIDED), {"matched": 1}),
    "second orphan in time": (
        (("feedback", "a", 800), ("feedback", "a", 1_300, 0)),
        {"orphans_waiting": 1, "feedback_duplicates": 1, "conflicts": 1},
    ),
    "second orphan too late": (
        (("feedback", "a", 800), ("feedback", "a", 1_301)), {"orphans_waiting": 1, "orphans_dropped": 1},
    ),
    "orphan with another action": ((("feedback", "a", 800, 1, 2), *DECIDED), {"pending": 1, "mismatched": 1}),
    "feedback with another action": ((*DECIDED, ("feedback", "a", 1_000, 1, 2)), {"pending": 1, "mismatched": 1}),
    "duplicate with another action": ((*MATCHED, ("feedback", "a", 1_000, 1, 2)), {"matched": 1, "mismatched": 1}),
    "late feedback with another action": (
        (*DECIDED, ("feedback", "a", 2_001, 1, 2)), {"expired": 1, "mismatched": 1},
    ),
    "feedback with the decided action": ((*DECIDED, ("feedback", "a", 1_000, 1, 1)), {"matched": 1}),
    "limit of pending decisions": (
        (("limits", ONE), *DECIDED, ("context", "b", 1_000), ("feedback", "a", 1_001)),
        {"pending": 1, "expired": 1, "late": 1, "pending_evicted": 1},
    ),
    "limit of orphans": (
        (("limits", ONE), ("feedback", "a", 800), ("feedback", "b", 800)),
        {"orphans_waiting": 1, "orphans_dropped": 1, "orphans_evicted": 1},
    ),
    "limit of settled IDs": (
        (("limits", ONE), *MATCHED, ("context", "b", 1_000), ("feedback", "b", 1_000), ("feedback", "a", 1_000)),
        {"matched": 2, "orphans_waiting": 1, "retained_evicted": 1},
    ),
    "shorter window": ((*DECIDED, ("tick", 0, 1_301), ("limits", JoinSettings(window_ms=300))), {"expired": 1}),
    "lower limits": (
        (("context", "a", 900), ("context", "b", 900), ("limits", ONE)),
        {"pending": 1, "expired": 1, "pending_evicted": 1},
    ),
    "less retention": ((*MATCHED, ("tick", 0, 1_011), ("limits", JoinSettings(retain_ms=10)), ("feedback", "a", 1_011)),
                       {"matched": 1, "orphans_waiting": 1}),
    "deferred": ((*DEFERRED, ("tick", 0, 1_700)), {"deferred": 1}),
    "deferred and not shown": ((*DEFERRED, ("tick", 0, 1_701)), {"unshown": 1}),
    "shown at the end of activation": (
        (*DEFERRED, ("shown", "a", 1_700), ("tick", 0, 2_700)), {"pending": 1, "shown": 1},
    ),
    "shown, then expired": ((*DEFERRED, ("shown", "a", 1_700), ("tick", 0, 2_701)), {"expired": 1, "shown": 1}),
    "shown twice": (
        (*DEFERRED, ("shown", "a", 1_100), ("shown", "a", 1_200)), {"pending": 1, "shown": 1, "feedback_duplicates": 1},
    ),
    "shown although not deferred": ((*DECIDED, ("shown", "a", 1_100)), {"pending": 1, "feedback_duplicates": 1}),
    "shown when matched": ((*MATCHED, ("shown", "a", 1_100)), {"matched": 1, "feedback_duplicates": 1}),
    "shown too late": ((*DEFERRED, ("shown", "a", 1_701)), {"unshown": 1, "late": 1}),
    "feedback for an unshown decision": ((*DEFERRED, ("feedback", "a", 1_701)), {"unshown": 1, "late": 1}),
    "feedback before shown": (
        (*DEFERRED, ("feedback", "a", 1_100), ("shown", "a", 1_101)), {"matched": 1, "feedback_duplicates": 1},
    ),
    "feedback for another action when deferred": (
        (*DEFERRED, ("feedback", "a", 1_100, 1, 2)), {"deferred": 1, "mismatched": 1},
    ),
    "shown before its context": ((("shown", "a", 800), *DEFERRED, ("tick", 0, 2_000)), {"pending": 1, "shown": 1}),
    "shown before a context that is not deferred": (
        (("shown", "a", 800), *DECIDED), {"pending": 1, "feedback_duplicates": 1},
    ),
    "shown without a context": ((("shown", "a", 800), ("tick", 0, 1_301)), {"orphans_dropped": 1}),
    "shown, then feedback, without a context": (
        (("shown", "a", 800), ("feedback", "a", 1_200), ("tick", 0, 1_700)), {"shown": 1, "orphans_waiting": 1},
    ),
    "feedback, then shown, without a context": (
        (("feedback", "a", 800), ("shown", "a", 801)), {"orphans_waiting": 1, "feedback_duplicates": 1},
    ),
    "orphan of a deferred decision": ((("feedback", "a", 800), *DEFERRED), {"matched": 1}),
    "orphan for another action, deferred": (
        (("feedback", "a", 800, 1, 2), *DEFERRED), {"deferred": 1, "mismatched": 1},
    ),
    "deferred decision evicted at the limit": (
        (("limits", ONE), *DEFERRED, ("context", "b", 1_000)), {"pending": 1, "unshown": 1, "deferred_evicted": 1},
    ),
    "shown when unmatched": ((*UNMATCHED, ("shown", "a", 1_000)), {"unmatched": 1, "feedback_unmatched": 1}),
    "unmatched after shown": ((("shown", "a", 800), *UNMATCHED), {"unmatched": 1, "feedback_unmatched": 1}),
    "unmatched": ((*UNMATCHED, ("tick", 0, 9_000)), {"unmatched": 1}),
    "unmatched after an orphan": ((("feedback", "a", 800), *UNMATCHED), {"unmatched": 1, "feedback_unmatched": 1}),
    "unmatched, then feedback for any action": (
        (*UNMATCHED, ("feedback", "a", 1_000, 1, 2)), {"unmatched": 1, "feedback_unmatched": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", CASES)
def test_oracle_has_the_expected_counts(claim: str) -> None:
    lines, expected = CASES[claim]
    oracle = played(*lines)
    assert counts(oracle) == expected
    assert oracle.ledger().balances


def example(outcome: Outcome, *rest: int | None, event_id: str = "a") -> Example:
    reward, delay_ms, settled_at_ms, offset = rest
    return Example(event_id, outcome, 1, 0.5, reward, delay_ms, settled_at_ms or 0, offset)


def outcomes(oracle: Oracle) -> list[Any]:
    return [event for event in oracle.events if not isinstance(event, Decided | SettingsChanged)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((*DECIDED, ("feedback", "a", 1_250, 0)), [example(Outcome.MATCHED, 0, 250, 1_250, 2)]),
        ((*DECIDED, ("feedback", "a", 990)), [example(Outcome.MATCHED, 1, 0, 1_000, 2)]),  # another leader's clock
        ((("feedback", "a", 800), *DECIDED), [example(Outcome.MATCHED, 1, 0, 800, 0)]),
        ((*DECIDED, ("tick", 0, 3_000)), [example(Outcome.EXPIRED, None, None, 3_000, None)]),
        ((("feedback", "a", 800), *UNMATCHED), [example(Outcome.UNMATCHED, None, None, 800, 0)]),
        ((("feedback", "a", 800), ("tick", 0, 1_301)), [Letter(TOPICS.feedback, 0, 0, "orphan")]),
        ((("feedback", "a", 800, 1, 2), *DECIDED), [Letter(TOPICS.feedback, 0, 0, "mismatched")]),
        ((*DEFERRED, ("tick", 0, 1_701)), [example(Outcome.UNSHOWN, None, None, 1_701, None)]),
        (
            (*DEFERRED, ("shown", "a", 1_100), ("feedback", "a", 1_250)),
            [example(Outcome.MATCHED, 1, 150, 1_250, 3)],
        ),
        (
            (*DECIDED, ("feedback", "a", 2_001), ("feedback", "a", 2_002, 0)),
            [example(Outcome.EXPIRED, None, None, 2_001, None)],
        ),
    ],
)
def test_outcome_has_the_expected_times_and_offsets(lines: tuple[Line, ...], expected: list[Any]) -> None:
    assert outcomes(played(*lines)) == expected


CORRECT = {"on_expiry": "negative", "late": "correct"}
LATE: tuple[Line, ...] = (("feedback", "a", 2_001), ("feedback", "a", 2_002, 0))


def test_only_the_first_late_feedback_corrects_a_decision() -> None:
    oracle = played(*DECIDED, *LATE, **CORRECT)
    assert outcomes(oracle) == [example(Outcome.EXPIRED, 0, None, 2_001, None), Corrected("a", 1, 0)]


def test_each_higher_late_reward_corrects_the_maximum() -> None:
    late: tuple[Line, ...] = (
        ("part", "a", 2_001, "p", 0.5),
        ("part", "a", 2_002, "p", 0.25),
        ("part", "a", 2_003, "p", 1),
    )
    oracle = played(*DECIDED, *late, **CORRECT, feedback="max")
    corrections = [event for event in oracle.events if isinstance(event, Corrected)]
    assert corrections == [Corrected("a", 0.5, 0), Corrected("a", 1, 0.5)]


SUM = {"learner": "late-ucb", "rewards": "graded", "reward_range": "0,5", "feedback": "sum"}

SEVERAL: dict[str, tuple[dict[str, Any], tuple[Line, ...], dict[str, int], list[float | None]]] = {
    "maximum at the deadline": (
        {"feedback": "max", **{name: SUM[name] for name in ("learner", "rewards", "reward_range")}},
        (*DECIDED, ("part", "a", 1_500, "p", 2), ("part", "a", 1_600, "p", 3), ("part", "a", 1_700, "p", 1),
         ("tick", 0, 2_001)),
        {"matched": 1, "combined": 1, "feedback_duplicates": 1}, [3],
    ),
    "highest reward": (
        {"feedback": "max"},
        (*DECIDED, ("feedback", "a", 1_500, 0), ("feedback", "a", 1_600), ("feedback", "a", 1_601)),
        {"matched": 1, "combined": 1, "feedback_duplicates": 1}, [1],
    ),
    "final feedback, then a higher reward": (
        {"feedback": "max"}, (*DECIDED, ("final", "a", 1_500, "p", 0), ("feedback", "a", 1_600)),
        {"matched": 1, "late": 1}, [0],
    ),
    "answered at the deadline": (
        {"feedback": "max"}, (*DECIDED, ("feedback", "a", 1_500, 0), ("tick", 0, 2_000)),
        {"pending": 1, "answered": 1}, [],
    ),
    "parts": (
        SUM, (*DECIDED, ("part", "a", 1_500, "p", 0.1), ("part", "a", 1_501, "q", 0.2), ("part", "a", 1_502, "p", 1),
              ("final", "a", 1_503, "r", 0.3)),
        {"matched": 1, "combined": 2, "feedback_duplicates": 1, "conflicts": 1}, [0.6],
    ),
    "sum beyond the range": (
        SUM, (*DECIDED, ("part", "a", 1_500, "p", 9), ("final", "a", 1_501, "q", -3)),
        {"matched": 1, "combined": 1}, [5],
    ),
    "most parts": (
        SUM, (*DECIDED, *(("part", "a", 1_500, f"p{n}", 0.0625) for n in range(65)), ("tick", 0, 2_001)),
        {"matched": 1, "combined": 63, "feedback_excess": 1}, [4],
    ),
    "parts before the context": (
        SUM, (("part", "a", 800, "p", 1), ("part", "a", 801, "q", 1), ("part", "a", 802, "p", 1), *DECIDED,
              ("tick", 0, 2_001)),
        {"matched": 1, "combined": 1, "feedback_duplicates": 1}, [2],
    ),
    "limit of orphans": (
        {**SUM, "join": ONE}, (("part", "a", 800, "p", 1), ("part", "a", 801, "q", 1)),
        {"orphans_dropped": 2, "orphans_evicted": 2}, [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_several_rewards_are_combined(name: str) -> None:
    changes, lines, expected, rewards = SEVERAL[name]
    oracle = played(*lines, **changes)
    assert counts(oracle) == expected
    assert oracle.ledger().balances
    assert [event.reward for event in oracle.events if isinstance(event, Example)] == rewards


def test_decision_that_expired_before_corrections_were_enabled_is_not_corrected() -> None:
    oracle = played(*DECIDED, ("tick", 0, 2_001), on_expiry="negative")
    oracle.change_settings(small_task(join=LIMITS, **CORRECT))
    oracle.feedback(Feedback("a", 1), Record(TOPICS.feedback, 0, 3, 2_001, None, b"", ()))
    assert outcomes(oracle) == [example(Outcome.EXPIRED, 0, None, 2_001, None)]


def test_expired_decision_has_reward_0_under_the_negative_policy() -> None:
    assert outcomes(played(*DECIDED, ("tick", 0, 3_000), on_expiry="negative")) == [
        example(Outcome.EXPIRED, 0, None, 3_000, None)
    ]


def test_decision_times_never_decrease_in_the_oracle() -> None:
    lines = (*DECIDED, ("context", "b", 900), ("tick", 2, 950), ("feedback", "b", 1_100))
    assert outcomes(played(*lines)) == [example(Outcome.MATCHED, 1, 100, 1_100, 4, event_id="b")]


def test_window_begins_at_the_time_of_the_context_if_dated_by_context() -> None:
    for at_ms, outcome in ((1_900, "matched"), (1_901, "expired")):
        oracle = played(("context", "a", 900), ("feedback", "a", at_ms), dated_by="context")
        assert counts(oracle)[outcome] == 1


@pytest.mark.parametrize(
    ("before", "published"),
    [(DECIDED, prediction("a", 1)), ((), None), ((), prediction("b", 1))],
    ids=["decided again", "no prediction", "prediction of another event"],
)
def test_wrong_prediction_for_a_context_is_reported(before: tuple[Line, ...], published: Prediction | None) -> None:
    oracle = played(*before)
    decided = oracle.counts["decided"]
    record = Record(TOPICS.contexts, 0, 9, 1_100, None, b"", ())
    assert oracle.context(Context("a", X), record, published, [], is_unmatched=False) != ""
    assert oracle.counts["decided"] == decided
