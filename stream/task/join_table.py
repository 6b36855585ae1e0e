"""The join's table, with one rule for each combination of an event id's state and an input.

A rule contains a move, the next state and the counts. If the move settles a decision, it also determines the outcome.
To change a policy, edit the policy's rule. `check_table` rejects a table with an inconsistent rule.
"""

from collections.abc import Mapping
from enum import Enum, unique
from itertools import chain
from typing import NamedTuple

from stream.wire.ledger import IDENTITIES
from stream.wire.records import Outcome


@unique  # without @unique, members with equal values would be aliases
class State(Enum):
    """An event id's state."""

    __hash__ = object.__hash__  # Enum.__hash__ takes 0.1 µs, and each event looks up several rules

    UNSEEN = ("no decision", "nothing waits")
    ORPHAN = ("no decision", "a waiting record", "waiting feedback", "earlier feedback", "a deadline")
    SHOWN_ORPHAN = ("no decision", "a waiting record", "a deadline")  # a shown record waits for its context
    DEFERRED = ("a decision", "an unsettled decision", "a deferred decision", "a deadline")
    PENDING = ("a decision", "an unsettled decision", "a deadline")
    ANSWERED = (
        "a decision", "an unsettled decision", "collected feedback", "earlier feedback", "a reward", "a deadline",
    )  # fmt: skip
    MATCHED = ("a decision", "a settled decision", "earlier feedback", "a reward", "a deadline")
    EXPIRED = ("a decision", "a settled decision", "an expired decision", "a deadline")
    UNMATCHED = ("a decision", "a settled decision", "an unused decision", "a deadline")
    UNSHOWN = ("a decision", "a settled decision", "an unused decision", "never shown", "a deadline")

    def __init__(self, *has: str) -> None:
        self.has = frozenset(has)


@unique
class Input(Enum):
    """An input for an event id. An input can occur only in states that have all the properties in `requires`."""

    __hash__ = object.__hash__

    CONTEXT = ("a context",), ()
    CONTEXT_MISMATCH = ("a context", "another action"), ("waiting feedback",)  # the feedback names a different action
    UNMATCHED = ("a context", "no reward in the log"), ("no decision",)  # the logged action differs from the chosen one
    DEFERRED = ("a context", "a deferral"), ("no decision",)  # the decision waits to be shown
    DEFERRED_MISMATCH = ("a context", "a deferral", "another action"), ("waiting feedback",)
    CONTEXT_PARTIAL = ("a context", "more feedback"), ("waiting feedback",)  # more feedback can change the reward
    FEEDBACK = ("new feedback",), ()
    PARTIAL = ("new feedback", "more feedback"), ()  # more feedback can change the reward
    REPEATED = ("new feedback", "nothing new"), ("a reward",)  # the feedback does not change the reward
    EXCESS = ("new feedback", "one part too many"), ("collected feedback",)
    MISMATCH = ("new feedback", "another action"), ("a decision",)  # the feedback is for a different action
    SHOWN = ("a shown record",), ()
    DEADLINE = ("no record",), ("a deadline",)  # the state's deadline has passed, or there are too many entries

    def __init__(self, brings: tuple[str, ...], requires: tuple[str, ...]) -> None:
        self.brings = frozenset(brings)
        self.requires = frozenset(requires)


@unique
class Move(Enum):
    """An action that the join performs on an event id, with its meaning, requirements, next state, and outcome."""

    DECIDE = "predict and wait for feedback", ("a context", "no decision"), State.PENDING
    DECIDE_AND_MATCH = "predict and learn at once", ("a context", "waiting feedback"), State.MATCHED, Outcome.MATCHED
    DECIDE_AND_REFUSE = (
        "predict and refuse feedback", ("a context", "waiting feedback", "another action"), State.PENDING,
    )  # fmt: skip
    DEFER = "predict and wait until the decision is shown", ("a context", "a deferral", "no decision"), State.DEFERRED
    DEFER_AND_REFUSE = (
        "predict, refuse feedback, and wait until the decision is shown",
        ("a context", "a deferral", "waiting feedback", "another action"), State.DEFERRED,
    )  # fmt: skip
    DECIDE_UNMATCHED = (
        "predict only", ("a context", "no decision", "no reward in the log"), State.UNMATCHED, Outcome.UNMATCHED,
    )  # fmt: skip
    DECIDE_AND_COLLECT = (
        "predict and wait for more feedback", ("a context", "waiting feedback", "more feedback"), State.ANSWERED,
    )  # fmt: skip
    IGNORE_CONTEXT = "ignore the context for an id with a decision", ("a context", "a decision")
    KEEP_ORPHAN = "the feedback waits for its context", ("new feedback", "no decision"), State.ORPHAN
    KEEP_MORE = "the feedback waits with earlier feedback", ("new feedback", "waiting feedback"), State.ORPHAN
    KEEP_SHOWN = "the shown record waits for its context", ("a shown record", "nothing waits"), State.SHOWN_ORPHAN
    SHOW = "the window begins", ("a shown record", "a deferred decision"), State.PENDING
    IGNORE_SHOWN = "only the first shown record for a deferred decision is used", ("a shown record",)
    MATCH = "learn", ("new feedback", "an unsettled decision"), State.MATCHED, Outcome.MATCHED
    COLLECT = (
        "combine the feedback with earlier feedback, and wait for more",
        ("new feedback", "more feedback", "an unsettled decision"), State.ANSWERED,
    )  # fmt: skip
    IGNORE_FEEDBACK = "only the first reward counts; another reward is a conflict", ("new feedback", "earlier feedback")
    REPLACE = (
        "another reward is a conflict and replaces the first; with late=correct, it also corrects the model",
        ("new feedback", "earlier feedback"),
    )
    REFUSE = "the feedback is written to the dead-letter topic", ("new feedback", "a decision", "another action")
    REFUSE_PART = "the feedback is written to the dead-letter topic", ("new feedback", "one part too many")
    TAKE_LATE = "ignore the reward, or correct the assumed reward", ("new feedback", "an expired decision")
    TAKE_MORE = (
        "too late; with feedback=max and late=correct, a higher reward corrects the model",
        ("new feedback", "more feedback", "a reward", "a settled decision"),
    )
    IGNORE_UNUSED = "the decision is unmatched or unshown, and has no reward", ("new feedback", "an unused decision")
    END_COLLECTION = (
        "learn from the combined feedback", ("no record", "collected feedback"), State.MATCHED, Outcome.MATCHED,
    )  # fmt: skip
    EXPIRE = "settle without feedback", ("no record", "an unsettled decision"), State.EXPIRED, Outcome.EXPIRED
    LEAVE_UNSHOWN = "settle and learn nothing", ("no record", "a deferred decision"), State.UNSHOWN, Outcome.UNSHOWN
    DROP_ORPHAN = "the context did not arrive in time", ("no record", "a waiting record"), State.UNSEEN
    FORGET = "the id may be used again", ("no record", "a settled decision"), State.UNSEEN

    def __init__(
        self, meaning: str, needs: tuple[str, ...], after: State | None = None, settles: Outcome | None = None
    ) -> None:
        self.needs = frozenset(needs)
        self.after = after
        self.settles = settles


class Rule(NamedTuple):
    """The effects of one input in one state."""

    move: Move
    after: State
    counts: tuple[str, ...] = ()  # fields of `Ledger` that are incremented


Table = Mapping[tuple[State, Input], Rule]

_DECIDED = ("decided",)
_DUPLICATE = ("feedback_duplicates",)
_UNMATCHED = ("feedback_unmatched",)
_SHOWN = ("shown",)
_COMBINED = ("combined",)

TRANSITIONS: dict[tuple[State, Input], Rule] = {
    (State.UNSEEN, Input.CONTEXT): Rule(Move.DECIDE, State.PENDING, _DECIDED),
    (State.UNSEEN, Input.DEFERRED): Rule(Move.DEFER, State.DEFERRED, _DECIDED),
    (State.UNSEEN, Input.UNMATCHED): Rule(Move.DECIDE_UNMATCHED, State.UNMATCHED, (*_DECIDED, "unmatched")),
    (State.UNSEEN, Input.FEEDBACK): Rule(Move.KEEP_ORPHAN, State.ORPHAN),
    (State.UNSEEN, Input.PARTIAL): Rule(Move.KEEP_ORPHAN, State.ORPHAN),
    (State.UNSEEN, Input.SHOWN): Rule(Move.KEEP_SHOWN, State.SHOWN_ORPHAN),
    (State.ORPHAN, Input.CONTEXT): Rule(Move.DECIDE_AND_MATCH, State.MATCHED, ("decided", "matched")),
    (State.ORPHAN, Input.CONTEXT_MISMATCH): Rule(Move.DECIDE_AND_REFUSE, State.PENDING, ("decided", "mismatched")),
    (State.ORPHAN, Input.DEFERRED): Rule(Move.DECIDE_AND_MATCH, State.MATCHED, ("decided", "matched")),
    (State.ORPHAN, Input.DEFERRED_MISMATCH): Rule(Move.DEFER_AND_REFUSE, State.DEFERRED, ("decided", "mismatched")),
    (State.ORPHAN, Input.UNMATCHED): Rule(
        Move.DECIDE_UNMATCHED, State.UNMATCHED, (*_DECIDED, "unmatched", *_UNMATCHED)
    ),
    (State.ORPHAN, Input.CONTEXT_PARTIAL): Rule(Move.DECIDE_AND_COLLECT, State.ANSWERED, _DECIDED),
    (State.ORPHAN, Input.FEEDBACK): Rule(Move.IGNORE_FEEDBACK, State.ORPHAN, _DUPLICATE),
    (State.ORPHAN, Input.PARTIAL): Rule(Move.KEEP_MORE, State.ORPHAN, ("orphans_waiting",)),
    (State.ORPHAN, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.ORPHAN, _DUPLICATE),
    (State.ORPHAN, Input.DEADLINE): Rule(Move.DROP_ORPHAN, State.UNSEEN, ("orphans_dropped",)),
    (State.SHOWN_ORPHAN, Input.CONTEXT): Rule(Move.DECIDE, State.PENDING, (*_DECIDED, *_DUPLICATE)),
    (State.SHOWN_ORPHAN, Input.DEFERRED): Rule(Move.DECIDE, State.PENDING, (*_DECIDED, *_SHOWN)),
    (State.SHOWN_ORPHAN, Input.UNMATCHED): Rule(
        Move.DECIDE_UNMATCHED, State.UNMATCHED, (*_DECIDED, "unmatched", *_UNMATCHED)
    ),
    (State.SHOWN_ORPHAN, Input.FEEDBACK): Rule(Move.KEEP_ORPHAN, State.ORPHAN, _SHOWN),
    (State.SHOWN_ORPHAN, Input.PARTIAL): Rule(Move.KEEP_ORPHAN, State.ORPHAN, _SHOWN),
    (State.SHOWN_ORPHAN, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.SHOWN_ORPHAN, _DUPLICATE),
    (State.SHOWN_ORPHAN, Input.DEADLINE): Rule(Move.DROP_ORPHAN, State.UNSEEN, ("orphans_dropped",)),
    (State.DEFERRED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.DEFERRED, ("context_duplicates",)),
    (State.DEFERRED, Input.FEEDBACK): Rule(Move.MATCH, State.MATCHED, ("matched",)),
    (State.DEFERRED, Input.PARTIAL): Rule(Move.COLLECT, State.ANSWERED),
    (State.DEFERRED, Input.MISMATCH): Rule(Move.REFUSE, State.DEFERRED, ("mismatched",)),
    (State.DEFERRED, Input.SHOWN): Rule(Move.SHOW, State.PENDING, _SHOWN),
    (State.DEFERRED, Input.DEADLINE): Rule(Move.LEAVE_UNSHOWN, State.UNSHOWN, ("unshown",)),
    (State.PENDING, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.PENDING, ("context_duplicates",)),
    (State.PENDING, Input.FEEDBACK): Rule(Move.MATCH, State.MATCHED, ("matched",)),
    (State.PENDING, Input.PARTIAL): Rule(Move.COLLECT, State.ANSWERED),
    (State.PENDING, Input.MISMATCH): Rule(Move.REFUSE, State.PENDING, ("mismatched",)),
    (State.PENDING, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.PENDING, _DUPLICATE),
    (State.PENDING, Input.DEADLINE): Rule(Move.EXPIRE, State.EXPIRED, ("expired",)),
    (State.ANSWERED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.ANSWERED, ("context_duplicates",)),
    (State.ANSWERED, Input.FEEDBACK): Rule(Move.MATCH, State.MATCHED, ("matched", *_COMBINED)),
    (State.ANSWERED, Input.PARTIAL): Rule(Move.COLLECT, State.ANSWERED, _COMBINED),
    (State.ANSWERED, Input.REPEATED): Rule(Move.IGNORE_FEEDBACK, State.ANSWERED, _DUPLICATE),
    (State.ANSWERED, Input.EXCESS): Rule(Move.REFUSE_PART, State.ANSWERED, ("feedback_excess",)),
    (State.ANSWERED, Input.MISMATCH): Rule(Move.REFUSE, State.ANSWERED, ("mismatched",)),
    (State.ANSWERED, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.ANSWERED, _DUPLICATE),
    (State.ANSWERED, Input.DEADLINE): Rule(Move.END_COLLECTION, State.MATCHED, ("matched",)),
    (State.MATCHED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.MATCHED, ("context_duplicates",)),
    (State.MATCHED, Input.FEEDBACK): Rule(Move.IGNORE_FEEDBACK, State.MATCHED, _DUPLICATE),
    (State.MATCHED, Input.PARTIAL): Rule(Move.TAKE_MORE, State.MATCHED, ("late",)),
    (State.MATCHED, Input.REPEATED): Rule(Move.IGNORE_FEEDBACK, State.MATCHED, _DUPLICATE),
    (State.MATCHED, Input.MISMATCH): Rule(Move.REFUSE, State.MATCHED, ("mismatched",)),
    (State.MATCHED, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.MATCHED, _DUPLICATE),
    (State.MATCHED, Input.DEADLINE): Rule(Move.FORGET, State.UNSEEN),
    (State.EXPIRED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.EXPIRED, ("context_duplicates",)),
    (State.EXPIRED, Input.FEEDBACK): Rule(Move.TAKE_LATE, State.EXPIRED, ("late",)),
    (State.EXPIRED, Input.PARTIAL): Rule(Move.TAKE_LATE, State.EXPIRED, ("late",)),
    (State.EXPIRED, Input.MISMATCH): Rule(Move.REFUSE, State.EXPIRED, ("mismatched",)),
    (State.EXPIRED, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.EXPIRED, _DUPLICATE),
    (State.EXPIRED, Input.DEADLINE): Rule(Move.FORGET, State.UNSEEN),
    (State.UNMATCHED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.UNMATCHED, ("context_duplicates",)),
    (State.UNMATCHED, Input.FEEDBACK): Rule(Move.IGNORE_UNUSED, State.UNMATCHED, _UNMATCHED),
    (State.UNMATCHED, Input.PARTIAL): Rule(Move.IGNORE_UNUSED, State.UNMATCHED, _UNMATCHED),
    (State.UNMATCHED, Input.MISMATCH): Rule(Move.IGNORE_UNUSED, State.UNMATCHED, _UNMATCHED),
    (State.UNMATCHED, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.UNMATCHED, _UNMATCHED),
    (State.UNMATCHED, Input.DEADLINE): Rule(Move.FORGET, State.UNSEEN),
    (State.UNSHOWN, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.UNSHOWN, ("context_duplicates",)),
    (State.UNSHOWN, Input.FEEDBACK): Rule(Move.IGNORE_UNUSED, State.UNSHOWN, ("late",)),
    (State.UNSHOWN, Input.PARTIAL): Rule(Move.IGNORE_UNUSED, State.UNSHOWN, ("late",)),
    (State.UNSHOWN, Input.MISMATCH): Rule(Move.REFUSE, State.UNSHOWN, ("mismatched",)),
    (State.UNSHOWN, Input.SHOWN): Rule(Move.IGNORE_SHOWN, State.UNSHOWN, ("late",)),
    (State.UNSHOWN, Input.DEADLINE): Rule(Move.FORGET, State.UNSEEN),
}
"""The default table.

Feedback for a different action is refused in every state with a decision, except UNMATCHED. Refused feedback neither
settles nor corrects the decision, and is not counted as a duplicate. If feedback for an id arrives twice before the
context, the first record counts, regardless of the action in the second record. If a decision is unmatched, the action
in its feedback is not checked, because such feedback refers to the log's action and is not used for learning.

A deferred decision becomes pending when it is shown, and its window begins at the time of the shown record. Feedback
implies that the decision was shown.

If the reward depends on several feedback records (the rules `max` and `sum` in `stream.task.answers`), feedback is
PARTIAL until the record that settles the decision. All feedback for an id without a decision is PARTIAL: it waits for
the context, and is then applied in the order in which it arrived. Feedback for a settled decision is REPEATED if it
would not have changed the reward, and otherwise PARTIAL.
"""

_LEVELS = {
    "pending": {State.PENDING, State.ANSWERED},
    "answered": {State.ANSWERED},
    "deferred": {State.DEFERRED},
    "orphans_waiting": {State.ORPHAN, State.SHOWN_ORPHAN},
}  # fields of `Ledger` that count the ids in these states
_OF_RULES = {*chain.from_iterable(IDENTITIES.values())} - {"context_malformed", "feedback_malformed", *_LEVELS}
_OF_RULES.add("orphans_waiting")  # further feedback for an orphan waits as well


class TableError(ValueError):
    """Raised when a join table has a missing or inconsistent rule."""


def check_table(table: Table) -> None:
    """Check that a table is complete and consistent.

    Raises:
        TableError: a rule is missing or inconsistent. A rule is inconsistent if its input is impossible in its state,
            if its state and input do not meet the requirements of its move, if its next state differs from the move's,
            or if its counts differ from the move's outcome or violate one of the ledger's equations.
    """
    rows = {(state, happened) for state in State for happened in Input if happened.requires <= state.has}
    for state, happened in rows ^ table.keys():
        kind = "missing rule" if (state, happened) in rows else "rule for an impossible input"
        raise TableError(f"join table, {state.name} + {happened.name}: {kind}")
    for (state, happened), rule in table.items():
        for contradiction in _contradictions(state, happened, rule):
            raise TableError(f"join table, {state.name} + {happened.name} -> {rule.move.name}: {contradiction}")


def _contradictions(state: State, happened: Input, rule: Rule) -> list[str]:
    move, available = rule.move, state.has | happened.brings
    after = move.after or state
    contradictions = [f"the move requires {missing}" for missing in sorted(move.needs - available)]
    if rule.after is not after:
        contradictions.append(f"expected the next state {after.name}; got {rule.after.name}")
    outcomes = [name for name in rule.counts if name in tuple(Outcome)]
    if outcomes != [move.settles] * (move.settles is not None):
        contradictions.append(f"expected the outcome {move.settles} to be counted; got {outcomes}")
    unknown = {*rule.counts} - _OF_RULES
    contradictions += [f"{name} is not a count that a rule can increment" for name in sorted(unknown)]

    changes = {name: rule.counts.count(name) for name in rule.counts}
    changes["contexts"] = int("a context" in available)
    changes["feedback"] = int("new feedback" in available or "a shown record" in available)
    for name, states in _LEVELS.items():
        changes[name] = changes.get(name, 0) + (rule.after in states) - (state in states)
    for total, parts in IDENTITIES.items():
        if changes.get(total, 0) != sum(changes.get(part, 0) for part in parts):
            contradictions.append(f"the counts violate {total} = {' + '.join(parts)}")
    return contradictions
