"""The join of one task, as docs/topics.md and docs/formats.md describe it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from stream.wire.records import Record
from tests.independent_audit import events
from tests.independent_audit.events import Context, Feedback, MalformedError, header

TABLE = {
    # state:        (context,     feedback,    for another action, shown record)
    "unseen":       ("decide",    "keep",      "keep",      "keep"),
    "orphan":       ("decide",    "duplicate", "duplicate", "duplicate"),
    "shown orphan": ("decide",    "replace",   "replace",   "duplicate"),
    "deferred":     ("duplicate", "match",     "reject",    "show"),
    "pending":      ("duplicate", "match",     "reject",    "duplicate"),
    "matched":      ("duplicate", "duplicate", "reject",    "duplicate"),
    "expired":      ("duplicate", "late",      "reject",    "duplicate"),
    "unmatched":    ("duplicate", "ignore",    "ignore",    "ignore"),
    "unshown":      ("duplicate", "late",      "reject",    "late"),
}  # fmt: skip
"""The table in docs/topics.md. Its column "time passes" is `Join.settle_overdue`."""

PARTS_MAX = 64
"""Limit on the parts of a reward, from docs/formats.md."""

COUNT_OF = {"duplicate": "feedback_duplicates", "late": "late", "reject": "mismatched", "ignore": "feedback_unmatched",
            "show": "shown"}  # fmt: skip


class Decision(NamedTuple):
    """A decision, from its prediction. `unmatched` states whether a replay of a log rejected the decision."""

    action: int
    propensity: float | None
    arm: str | None
    unmatched: bool
    id: str | None = None  # the action's id, if contexts have actions


Event = TypeVar("Event", Context, Feedback)

Decide = Callable[[Record, Context], Decision | None]
"""Returns the decision for a context, or None if the context has no prediction."""


@dataclass
class Entry:
    """An event id that the task remembers."""

    id: str
    state: str
    time_ms: int | None  # time of the decision, of the shown record, of the arrival or of the settlement
    decision: Decision | None = None
    record: Record | None = None  # the feedback that waits for its context
    feedback: Feedback | None = None
    reward: float | None = None
    step: int = 0  # that made the decision
    is_kept: bool = False  # whether late feedback can correct the settled decision
    counted: list[tuple[Record, Feedback]] = field(default_factory=list)  # of an answered decision
    waiting: list[tuple[Record, Feedback]] = field(default_factory=list)  # further feedback of an orphan


@dataclass
class Output:
    """What a step publishes, and its effect on the model."""

    examples: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: list[tuple[Record, str]] = field(default_factory=list)
    updates_max: int = 0  # number of bits, corrections and changes of the champion that can have changed the model


class Join:
    """One task's join."""

    def __init__(self, decide: Decide) -> None:
        self.settings: Mapping[str, Any] = {}
        self.partitions = 1
        self.counts: Counter[str] = Counter()
        self.stream_ms = 0
        self.dated_ms = 0
        self.names: list[str] = []  # of open classes
        self.undated: dict[int, list[Entry]] = defaultdict(list)  # by step
        self.known: dict[str, Entry] = {}
        # Entries in the order in which their time ends; every entry is in `known` too.
        self.pending: dict[str, Entry] = {}
        self.deferred: dict[str, Entry] = {}
        self.shown: dict[str, Entry] = {}
        self.orphans: dict[str, Entry] = {}
        self.retained: dict[str, Entry] = {}
        self.output = Output()
        self._decide = decide
        self.step = 0

    def begin_step(self, number: int, settings: Mapping[str, Any], partitions: int) -> None:
        """Begin a step. Apply changed settings before its first record."""
        self.step, self.output, self.partitions = number, Output(), partitions
        changed = bool(self.settings) and settings != self.settings
        self.output.updates_max += changed and settings["champion"] != self.settings["champion"]
        self.settings = settings
        if changed:
            self.settle_overdue()
            for evict in (self._evict_decision, self._evict_orphan, self._evict_retained):
                while evict():
                    pass

    def apply_context(self, record: Record) -> None:
        """Apply a record from the contexts topic."""
        context = self._decoded(record, "context", lambda: events.context(record, self.settings, self.class_names))
        if context is None:
            return
        self.names += context.new_names
        if TABLE[self._state(context.id)][0] == "duplicate":
            self.counts["context_duplicates"] += 1
        else:
            self._receive_context(record, context)

    def apply_feedback(self, record: Record) -> None:
        """Apply a record from the feedback topic."""
        if record.append_ms > self.stream_ms:
            self.stream_ms = record.append_ms
            self.settle_overdue()
        if events.is_tick(record):
            self._date(record)
            return
        feedback = self._decoded(record, "feedback", lambda: events.feedback(record, self.settings))
        if feedback is not None:
            self._receive_feedback(record, feedback)

    def _decoded(self, record: Record, kind: str, decode: Callable[[], Event]) -> Event | None:
        """Decode and count a record. Returns None if it is malformed."""
        try:
            event = decode()
        except MalformedError:
            event = None
            self.counts[f"{kind}_malformed"] += 1
            self.output.dead_letters.append((record, "malformed"))
        total = "contexts" if kind == "context" else kind
        self.counts[total] += 1
        self.counts[f"{total}_misplaced"] += events.is_misplaced(record, event and event.id, self.partitions)
        return event

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes; empty if they have no names."""
        return self.settings["class_names"] or self.names

    def ledger(self) -> dict[str, int]:
        """The counts after the records so far."""
        answered = sum(bool(entry.counted) for entry in (*self.pending.values(), *self.shown.values()))
        waiting = {"pending": len(self.pending) + len(self.shown), "deferred": len(self.deferred),
                   "orphans_waiting": self._orphan_count(), "answered": answered}  # fmt: skip
        return {**self.counts, **waiting}

    def settle_overdue(self) -> None:
        """Settle the entries whose time has passed."""
        settings = self.settings
        window_ms, activation_ms = settings["window_ms"], settings["activation_window_ms"]
        for entries, wait_ms, settle in (
            (self.pending, window_ms, self._expire),
            (self.deferred, window_ms if activation_ms is None else activation_ms, self._unshow),
            (self.shown, window_ms, self._expire),
            (self.orphans, settings["orphan_window_ms"], self._drop),
            (self.retained, settings["retain_ms"], self._forget),
        ):
            while (entry := first(entries)) and entry.time_ms is not None and self.stream_ms > entry.time_ms + wait_ms:
                settle(entry)

    def _date(self, tick: Record) -> None:
        """Set the time of a step's decisions. A step does not apply its own tick."""
        step = int(header(tick, "onebit-tick") or b"0")
        if step == self.step or step not in self.undated:
            return
        self.dated_ms = max(self.dated_ms, tick.append_ms)
        for entry in self.undated.pop(step):
            if entry.time_ms is None:
                entry.time_ms = self.dated_ms

    def _receive_context(self, record: Record, context: Context) -> None:
        self.counts["decided"] += 1
        orphan = self.orphans.pop(context.id, None)
        decision = self._decide(record, context)
        if context.logged and (context.logged.get("propensity") or 1) < self.settings["propensity_min"]:
            self.counts["propensities_floored"] += 1
        entry = self.known[context.id] = Entry(context.id, "pending", None, decision, step=self.step)
        if self.settings["dated_by"] == "context":
            self.dated_ms = entry.time_ms = max(self.dated_ms, record.append_ms)
        else:
            self.undated[self.step].append(entry)
        feedback = orphan.feedback if orphan else None
        if decision and decision.unmatched:
            self.counts["feedback_unmatched"] += orphan is not None
            self._settle(entry, "unmatched", None, orphan.record if orphan else None)
        elif orphan and orphan.record and feedback and feedback.reward is not None and _fits(feedback, decision):
            entry.counted = [(orphan.record, feedback)]
            if self._is_last(feedback):
                self._settle_counted(entry)
            else:
                self.pending[entry.id] = entry
                self._evict_decision()
        else:
            self._wait(entry, context, orphan)
        for waiting in orphan.waiting if orphan else ():
            self._receive_feedback(*waiting)

    def _is_last(self, feedback: Feedback) -> bool:
        """Whether feedback settles its decision at once."""
        rule, is_graded = self.settings["feedback"], self.settings["rewards"] == "graded"
        highest = events.reward_range(self.settings)[1] if is_graded else 1
        return rule == "first" or feedback.final or (rule == "max" and feedback.reward == highest)

    def _count(self, entry: Entry, record: Record, feedback: Feedback) -> None:
        """Apply feedback for a pending or deferred decision."""
        rule, is_last = self.settings["feedback"], self._is_last(feedback)
        same = [known.reward for _, known in entry.counted if known.part == feedback.part]
        is_new = not same
        if rule == "sum" and is_new and len(entry.counted) == PARTS_MAX:
            self.counts["feedback_excess"] += 1
            self.output.dead_letters.append((record, "excess"))
            return
        if rule == "sum":
            self.counts["conflicts"] += bool(same) and same[0] != feedback.reward
        elif feedback.reward is not None:
            is_new = all(feedback.reward > (known.reward or 0) for _, known in entry.counted)
        if entry.counted:
            self.counts["combined" if is_new or is_last else "feedback_duplicates"] += 1
        if is_new:
            entry.counted.append((record, feedback))
        if is_last:
            self._settle_counted(entry)
        elif self.deferred.pop(entry.id, None):
            entry.state, entry.time_ms = "pending", self.stream_ms
            self.shown[entry.id] = entry

    def _settle_counted(self, entry: Entry) -> None:
        record, feedback = entry.counted[-1]
        reward = feedback.reward
        if self.settings["feedback"] == "sum":
            low, high = events.reward_range(self.settings)
            exact = sum((Fraction(part.reward or 0) for _, part in entry.counted), Fraction(0))
            reward = float(min(max(exact, Fraction(low)), Fraction(high)))
        entry.counted = []
        self._settle(entry, "matched", reward, record)

    def _wait(self, entry: Entry, context: Context, orphan: Entry | None) -> None:
        """Keep a decision until its feedback arrives or its window ends."""
        if orphan and orphan.record and orphan.feedback and orphan.feedback.reward is not None:
            self.counts["mismatched"] += 1
            self.output.dead_letters.append((orphan.record, "mismatched"))
        elif orphan:
            self.counts["shown" if context.deferred else "feedback_duplicates"] += 1
            context = context._replace(deferred=False)
        if context.deferred:
            entry.state = "deferred"
            self.deferred[entry.id] = entry
        else:
            self.pending[entry.id] = entry
        self._evict_decision()

    def _receive_feedback(self, record: Record, feedback: Feedback) -> None:
        entry = self.known.get(feedback.id)
        column = 3 if feedback.reward is None else 1 if entry is None or _fits(feedback, entry.decision) else 2
        move, rule = TABLE[self._state(feedback.id)][column], self.settings["feedback"]
        if rule != "first" and feedback.reward is not None and move == "duplicate" and entry is not None:
            if entry.state == "orphan":
                entry.waiting.append((record, feedback))
                self._evict_orphan()
                return
            is_late = rule == "sum" or feedback.reward > (entry.reward or 0)
            self.counts["late" if is_late else "feedback_duplicates"] += 1
            if is_late:
                self._correct(entry, feedback)
            return
        if move in COUNT_OF:
            self.counts[COUNT_OF[move]] += 1
        if move in ("keep", "replace"):
            self._keep(record, feedback)
            return
        assert entry is not None
        if move == "match":
            self._count(entry, record, feedback)
        elif move == "reject":
            self.output.dead_letters.append((record, "mismatched"))
        elif move == "show":
            del self.deferred[entry.id]
            entry.state, entry.time_ms = "pending", self.stream_ms
            self.shown[entry.id] = entry
        elif move == "duplicate" and feedback.reward is not None:
            first_reward = entry.feedback.reward if entry.feedback else entry.reward
            self.counts["conflicts"] += first_reward != feedback.reward
        elif move == "late":
            self._correct(entry, feedback)

    def _correct(self, entry: Entry, feedback: Feedback) -> None:
        """Apply late feedback for a settled decision."""
        rule = self.settings["feedback"]
        can_correct = entry.state == "expired" or (entry.state == "matched" and rule == "max")
        if not can_correct or self.settings["late"] != "correct":
            return
        is_higher = entry.reward is not None and feedback.reward is not None and feedback.reward > entry.reward
        self.output.updates_max += rule != "max" or is_higher
        if rule == "max" and is_higher and entry.is_kept:
            entry.reward = feedback.reward

    def _keep(self, record: Record, feedback: Feedback) -> None:
        if self.orphans.pop(feedback.id, None):
            self.counts["shown"] += 1
        state = "shown orphan" if feedback.reward is None else "orphan"
        entry = Entry(feedback.id, state, self.stream_ms, None, record, feedback)
        self.known[entry.id] = self.orphans[entry.id] = entry
        self._evict_orphan()

    def _settle(self, entry: Entry, outcome: str, reward: float | None, record: Record | None = None) -> None:
        for waiting in (self.pending, self.deferred, self.shown):
            waiting.pop(entry.id, None)
        self.counts[outcome] += 1
        self.output.updates_max += reward is not None
        delay_ms = None
        if outcome == "matched" and record:
            delay_ms = 0 if entry.time_ms is None else max(0, record.append_ms - entry.time_ms)
        if entry.decision:
            example = {
                "id": entry.id, "outcome": outcome, "action": entry.decision.action,
                "propensity": entry.decision.propensity, "reward": reward, "delay_ms": delay_ms,
                "settled_at_ms": self.stream_ms, "feedback_offset": record.offset if record else None,
            }  # fmt: skip
            others = {"arm": entry.decision.arm, "class": entry.decision.id}
            self.output.examples.append(example | {name: value for name, value in others.items() if value is not None})
        entry.state, entry.time_ms, entry.reward = outcome, self.stream_ms, reward
        entry.is_kept = outcome in ("expired", "matched") and self.settings["late"] == "correct"
        self.retained[entry.id] = entry
        self._evict_retained()

    def _expire(self, entry: Entry) -> None:
        if entry.counted:
            self._settle_counted(entry)
            return
        is_graded = self.settings["rewards"] == "graded"
        lowest = events.reward_range(self.settings)[0] if is_graded else 0
        self._settle(entry, "expired", lowest if self.settings["on_expiry"] == "negative" else None)

    def _unshow(self, entry: Entry) -> None:
        self._settle(entry, "unshown", None)

    def _drop(self, entry: Entry) -> None:
        assert entry.record is not None
        self.counts["orphans_dropped"] += 1 + len(entry.waiting)
        records = [entry.record, *(record for record, _ in entry.waiting)]
        self.output.dead_letters += [(record, "orphan") for record in records]
        del self.orphans[entry.id], self.known[entry.id]

    def _forget(self, entry: Entry) -> None:
        del self.retained[entry.id], self.known[entry.id]

    # Limits. Each function evicts at most one entry, and returns whether it did so.

    def _evict_decision(self) -> bool:
        is_over: bool = len(self.pending) + len(self.shown) + len(self.deferred) > self.settings["pending_max"]
        if is_over and (entry := first(self.deferred)):
            self.counts["deferred_evicted"] += 1
            self._unshow(entry)
        elif is_over and (entry := self._first_due()):
            self.counts["pending_evicted"] += 1
            self._expire(entry)
        return is_over

    def _evict_orphan(self) -> bool:
        is_over: bool = self._orphan_count() > self.settings["orphans_max"]
        if is_over and (entry := first(self.orphans)):
            self.counts["orphans_evicted"] += 1 + len(entry.waiting)
            self._drop(entry)
        return is_over

    def _orphan_count(self) -> int:
        return sum(1 + len(entry.waiting) for entry in self.orphans.values())

    def _evict_retained(self) -> bool:
        is_over: bool = len(self.retained) > self.settings["retained_max"]
        if is_over and (entry := first(self.retained)):
            self.counts["retained_evicted"] += 1
            self._forget(entry)
        return is_over

    def _first_due(self) -> Entry | None:
        """The decision that expires first. A decision without a known time is later than all others."""
        entries = [entry for entry in (first(self.pending), first(self.shown)) if entry]
        return min(entries, key=lambda entry: float("inf") if entry.time_ms is None else entry.time_ms, default=None)

    def _state(self, event_id: str) -> str:
        return self.known[event_id].state if event_id in self.known else "unseen"


def merge(contexts: Iterable[Record], feedback: Iterable[Record]) -> Iterator[tuple[bool, Record]]:
    """The order in which a step applies its records: by append time, contexts first, then by offset.

    Each item states whether the record is a context.
    """
    left, right = list(contexts)[::-1], list(feedback)[::-1]
    while left or right:
        if left and (not right or left[-1].append_ms <= right[-1].append_ms):
            yield True, left.pop()
        else:
            yield False, right.pop()


def first(entries: Mapping[str, Entry]) -> Entry | None:
    """The oldest entry, or None."""
    return next(iter(entries.values()), None)


def _fits(feedback: Feedback, decision: Decision | None) -> bool:
    if feedback.action is None or decision is None:
        return True
    return feedback.action == (decision.action if decision.id is None else decision.id)
