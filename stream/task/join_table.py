"""The table of the join: one rule for each state of an event id and each input.

A rule names everything: the move, the next state, the counts, and the outcome of a decision that it settles. To change
a policy, edit the rule. `check_table` refuses a table with a rule that contradicts itself.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import NamedTuple

from stream.wire.events import Outcome
from stream.wire.ledger import IDENTITIES, Ledger


class State(IntEnum):  # IntEnum here and below: the table hashes a member per event, 0.1 µs with Enum's own hash
    """The state of an event id."""

    UNSEEN = auto()
    ORPHAN = auto()
    PENDING = auto()
    MATCHED = auto()
    EXPIRED = auto()
    UNMATCHED = auto()


class Input(IntEnum):
    """An input of an event id."""

    CONTEXT = auto()
    FEEDBACK = auto()
    MISMATCH = auto()  # feedback that names another action than the decided one; an orphan's shows with its context
    DEADLINE = auto()  # the state's time limit has passed, or the oldest id must make room
    ASIDE = auto()  # a context for which the log has another action than the decided one


class Move(IntEnum):
    """What the join does with an event id. What the learner plays is an action."""

    DECIDE = auto()  # predict, and wait for the feedback
    DECIDE_AND_MATCH = auto()  # predict, and learn from the feedback that waited
    DECIDE_AND_REFUSE = auto()  # predict, and refuse the feedback that waited
    IGNORE_CONTEXT = auto()  # the first decision counts
    KEEP_ORPHAN = auto()  # the feedback waits for its context
    MATCH = auto()  # learn
    IGNORE_FEEDBACK = auto()  # the first bit counts
    REPLACE = auto()  # a different bit replaces the first; that of a settled decision only where late bits correct
    REFUSE = auto()  # the feedback is for another action: it is a dead letter
    TAKE_LATE = auto()  # the decision had expired: ignore the bit, or correct what was assumed
    EXPIRE = auto()  # settle without feedback
    DROP_ORPHAN = auto()  # the context did not come
    FORGET = auto()  # the id may be used again
    SET_ASIDE = auto()  # predict, and settle at once: the log has no bit for this action
    PASS_OVER = auto()  # the feedback is for a decision that was set aside


class Rule(NamedTuple):
    """Everything that happens on one input in one state."""

    move: Move
    after: State
    counts: tuple[str, ...] = ()  # fields of `Ledger`; each increases by one
    settles: Outcome | None = None  # the outcome of the decision that is settled
    differing: tuple[str, ...] = ()  # further counts, if the bit differs from the first one


Table = Mapping[tuple[State, Input], Rule]

_IGNORE_CONTEXT = ("context_duplicates",)
_DUPLICATE = ("feedback_duplicates",)
_PASS = ("feedback_unmatched",)

TRANSITIONS: dict[tuple[State, Input], Rule] = {
    (State.UNSEEN, Input.CONTEXT): Rule(Move.DECIDE, State.PENDING, ("decided",)),
    (State.UNSEEN, Input.FEEDBACK): Rule(Move.KEEP_ORPHAN, State.ORPHAN),
    (State.UNSEEN, Input.ASIDE): Rule(
        Move.SET_ASIDE, State.UNMATCHED, ("decided", "unmatched"), settles=Outcome.UNMATCHED
    ),
    (State.ORPHAN, Input.CONTEXT): Rule(
        Move.DECIDE_AND_MATCH, State.MATCHED, ("decided", "matched"), settles=Outcome.MATCHED
    ),
    (State.ORPHAN, Input.FEEDBACK): Rule(Move.IGNORE_FEEDBACK, State.ORPHAN, _DUPLICATE, differing=("conflicts",)),
    (State.ORPHAN, Input.MISMATCH): Rule(Move.DECIDE_AND_REFUSE, State.PENDING, ("decided", "mismatched")),
    (State.ORPHAN, Input.DEADLINE): Rule(Move.DROP_ORPHAN, State.UNSEEN, ("orphans_dropped",)),
    (State.ORPHAN, Input.ASIDE): Rule(
        Move.SET_ASIDE, State.UNMATCHED, ("decided", "unmatched", *_PASS), settles=Outcome.UNMATCHED
    ),
    (State.PENDING, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.PENDING, _IGNORE_CONTEXT),
    (State.PENDING, Input.FEEDBACK): Rule(Move.MATCH, State.MATCHED, ("matched",), settles=Outcome.MATCHED),
    (State.PENDING, Input.MISMATCH): Rule(Move.REFUSE, State.PENDING, ("mismatched",)),
    (State.PENDING, Input.DEADLINE): Rule(Move.EXPIRE, State.EXPIRED, ("expired",), settles=Outcome.EXPIRED),
    (State.MATCHED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.MATCHED, _IGNORE_CONTEXT),
    (State.MATCHED, Input.FEEDBACK): Rule(Move.IGNORE_FEEDBACK, State.MATCHED, _DUPLICATE, differing=("conflicts",)),
    (State.MATCHED, Input.MISMATCH): Rule(Move.REFUSE, State.MATCHED, ("mismatched",)),
    (State.MATCHED, Input.DEADLINE): Rule(Move.FORGET, State.UNSEEN),
    (State.EXPIRED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.EXPIRED, _IGNORE_CONTEXT),
    (State.EXPIRED, Input.FEEDBACK): Rule(Move.TAKE_LATE, State.EXPIRED, ("late",)),
    (State.EXPIRED, Input.MISMATCH): Rule(Move.REFUSE, State.EXPIRED, ("mismatched",)),
    (State.EXPIRED, Input.DEADLINE): Rule(Move.FORGET, State.UNSEEN),
    (State.UNMATCHED, Input.CONTEXT): Rule(Move.IGNORE_CONTEXT, State.UNMATCHED, _IGNORE_CONTEXT),
    (State.UNMATCHED, Input.FEEDBACK): Rule(Move.PASS_OVER, State.UNMATCHED, _PASS),
    (State.UNMATCHED, Input.MISMATCH): Rule(Move.PASS_OVER, State.UNMATCHED, _PASS),
    (State.UNMATCHED, Input.DEADLINE): Rule(Move.FORGET, State.UNSEEN),
}
"""All that can happen.

Feedback for another action is refused in every state with a decision: it neither settles nor corrects, and it is no
duplicate. Of two orphans with one id the first counts, whatever action the second one names. The action of feedback for
an unmatched decision is not checked either: such feedback is about the log's action, and teaches nothing.
"""


class TableError(ValueError):
    """A table of the join with a missing rule, or with one that contradicts itself."""


class _Effect(NamedTuple):
    """What a move needs and does."""

    needs: frozenset[str]
    after: State | None = None  # None: the id stays in its state
    settles: Outcome | None = None


_HAS_BY_STATE: dict[State, frozenset[str]] = {
    State.UNSEEN: frozenset(("no decision",)),
    State.ORPHAN: frozenset(("no decision", "waiting feedback", "a first bit")),
    State.PENDING: frozenset(("a decision", "a pending decision")),
    State.MATCHED: frozenset(("a decision", "a settled decision", "a first bit")),
    State.EXPIRED: frozenset(("a decision", "a settled decision", "an expired decision")),
    State.UNMATCHED: frozenset(("a decision", "a settled decision", "a decision set aside")),
}
_HAS_BY_INPUT: dict[Input, frozenset[str]] = {
    Input.CONTEXT: frozenset(("a context",)),
    Input.FEEDBACK: frozenset(("new feedback",)),
    Input.MISMATCH: frozenset(("new feedback", "another action")),
    Input.DEADLINE: frozenset(("a deadline",)),
    Input.ASIDE: frozenset(("a context", "a log without the bit")),
}
_ORPHAN_MISMATCH = frozenset(("a context", "another action"))  # an orphan's action is checked when its context comes

_EFFECTS: dict[Move, _Effect] = {
    Move.DECIDE: _Effect(frozenset(("a context", "no decision")), State.PENDING),
    Move.DECIDE_AND_MATCH: _Effect(frozenset(("a context", "waiting feedback")), State.MATCHED, Outcome.MATCHED),
    Move.DECIDE_AND_REFUSE: _Effect(frozenset(("a context", "waiting feedback", "another action")), State.PENDING),
    Move.IGNORE_CONTEXT: _Effect(frozenset(("a context", "a decision"))),
    Move.KEEP_ORPHAN: _Effect(frozenset(("new feedback", "no decision")), State.ORPHAN),
    Move.MATCH: _Effect(frozenset(("new feedback", "a pending decision")), State.MATCHED, Outcome.MATCHED),
    Move.IGNORE_FEEDBACK: _Effect(frozenset(("new feedback", "a first bit"))),
    Move.REPLACE: _Effect(frozenset(("new feedback", "a first bit"))),
    Move.REFUSE: _Effect(frozenset(("new feedback", "a decision", "another action"))),
    Move.TAKE_LATE: _Effect(frozenset(("new feedback", "an expired decision"))),
    Move.EXPIRE: _Effect(frozenset(("a deadline", "a pending decision")), State.EXPIRED, Outcome.EXPIRED),
    Move.DROP_ORPHAN: _Effect(frozenset(("a deadline", "waiting feedback")), State.UNSEEN),
    Move.FORGET: _Effect(frozenset(("a deadline", "a settled decision")), State.UNSEEN),
    Move.SET_ASIDE: _Effect(
        frozenset(("a context", "no decision", "a log without the bit")), State.UNMATCHED, Outcome.UNMATCHED
    ),
    Move.PASS_OVER: _Effect(frozenset(("new feedback", "a decision set aside"))),
}

_IN_IDENTITIES = {name for total, parts in IDENTITIES for name in (total, *parts)}
_LEVELS = {"pending": State.PENDING, "orphans_waiting": State.ORPHAN}  # counts of the ids in a state
_NOT_BY_RULES = {"contexts", "feedback", "context_malformed", "feedback_malformed", *_LEVELS}


def check_table(table: Table) -> None:
    """Refuse a table that cannot be followed.

    Raises:
        TableError: a rule is missing or cannot apply, needs what its state and input do not have, names another next
            state or outcome than its move, or breaks an equation of the ledger.
    """
    possible = {(state, happened) for state in State for happened in Input if _can_happen(state, happened)}
    for state, happened in sorted(possible ^ table.keys()):
        kind = "missing rule" if (state, happened) in possible else "rule for an input that cannot come"
        raise TableError(f"join table, {state.name} + {happened.name}: {kind}")
    for (state, happened), rule in table.items():
        for contradiction in _contradictions(state, happened, rule):
            raise TableError(f"join table, {state.name} + {happened.name} -> {rule.move.name}: {contradiction}")


def _can_happen(state: State, happened: Input) -> bool:
    if happened is Input.ASIDE:
        return state in (State.UNSEEN, State.ORPHAN)
    return state is not State.UNSEEN or happened not in (Input.MISMATCH, Input.DEADLINE)


def _contradictions(state: State, happened: Input, rule: Rule) -> list[str]:
    effect = _EFFECTS[rule.move]
    is_orphan_mismatch = (state, happened) == (State.ORPHAN, Input.MISMATCH)
    given = _HAS_BY_STATE[state] | (_ORPHAN_MISMATCH if is_orphan_mismatch else _HAS_BY_INPUT[happened])
    found = [f"the move needs {missing}" for missing in sorted(effect.needs - given)]
    after = state if effect.after is None else effect.after
    if rule.after is not after:
        found.append(f"expected the next state {after.name}; got {rule.after.name}")
    if rule.settles is not effect.settles:
        found.append(f"expected the outcome {effect.settles}; got {rule.settles}")
    outcomes = [name for name in rule.counts if name in tuple(Outcome)]
    if outcomes != [effect.settles] * (effect.settles is not None):
        found.append(f"expected the outcome {effect.settles} to be counted; got {outcomes}")
    unknown = (
        {*rule.counts} - (_IN_IDENTITIES - _NOT_BY_RULES)
        | {*rule.differing} - {*Ledger._fields}
        | ({*rule.differing} & _IN_IDENTITIES)
    )
    found += [f"the count {name} is not one of a rule" for name in sorted(unknown)]
    if rule.differing and "a first bit" not in effect.needs:
        found.append("the move compares no bits")

    changes = {name: rule.counts.count(name) for name in rule.counts}
    changes["contexts"], changes["feedback"] = int("a context" in given), int("new feedback" in given)
    for name, level in _LEVELS.items():
        changes[name] = (rule.after is level) - (state is level)
    for total, parts in IDENTITIES:
        if changes.get(total, 0) != sum(changes.get(part, 0) for part in parts):
            found.append(f"the counts break {total} = {' + '.join(parts)}")
    return found
