"""A run's schedule as plain data, generated from a seed.

Half of the runs are *timeless*. Their faults take no virtual time, and a learner polls whenever something happens. Such
a run must have the same outputs, models and ledgers as a run without faults (see `checks.equal_faultless`).
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from consumers.learner.program import LearnerOptions
from stream.learners import FromLogs, registered
from stream.learners.wrappers.mixture import BASELINE
from stream.randomness.draws import Luck
from stream.recovery.commit import COMMIT_STEPS
from stream.settings.task_fields import JoinSettings, Play
from stream.task.settings import UNIFORM, Sharing, TaskSettings, learner_of
from stream.wire.named_features import Kind, build, to_plain
from stream.wire.records import Logged

EVENTS = 20
"""Number of contexts in a run: enough for all kinds of events to interact, but few enough for a readable trace."""


class ItemKind(StrEnum):
    """An item's kind. Its text appears in traces and in the coverage table."""

    # Other clients.
    CONTEXT = "context"
    CONTEXT_AGAIN = "duplicate context"
    CONTEXT_POISON = "poison context"
    FEEDBACK = "feedback"
    FEEDBACK_EARLY = "feedback before its context"
    FEEDBACK_AGAIN = "duplicate feedback"
    FEEDBACK_CONFLICT = "conflicting feedback"
    FEEDBACK_MORE = "further feedback"
    FEEDBACK_MANY = "feedback with too many parts"
    FEEDBACK_STRAY = "feedback without a context"
    FEEDBACK_LOST = "lost feedback"
    FEEDBACK_POISON = "poison feedback"
    FOREIGN_BEGIN = "another producer opens a transaction"
    FOREIGN_CONTEXT = "context in another producer's transaction"
    FOREIGN_FEEDBACK = "feedback in another producer's transaction"
    FOREIGN_OUTPUT = "another producer writes to a learner topic"
    FOREIGN_COMMIT = "another producer commits"
    FOREIGN_ABORT = "another producer aborts"
    SHOWN = "shown"
    SHOWN_EARLY = "shown before its context"
    SHOWN_AGAIN = "duplicate shown"
    SHOWN_NEVER = "never shown"
    CHANGE = "requested change"
    TIME = "time passes"
    # Faults.
    CRASH = "crash between steps"
    CRASH_IN_COMMIT = "crash after commit step"
    CRASH_IN_CALL = "crash in a broker call"
    CRASH_IN_RECOVERY = "crash during recovery"
    CRASH_IN_SNAPSHOT = "crash during a snapshot"
    ZOMBIE = "zombie beside its replacement"
    ZOMBIE_IN_COMMIT = "zombie replaced during a commit, after step"
    EXPELLED = "session timeout"
    EXPELLED_IN_COMMIT = "session timeout in a commit, after step"
    JOIN = "member joins"
    JOIN_IN_COMMIT = "rebalance in a commit, after step"
    LEAVE = "member leaves"
    REFUSED = "broker unavailable once"
    OUTAGE = "broker unavailable for a while"
    COMMIT_UNKNOWN = "commit outcome unknown: committed"
    COMMIT_LOST = "commit outcome unknown: not committed"
    COMMIT_HANGS = "commit outcome unknown: committed later"
    COMMIT_REPEATED = "commit repeated, and its first request arrives later"
    SLEEP = "learner does not poll"
    SLOW = "broker slow for a while"
    PAUSE = "learner pauses before a broker call"
    HOLD = "replication stops for a while"
    RETENTION = "retention deletes old records"
    STOP = "all learners stop for longer than the retention"
    # Faults that occur only with a shared model.
    LAG = "learner reads an old end of the log"
    MOVE_IN_SNAPSHOT = "partition 0 moves during a snapshot of the model"


SHOWN = (ItemKind.SHOWN, ItemKind.SHOWN_EARLY, ItemKind.SHOWN_AGAIN)
WAITING = frozenset((
    ItemKind.CONTEXT, ItemKind.CONTEXT_AGAIN, ItemKind.CONTEXT_POISON, ItemKind.FEEDBACK, ItemKind.FEEDBACK_EARLY,
    ItemKind.FEEDBACK_AGAIN, ItemKind.FEEDBACK_CONFLICT, ItemKind.FEEDBACK_MORE, ItemKind.FEEDBACK_STRAY,
    ItemKind.FEEDBACK_POISON, *SHOWN,
))  # fmt: skip
"""The items that can wait in the new topics of a move."""
ENVIRONMENT = frozenset(kind for kind in ItemKind if list(ItemKind).index(kind) <= list(ItemKind).index(ItemKind.TIME))
TIMELESS_FAULTS = (
    ItemKind.CRASH, ItemKind.CRASH_IN_COMMIT, ItemKind.CRASH_IN_COMMIT, ItemKind.CRASH_IN_COMMIT,
    ItemKind.CRASH_IN_CALL, ItemKind.CRASH_IN_RECOVERY, ItemKind.CRASH_IN_SNAPSHOT, ItemKind.ZOMBIE,
    ItemKind.ZOMBIE_IN_COMMIT, ItemKind.ZOMBIE_IN_COMMIT, ItemKind.EXPELLED, ItemKind.EXPELLED_IN_COMMIT,
    ItemKind.JOIN_IN_COMMIT, ItemKind.JOIN, ItemKind.LEAVE, ItemKind.REFUSED, ItemKind.COMMIT_UNKNOWN,
    ItemKind.COMMIT_LOST,
)  # fmt: skip
TIMED_FAULTS = (
    *TIMELESS_FAULTS, ItemKind.OUTAGE, ItemKind.COMMIT_HANGS, ItemKind.SLEEP, ItemKind.SLEEP, ItemKind.SLOW,
    ItemKind.SLOW, ItemKind.PAUSE, ItemKind.HOLD, ItemKind.HOLD, ItemKind.HOLD,
)  # fmt: skip
SHARED_FAULTS = (
    ItemKind.LAG, ItemKind.LAG, ItemKind.MOVE_IN_SNAPSHOT, ItemKind.ZOMBIE_IN_COMMIT, ItemKind.EXPELLED_IN_COMMIT,
    ItemKind.CRASH_IN_COMMIT,
)  # fmt: skip
"""Additional faults in a run with a shared model."""
OTHER_FAULTS = (ItemKind.COMMIT_REPEATED, ItemKind.RETENTION, ItemKind.STOP)
"""Faults that are drawn from their own random streams."""
IN_COMMIT = (ItemKind.CRASH_IN_COMMIT, ItemKind.ZOMBIE_IN_COMMIT, ItemKind.EXPELLED_IN_COMMIT, ItemKind.JOIN_IN_COMMIT)
"""Faults that occur between numbered steps in a commit."""

CALLS = ("poll", "ends", "begin", "flush", "send_offsets", "commit", "transactional_producer", "group_consumer")
"""Broker operations during which a learner can crash, or that the broker can refuse."""

NUMBERS = {
    ItemKind.CRASH_IN_RECOVERY: (1, 4),  # number of the call, counted from when the fault is armed
    ItemKind.CRASH_IN_SNAPSHOT: (1, 4),
    ItemKind.COMMIT_REPEATED: (1, 8),  # number of the write in the next transaction
    ItemKind.MOVE_IN_SNAPSHOT: (1, 4),
    ItemKind.PAUSE: (1, 30),  # 30 calls cover several steps, or most of a recovery
    ItemKind.SLOW: (1, 4),  # ms per operation
    ItemKind.LAG: (1, 40),  # number of requests answered with the old end
    ItemKind.HOLD: (0, 2),  # the partition
}
"""The range of an item's `number`, by kind of fault."""

FOREIGN_TOPICS = ("predictions", "examples", "dead-letter")
"""The learners' topics that other clients write to. Writing to the snapshots topic would break the pipeline."""

HELD_TOPICS = (
    "feedback", "feedback", "feedback", "feedback", "contexts", "contexts", "predictions", "examples", "dead-letter",
    "journal", "snapshots",
)  # fmt: skip
"""Topics whose replication can stop, so that their high watermarks do not advance."""

TARGETS = {ItemKind.CRASH_IN_CALL: CALLS, ItemKind.REFUSED: CALLS, ItemKind.HOLD: HELD_TOPICS}
"""The operations or topics that a fault can affect."""


Changes = tuple[tuple[str, Any], ...]
"""Settings with their new values; None for a parameter that the new learner lacks."""


class Item(NamedTuple):
    """An event or fault in a schedule."""

    at_ms: int
    kind: ItemKind
    id: str = ""  # empty for malformed records, and for items without an event
    bit: int = 0
    member: int = 0
    number: int = 0  # number of a commit step, poison record, transaction, call or partition; or ms per operation
    call: str = ""  # broker operation, or topic to write to or to stop replicating
    for_ms: int = 0  # duration of the fault, or time until a restart
    polls: bool = True  # True if the learners poll before the next item
    action: int | None = None  # the class to which the feedback applies; None if not given
    part: int = 0  # the number of the feedback's part of a sum
    final: bool = False  # True if the feedback settles its decision, although other feedback could change its reward
    logged: Logged | None = None  # a context's logged decision
    eligible: tuple[int, ...] | None = None  # a context's eligible classes; None means all
    baseline: int | None = None  # the class that the service's own rule plays; None if the context does not name it
    deferred: bool = False  # True if a context defers its decision until it is shown
    feature: int | None = None  # index of an additional feature of a context
    has_names: bool = False  # True if the context names its features
    changes: Changes = ()  # requested settings with their new values
    is_stale: bool = False  # True if a request starts from settings that are not the pipeline's

    def text(self) -> str:
        """Return a description for traces and reports."""
        has_bit = self.kind.value.startswith(("feedback", "duplicate feedback", "conflicting", "further")) and self.id
        parts = (
            self.kind,
            self.kind in IN_COMMIT and self.number,
            self.id,
            has_bit and ("right" if self.bit else "wrong"),
            self.deferred and "deferred",
            self.part and f"part {self.part}",
            self.final and "final",
            self.action is not None and f"for action {self.action}",
            self.call,
            " ".join(f"{name}={value}" for name, value in self.changes),
            self.for_ms and f"for {self.for_ms} ms",
        )
        return " ".join(str(part) for part in parts if part)


class MoveDraw(NamedTuple):
    """A move in the middle of a run."""

    after: int  # number of items before the move
    waiting: int  # number of items whose records go to the new topics before the move
    partitions: int
    model: Sharing
    model_from: int | None
    seed: int | None
    crashes: tuple[int, ...]  # number of calls to a broker after which each attempt but the last dies


class Schedule(NamedTuple):
    """A run's schedule."""

    seed: int
    timeless: bool
    partitions: int
    members: int
    learner: str  # key in LEARNERS or OFFERING
    task: TaskSettings
    options: LearnerOptions  # options of all learner processes, apart from the instance's name
    poll_max: int  # limit on records in one poll
    dry_every: int  # N if every Nth poll returns nothing; 0 if there are no such polls
    old_lags: bool  # True if lags are reported as of the last fetch
    lingers: bool  # True if records are sent only at a flush
    transaction_timeout_ms: int
    session_timeout_ms: int
    replication_timeout_ms: int  # limit on the time that a learner waits for followers
    clock_pauses: bool
    items: tuple[Item, ...]
    move: MoveDraw | None = None  # None if the pipeline is not moved

    def only(self, indices: Sequence[int]) -> "Schedule":
        """Return the schedule with only the items at these indices."""
        return self._replace(items=tuple(self.items[index] for index in indices))

    def faultless(self) -> "Schedule":
        """Return a schedule with the same events, one process, and no faults."""
        return self._replace(members=1, items=tuple(item for item in self.items if item.kind in ENVIRONMENT))


START_MS = 1_000
NEVER_MS = 10**9
"""A duration longer than any run."""


N_CLASSES, N_FEATURES = 3, 8
"""The sizes with which every pipeline begins."""

N_CLASSES_MAX, N_FEATURES_MAX = 5, 12
"""The largest sizes that requests ask for."""

_task = partial(TaskSettings, n_classes=N_CLASSES, n_features=N_FEATURES)

LEARNERS = {
    f"{task.learner} ({task.on_expiry}, {task.late})": task
    for task in (
        _task("banditron", parameters={"gamma": 0.4}),
        _task("soba-diag", parameters={"gamma": 0.4}),
        _task("banditron", parameters={"gamma": 0.4}, on_expiry="negative"),
        _task("banditron", parameters={"gamma": 0.4}, on_expiry="negative", late="correct"),
        _task("perceptron"),
        _task("late-ucb", parameters={"drift": "class", "m": 2}),
        _task("late-ucb", parameters={"drift": "off", "m": 2}, on_expiry="negative", late="correct"),
        _task("igw-logistic", parameters={"drift": "class"}),
        _task("stack-igw", parameters={"drift": "global", "vectors": 0}, on_expiry="negative"),
    )
}
"""Learners and policies, keyed by their names in reports. No run is long enough for a drift alarm; see
`tests/recovery/test_drift_alarms.py`."""

OFFERING = {
    f"{task.learner} ({task.on_expiry}, {task.late})": task
    for task in (
        _task("joint-ucb", parameters={"p": 2, "m": 2, "ids": 3}),
        _task("joint-ucb", parameters={"p": 2, "m": 2, "ids": 3}, on_expiry="negative", late="correct"),
        _task("igw-log", parameters={"bits": 8}, on_expiry="negative"),
    )
}
"""Learners and policies of runs whose contexts have actions with features. No run completes joint-ucb's sample; see
`tests/recovery/test_actions.py`."""

ACTION_FEATURES = 2

VALUED = frozenset(name for name, cls in registered().items() if cls.learns_values)

PLAYS: tuple[Play, ...] = ("own", "own", "logged", "match")
LOG_LEARNERS: dict[str, dict[str, float | str]] = {"late-ucb": {"m": 2}, "stack-igw": {"vectors": 0}}
"""Learners that store values for the logged action with each decision. Only runs that replay a log use them."""


_DICE = {
    "wrappers": 0x1B873593,
    "lags": 0x94D049BB133111EB,
    "eligible classes": 0x2545F4914F6CDD1D,
    "logs": 0x5DEECE66D,
    "deferrals": 0x9E3779B97F4A7C15,
    "shared models": 0x2545F4914,
    "repeated commits": 0x7F4A7C159E3779B9,
    "changes": 0xD6E8FEB86659FD93,
    "baselines": 0x8EBC6AF09C88C6E3,
    "retention": 0x632BE59BD9B4E019,
    "moves": 0x4CF5AD432745937F,
    "retired": 0xA0761D6478BD642F,
    "rewards": 0xC2B2AE3D27D4EB4F,
    "offers": 0xE7037ED1A0B428DB,
    "several rewards": 0x165667B19E3779F9,
}
"""Seeds for separate random streams, so that a new kind of event does not change the other draws in a run."""


def draw_schedule(seed: int, events: int = EVENTS, model: Sharing = "own") -> Schedule:
    """Generate the schedule for a seed. A run with a shared model has more kinds of faults and cannot replay a log."""
    luck = Luck(seed)
    timeless = luck.chance(50)
    clock_pauses = luck.chance(10)
    partitions = luck.choice((1, 1, 2, 3))
    limits = _draw_limits(luck, timeless=timeless)
    learner = luck.choice(tuple(LEARNERS))
    task = replace(LEARNERS[learner], seed=luck.below(1_000), join=limits)
    around = Luck(seed ^ _DICE["wrappers"])
    task = replace(task, scale=around.choice(("none", "none", "standard")), floor=around.choice((0.0, 0.0, 0.3)))
    items = _draw_events(luck, events, limits, timeless=timeless)
    items += _draw_faults(luck, max(item.at_ms for item in items), timeless=timeless)
    items.sort(key=lambda item: item.at_ms)
    items = _with_actions(Luck(~seed), items)
    task, items = _with_eligible(Luck(seed ^ _DICE["eligible classes"]), task, items)
    if model == "own":
        task, items = _with_logs(Luck(seed ^ _DICE["logs"]), task, items)
    task, items = _with_deferrals(Luck(seed ^ _DICE["deferrals"]), task, items, timeless=timeless)
    limits = task.join
    if task.play == "own":
        holdout, policy = around.choice((0.0, 0.0, 0.3)), around.choice((UNIFORM, "constant:1"))
        task = replace(task, holdout=holdout, holdout_policy=policy)
        task, items = _with_challengers(around, task, items)
        task, items = _with_baselines(Luck(seed ^ _DICE["baselines"]), task, items)
    if model == "shared":
        task = replace(task, model=model)
        items += _draw_shared(Luck(seed ^ _DICE["shared models"]), max(item.at_ms for item in items), timeless=timeless)
        items.sort(key=lambda item: item.at_ms)
    repeated = Luck(seed ^ _DICE["repeated commits"])
    if repeated.chance(25):
        end_ms = max(item.at_ms for item in items)
        items.append(_draw_fault(repeated, ItemKind.COMMIT_REPEATED, end_ms, timeless=timeless))
        items.sort(key=lambda item: item.at_ms)
    learner, task = _with_offers(Luck(seed ^ _DICE["offers"]), learner, task)
    task = _with_values(Luck(seed ^ _DICE["rewards"]), task)
    task, items = _with_several(Luck(seed ^ _DICE["several rewards"]), task, items, timeless=timeless)
    if not timeless:
        task, items = _with_changes(Luck(seed ^ _DICE["changes"]), task, items)
        items = _with_retired(Luck(seed ^ _DICE["retired"]), task, items)
        if model == "shared":
            items = _with_lags(Luck(seed ^ _DICE["lags"]), items)
    if timeless:  # deadlines are even; they pass in the next odd millisecond, in which no other event happens
        items = [item._replace(at_ms=2 * item.at_ms - START_MS) for item in items]
        activation_window_ms = limits.activation_window_ms and 2 * limits.activation_window_ms
        doubled = replace(
            limits,
            window_ms=2 * limits.window_ms,
            activation_window_ms=activation_window_ms,
            orphan_window_ms=2 * limits.orphan_window_ms,
        )
        task = replace(task, join=doubled)
    if clock_pauses:
        items = [item._replace(at_ms=START_MS) for item in items]
    members, records_max = luck.choice((1, 1, 2, 3)), luck.choice((1, 3, 100))
    poll_max, dry_every = luck.choice((1, 2, 100, 100)), luck.choice((0, 0, 2, 5))
    options = LearnerOptions(
        "learners",
        records_max=records_max,
        idle_ms=1 if timeless else luck.choice((1, 10, 60)),
        snapshot_interval_ms=luck.choice((0, 0, 10, 50)),
        snapshot_bytes_max=luck.choice((1, 5_000, 1_000_000)),
        snapshot_chunk_bytes=luck.choice((250, 1_000, 1_000_000)),  # some snapshots need several records
    )
    kept = Luck(seed ^ _DICE["retention"])
    if options.snapshot_interval_ms and not timeless and kept.chance(50):
        options = replace(options, keep_ms=kept.choice((20, 100, 400)))
        if not clock_pauses and kept.chance(60):
            options = replace(options, keep_ms=KEEP_MS)
            task = replace(task, join=replace(task.join, retain_ms=min(task.join.retain_ms, 200)))
            items = _with_retention(kept, items)
    if model == "shared":  # most runs have several tasks and processes
        several = Luck(~seed ^ _DICE["shared models"])
        partitions, members = several.choice((1, 2, 2, 3, 3)), several.choice((1, 2, 2, 3))
    return Schedule(
        seed,
        timeless,
        partitions,
        members,
        learner=learner,
        task=task,
        options=options,
        poll_max=poll_max,
        dry_every=dry_every,
        lingers=luck.chance(50),
        transaction_timeout_ms=luck.choice((20, 60, 200)),
        session_timeout_ms=luck.choice((10, 30, 200)),  # the longest timeout exceeds any pause
        old_lags=not timeless and luck.chance(30),
        replication_timeout_ms=luck.choice((5, 30, 200)),
        clock_pauses=clock_pauses,
        items=tuple(items),
        move=_draw_move(Luck(seed ^ _DICE["moves"]), task, partitions, len(items)),
    )


MOVES_PERCENT = 20
"""Percentage of the runs that also move their pipeline."""


def _draw_move(luck: Luck, task: TaskSettings, partitions: int, items: int) -> MoveDraw | None:
    """Generate a move, or None."""
    if not luck.chance(MOVES_PERCENT):
        return None
    after = luck.between(items // 4, items - 1)
    waiting = luck.below(4)
    can_share = task.play == "own" and (task.model == "shared" or not task.open_classes or partitions == 1)
    model: Sharing = luck.choice(("own", "shared")) if can_share else "own"
    if task.model == "own" and task.open_classes and partitions > 1:  # each task has its own order of the classes
        new_partitions, model_from = partitions, None
    else:
        new_partitions = luck.choice((partitions, 1, 2, 3))
        has_several = task.model == "own" and partitions > 1
        is_merged = new_partitions != partitions or model == "shared" or luck.chance(30)
        model_from = luck.below(partitions) if has_several and is_merged else None
    seed = luck.choice((None, luck.below(1_000)))
    crashes = tuple(luck.between(0, 150) for _ in range(luck.below(3)))
    return MoveDraw(after, waiting, new_partitions, model, model_from, seed, crashes)


def _draw_limits(luck: Luck, *, timeless: bool) -> JoinSettings:
    """Draw limits that some runs reach. A timeless run never reaches its retention limit (see `checks`)."""
    tight = luck.chance(40)
    return JoinSettings(
        window_ms=luck.choice((10, 30, 100)),
        orphan_window_ms=luck.choice((10, 40, 150)),
        retain_ms=NEVER_MS if timeless or luck.chance(40) else luck.choice((20, 80, 200)),
        pending_max=luck.choice((1, 2, 4, 1_000)) if tight else 1_000,
        orphans_max=luck.choice((1, 2, 1_000)) if tight else 1_000,
        retained_max=luck.choice((1, 3, 8, 1_000)) if tight else 1_000,
    )


def _draw_events(luck: Luck, events: int, limits: JoinSettings, *, timeless: bool) -> list[Item]:
    """Generate contexts at random intervals, with their feedback."""
    gap_max_ms = luck.choice((1, 5, 20))
    noise = luck.choice((0, 10, 30))  # probability of each kind of irregularity, in percent
    now_ms = START_MS
    items: list[Item] = []

    def add(at_ms: int, kind: ItemKind, event_id: str = "", bit: int = 0, number: int = 0) -> None:
        polls = timeless or luck.chance(80)
        items.append(Item(max(START_MS, at_ms), kind, event_id, bit, number=number, polls=polls))

    for event in range(events):
        now_ms += luck.between(0, gap_max_ms)
        event_id, bit = f"e{event}", luck.below(2)
        if luck.chance(noise):
            kind = luck.choice(
                (ItemKind.CONTEXT_POISON, ItemKind.FEEDBACK_POISON, ItemKind.FEEDBACK_STRAY, ItemKind.TIME)
            )
            add(now_ms, kind, f"s{event % 3}" if kind is ItemKind.FEEDBACK_STRAY else "", bit, number=luck.below(100))
        early = luck.chance(noise)
        if early:
            add(now_ms - luck.between(0, 2 * limits.orphan_window_ms), ItemKind.FEEDBACK_EARLY, event_id, bit)
        add(now_ms, ItemKind.CONTEXT, event_id)
        if luck.chance(noise):
            after_ms = luck.between(0, 2 * limits.window_ms if limits.retain_ms == NEVER_MS else 2 * limits.retain_ms)
            add(now_ms + after_ms, ItemKind.CONTEXT_AGAIN, event_id)
        if not early:
            if luck.chance(noise):
                add(now_ms, ItemKind.FEEDBACK_LOST, event_id)
                continue
            add(now_ms + _draw_delay(luck, limits.window_ms), ItemKind.FEEDBACK, event_id, bit)
        if luck.chance(noise):
            kind = luck.choice((ItemKind.FEEDBACK_AGAIN, ItemKind.FEEDBACK_CONFLICT))
            copy = bit if kind is ItemKind.FEEDBACK_AGAIN else 1 - bit
            add(now_ms + _draw_delay(luck, limits.window_ms), kind, event_id, copy)
    if not timeless and luck.chance(40):
        _put_in_transactions(luck, items)
    return items


def _with_retention(luck: Luck, items: list[Item]) -> list[Item]:
    """Insert one or two periods without traffic that last longer than the retention, which deletes old records.

    No producer has an open transaction at these times: a transaction ends long before the records after it are deleted.
    In some of the periods, all learners stop. Faults occur afterwards, so that all tasks are running before the stop.
    """
    open_count, quiet_ms = 0, []
    for item, later in pairwise(items):
        open_count += (item.kind is ItemKind.FOREIGN_BEGIN) - (item.kind in _FOREIGN_ENDS)
        if open_count == 0 and item.at_ms < later.at_ms:
            quiet_ms.append(item.at_ms)
    for after_ms in sorted(
        (luck.choice(quiet_ms) for _ in range(luck.choice((1, 1, 2)) if quiet_ms else 0)), reverse=True
    ):
        begin_ms = after_ms + 1
        first_ms = begin_ms + KEEP_MS // 2
        end_ms = first_ms + KEEP_MS * luck.between(1, 3)
        added = [Item(at_ms, ItemKind.TIME) for at_ms in range(begin_ms, end_ms, KEEP_MS // 16)]
        if luck.chance(40):
            stopped_ms = KEEP_MS * luck.between(1, 2) + KEEP_MS // 8
            added.append(Item(first_ms, ItemKind.STOP, for_ms=stopped_ms, polls=False))
            first_ms += stopped_ms
            end_ms = max(end_ms, first_ms + KEEP_MS)
            added.append(Item(first_ms - 1, ItemKind.RETENTION, number=luck.below(100), polls=False))
        kinds = [luck.choice(TIMED_FAULTS) for _ in range(luck.below(4))]
        added += [
            _draw_fault(luck, kind, 0, timeless=False)._replace(at_ms=luck.between(first_ms, end_ms)) for kind in kinds
        ]
        added += [
            Item(luck.between(first_ms, end_ms), ItemKind.RETENTION, number=luck.below(100))
            for _ in range(luck.between(1, 3))
        ]
        shift_ms = end_ms - after_ms
        items = [item._replace(at_ms=item.at_ms + (shift_ms if item.at_ms > after_ms else 0)) for item in items] + added
        items.sort(key=lambda item: item.at_ms)
    return items


KEEP_MS = 4_000
"""The retention in runs in which records are deleted. No combination of faults delays a renewal by so much."""

_FOREIGN_ENDS = (ItemKind.FOREIGN_COMMIT, ItemKind.FOREIGN_ABORT)


def _with_actions(luck: Luck, items: list[Item]) -> list[Item]:
    """Add a random action to some of the feedback."""
    percent = luck.choice((0, 20, 60))
    feedback = (
        ItemKind.FEEDBACK,
        ItemKind.FEEDBACK_EARLY,
        ItemKind.FEEDBACK_AGAIN,
        ItemKind.FEEDBACK_CONFLICT,
        ItemKind.FOREIGN_FEEDBACK,
    )
    return [
        item._replace(action=luck.below(N_CLASSES)) if item.kind in feedback and luck.chance(percent) else item
        for item in items
    ]


def _with_eligible(luck: Luck, task: TaskSettings, items: list[Item]) -> tuple[TaskSettings, list[Item]]:
    """Restrict the classes for some contexts in a third of the runs. In half of these runs, the classes are open."""
    if not luck.chance(33):
        return task, items
    if luck.chance(50):
        task = replace(task, open_classes=True)
    drawn = [
        item._replace(eligible=luck.choice(ELIGIBLE)) if item.kind in _CONTEXTS and luck.chance(60) else item
        for item in items
    ]
    return task, drawn


ELIGIBLE: tuple[tuple[int, ...], ...] = ((0,), (2,), (1, 0), (2, 1), (0, 1, 2), (0, 0), (), (3,))
"""Possible lists of eligible classes. If the classes are not open, the last three are malformed with three classes."""

NEWLY_ELIGIBLE: tuple[tuple[int, ...], ...] = ((3,), (4, 0), (1, 3, 4))
"""Lists of eligible classes with classes that only a request can add, except in a pipeline with open classes."""


def _with_deferrals(
    luck: Luck, task: TaskSettings, items: list[Item], *, timeless: bool
) -> tuple[TaskSettings, list[Item]]:
    """Defer some decisions in 40% of the runs. Add shown records for some of these decisions and for a few others."""
    if not luck.chance(40):
        return task, items
    limits = replace(task.join, activation_window_ms=luck.choice((None, 10, 40, 150)))
    noise = luck.choice((5, 20, 40))
    deferred = {item.id for item in items if item.kind in _DECIDING and luck.chance(70)}
    drawn = [
        item._replace(deferred=item.id in deferred or (item.kind is ItemKind.CONTEXT_AGAIN and luck.chance(50)))
        if item.kind in _CONTEXTS
        else item
        for item in items
    ]

    def add(at_ms: int, kind: ItemKind, event_id: str) -> None:
        drawn.append(Item(max(START_MS, at_ms), kind, event_id, polls=timeless or luck.chance(80)))

    for item in items:
        if item.kind not in _DECIDING or (item.id not in deferred and not luck.chance(noise)):
            continue
        if luck.chance(noise):
            add(item.at_ms - luck.between(0, 2 * limits.orphan_window_ms), ItemKind.SHOWN_EARLY, item.id)
        elif luck.chance(30):
            add(item.at_ms, ItemKind.SHOWN_NEVER, item.id)
        else:
            add(item.at_ms + _draw_delay(luck, limits.activation_limit_ms), ItemKind.SHOWN, item.id)
        if luck.chance(noise):
            longest_ms = 2 * limits.window_ms if limits.retain_ms == NEVER_MS else 2 * limits.retain_ms
            add(item.at_ms + luck.between(-limits.orphan_window_ms, longest_ms), ItemKind.SHOWN_AGAIN, item.id)
    drawn.sort(key=lambda item: item.at_ms)
    return replace(task, join=limits), drawn


OFFERS_PERCENT = 25
"""Percentage of the runs whose contexts have actions, of those with settings that suit actions."""

OFFERS: tuple[tuple[int, ...], ...] = ((0, 1, 2), (2, 0), (1,), (4, 3, 1), (2, 1, 0), (0, 3))
"""The actions that contexts offer, by place. Actions are numbered as classes are; see `class_name`."""


def offer_of(event_id: str) -> tuple[int, ...]:
    """Return the actions that an event's context offers."""
    return OFFERS[int(event_id[1:]) % len(OFFERS)]


def _with_offers(luck: Luck, learner: str, task: TaskSettings) -> tuple[str, TaskSettings]:
    """Let the contexts of some runs offer actions with features. Return the learner's key, and the settings."""
    suits = task.play == "own" and task.scale == "none" and not task.open_classes and not task.challengers
    is_plain = task.floor == 0.0 and (task.holdout == 0.0 or task.holdout_policy == BASELINE)
    if not (suits and is_plain and luck.chance(OFFERS_PERCENT)):
        return learner, task
    learner = luck.choice(tuple(OFFERING))
    own = OFFERING[learner]
    return learner, replace(
        task,
        learner=own.learner,
        parameters=own.parameters,
        on_expiry=own.on_expiry,
        late=own.late,
        n_features=N_FEATURES + N_CLASSES * (1 + ACTION_FEATURES),
        actions={"context": N_FEATURES, "features": None},
    )


def _with_values(luck: Luck, task: TaskSettings) -> TaskSettings:
    """Give graded rewards to a third of the runs of learners that learn them, without wrappers and challengers."""
    return replace(task, **GRADED) if _can_be_graded(task) and luck.chance(33) else task


GRADED: dict[str, Any] = {"rewards": "graded", "reward_range": "-3,1.5"}


def _can_be_graded(task: TaskSettings) -> bool:
    return task.learner in VALUED and not task.challengers and not _is_wrapped(task)


def _with_several(
    luck: Luck, task: TaskSettings, items: list[Item], *, timeless: bool
) -> tuple[TaskSettings, list[Item]]:
    """In 40% of the runs, let the reward of a decision depend on several feedback records, and add such records."""
    if not luck.chance(40):
        return task, items
    plain = replace(task, scale="none", floor=0.0, holdout=0.0, late="ignore")
    if _can_be_graded(plain) and luck.chance(70):
        task = replace(plain, feedback="sum", **GRADED)
    else:
        task = replace(task, feedback="max")
    final_percent = luck.choice((0, 10, 40))
    window_ms, orphan_window_ms = task.join.window_ms, task.join.orphan_window_ms
    drawn = [
        item._replace(part=luck.below(3), final=luck.chance(final_percent)) if item.kind in _FED else item
        for item in items
    ]
    for item in items:
        if item.kind not in _DECIDING:
            continue
        for _ in range(luck.choice((0, 0, 1, 2, 4))):
            at_ms = item.at_ms + luck.choice((_draw_delay(luck, window_ms), -luck.between(0, orphan_window_ms)))
            more = Item(
                max(START_MS, at_ms),
                ItemKind.FEEDBACK_MORE,
                item.id,
                luck.below(2),
                polls=timeless or luck.chance(80),
                action=luck.below(N_CLASSES) if luck.chance(10) else None,
                part=luck.below(4),
                final=luck.chance(final_percent),
            )
            drawn.append(more)
        if task.feedback == "sum" and luck.chance(5):
            drawn.append(Item(item.at_ms + luck.between(0, window_ms), ItemKind.FEEDBACK_MANY, item.id))
    return task, sorted(drawn, key=lambda item: item.at_ms)


_FED = (
    ItemKind.FEEDBACK, ItemKind.FEEDBACK_EARLY, ItemKind.FEEDBACK_AGAIN, ItemKind.FEEDBACK_CONFLICT,
    ItemKind.FOREIGN_FEEDBACK, ItemKind.FEEDBACK_STRAY,
)  # fmt: skip


def _with_challengers(luck: Luck, task: TaskSettings, items: list[Item]) -> tuple[TaskSettings, list[Item]]:
    """To half of the runs without wrappers, add challengers."""
    names = CHALLENGERS.get(task.learner, ())
    if not luck.chance(50) or not names or _is_wrapped(task):
        return task, items
    return replace(task, challengers={name: PARAMETERS[name] for name in names}), items


def _with_baselines(luck: Luck, task: TaskSettings, items: list[Item]) -> tuple[TaskSettings, list[Item]]:
    """In a quarter of the runs without challengers, let the service's own rule decide in the holdout.

    Most contexts name the rule's class. Without it, or if it is not eligible, a context is malformed.
    """
    if not luck.chance(25) or task.challengers:
        return task, items
    is_sound = registered()[task.learner].from_logs is not FromLogs.UNSOUND
    task = replace(task, holdout=luck.choice((0.3, 0.9, 1.0 if is_sound else 0.5)), holdout_policy=BASELINE)
    return task, [
        item._replace(baseline=luck.below(N_CLASSES)) if item.kind in _CONTEXTS and luck.chance(90) else item
        for item in items
    ]


def _with_changes(luck: Luck, task: TaskSettings, items: list[Item]) -> tuple[TaskSettings, list[Item]]:
    """To most runs, add requests to change settings. The tasks must refuse some of them."""
    if not luck.chance(70):
        return task, items
    if task.learner in CHALLENGERS and luck.chance(50):
        task = replace(task, scale="none", floor=0.0, holdout=0.0)
    task, items = _with_new_sizes(luck, task, items)
    rows = _rows(task)
    likely = [name for name in ("members", "sizes") if name in rows]
    end_ms, requests = max(item.at_ms for item in items), []

    def request(at_ms: int, changes: Changes, stale_percent: int) -> None:
        is_stale, polls = luck.chance(stale_percent), luck.chance(80)
        requests.append(Item(at_ms, ItemKind.CHANGE, changes=changes, is_stale=is_stale, polls=polls))

    if "members" in rows and luck.chance(60):  # add all challengers, promote one of them, and remove the others
        name = luck.choice(CHALLENGERS[task.learner])
        times_ms = sorted(luck.between(START_MS, end_ms) for _ in range(3))
        for at_ms, changes in zip(times_ms, (_added(task), (("champion", name),), _replaced(task, name)), strict=True):
            request(at_ms, changes, 0)
    for _ in range(1 + luck.below(6)):
        names = {luck.choice(likely if luck.chance(40) else [*rows]) for _ in range(luck.choice((1, 1, 2)))}
        request(luck.between(START_MS, end_ms), sum((luck.choice(rows[name]) for name in sorted(names)), ()), 20)
    return task, sorted(items + requests, key=lambda item: item.at_ms)


def _with_new_sizes(luck: Luck, task: TaskSettings, items: list[Item]) -> tuple[TaskSettings, list[Item]]:
    """Have some contexts and feedback use classes and features that only a request can add.

    In some of the runs, the features or the classes have names.
    """
    if not task.open_classes and task.actions is None and luck.chance(30):
        task = replace(task, class_names=tuple(map(class_name, range(N_CLASSES))))
        if task.holdout_policy not in (UNIFORM, BASELINE):
            task = replace(task, holdout_policy=f"constant:{class_name(1)}")
    has_names = luck.chance(30)
    if has_names:
        task = replace(task, features=_encoder_of(N_FEATURES))
    restricts = any(item.eligible is not None for item in items)

    def drawn(item: Item) -> Item:
        if item.kind in _CONTEXTS and luck.chance(30):
            item = item._replace(feature=luck.between(N_FEATURES, N_FEATURES_MAX - 1), has_names=has_names)
        if item.kind in _CONTEXTS and restricts and luck.chance(20):
            item = item._replace(eligible=luck.choice(NEWLY_ELIGIBLE))
        if item.action is not None and luck.chance(20):
            item = item._replace(action=luck.between(N_CLASSES, N_CLASSES_MAX - 1))
        return item

    return task, list(map(drawn, items))


def class_name(k: int) -> str:
    """Return a class's name, in a pipeline whose classes have names."""
    return f"c{k}"


def feature_name(i: int) -> str:
    """Return a feature's name, in a pipeline whose features have names."""
    return f"f{i}"


def _encoder_of(n_features: int) -> dict[str, Any]:
    return to_plain(build({feature_name(i): (Kind.NUMERIC, None) for i in range(n_features)}, None))


def _rows(task: TaskSettings) -> dict[str, tuple[Changes, ...]]:
    """Return possible requests by the row of `stream.task.carry` that they concern."""
    rows: dict[str, tuple[Changes, ...]] = {
        name: tuple(((name, value),) for value in values) for name, values in _NEW_VALUES.items()
    }
    rows["late"] = ((("late", "ignore"),), (("on_expiry", "negative"), ("late", "correct")))
    rows["parameters"] = tuple((change,) for change in _NEW_PARAMETERS[task.learner])
    classes: list[Changes] = [(("n_classes", n),) for n in (N_CLASSES - 1, 4, N_CLASSES_MAX)]
    if task.class_names is not None:
        classes = [(("class_names", [class_name(k) for k in range(n)]), ("n_classes", n)) for n in (4, N_CLASSES_MAX)]
    features: list[Changes] = [(("n_features", n),) for n in (N_FEATURES - 1, 10, N_FEATURES_MAX)]
    if task.features is not None:
        features = [(("features", _encoder_of(n)), ("n_features", n)) for n in (10, N_FEATURES_MAX)]
    rows["sizes"] = (*classes, *features)
    is_alone = _is_wrapped(task) or task.graded is not None
    others = () if is_alone else CHALLENGERS.get(task.learner, ())
    if others:
        rows["members"] = (
            *((("champion", name),) for name in (task.learner, *others, "nobody")),
            *((("challengers", {name: PARAMETERS[name] for name in others[:n]}),) for n in range(len(others) + 1)),
            *(_replaced(task, name) for name in others),
        )
    elif task.graded is None:  # fewer wrapped learners to compile
        rows["floor"] = tuple((("floor", floor),) for floor in (0.0, 0.3))
        rows["holdout"] = tuple((("holdout", holdout),) for holdout in (0.0, 0.3))
        constant = f"constant:{1 if task.class_names is None else class_name(1)}"
        rows["holdout_policy"] = tuple((("holdout_policy", policy),) for policy in (UNIFORM, constant))
    return rows


def _added(task: TaskSettings) -> Changes:
    """Return the request for all challengers."""
    return (("challengers", {name: PARAMETERS[name] for name in CHALLENGERS[task.learner]}),)


def _replaced(task: TaskSettings, name: str) -> Changes:
    """Return the request for a pipeline with a promoted challenger as its only learner."""
    resolved = replace(task, challengers={name: PARAMETERS[name]}).resolved()
    new = resolved.challengers[name]
    parameters = {**dict.fromkeys(resolved.parameters), **new}
    return (
        ("challengers", {}), ("champion", learner_of(name)), ("learner", learner_of(name)),
        *((f"parameters.{parameter}", value) for parameter, value in parameters.items()),
    )  # fmt: skip


def _with_retired(luck: Luck, task: TaskSettings, items: list[Item]) -> list[Item]:
    """To a fifth of the runs, add requests to retire classes and features, and to restore them."""
    if not luck.chance(20):
        return items
    end_ms, requests = max(item.at_ms for item in items), []
    for _ in range(1 + luck.below(3)):
        classes = luck.choice(((), (0,), (2,), (0, 1), (1, 2), (3,)))  # the last one is an unknown class
        has_names = task.open_classes or task.class_names is not None
        retired = "retired_classes", [class_name(k) if has_names else k for k in classes]
        features = luck.choice(((), (1,), (0, 3)))
        ignored = "retired_features", [i if task.features is None else feature_name(i) for i in features]
        changes = luck.choice(((retired,), (retired,), (ignored,)))
        at_ms, polls = luck.between(START_MS, end_ms), luck.chance(80)
        requests.append(Item(at_ms, ItemKind.CHANGE, changes=changes, polls=polls))
    return sorted(items + requests, key=lambda item: item.at_ms)


def _with_lags(luck: Luck, items: list[Item]) -> list[Item]:
    """Let a process with a shared model read an old end of the log around half of the requested changes.

    Its tasks then write entries with the earlier settings after the change in the log.
    """
    lags = [
        _draw_fault(luck, ItemKind.LAG, item.at_ms, timeless=False)._replace(at_ms=item.at_ms)
        for item in items
        if item.kind is ItemKind.CHANGE and luck.chance(50)
    ]
    return sorted(items + lags, key=lambda item: item.at_ms)


_NEW_VALUES: dict[str, tuple[Any, ...]] = {
    "window_ms": (10, 30, 100),
    "activation_window_ms": (None, 10, 150),
    "orphan_window_ms": (10, 150),
    "retain_ms": (20, 200),
    "pending_max": (1, 2, 1_000),
    "orphans_max": (1, 1_000),
    "retained_max": (1, 8, 1_000),
    "on_expiry": ("drop", "negative"),
    "seed": (5,),  # cannot change
    "unknown": (1,),
}
"""Values to request, by setting."""

CHANGED_SETTINGS = (
    *(name for name in _NEW_VALUES if name not in ("seed", "unknown")), "late", "floor", "holdout", "holdout_policy",
    "challengers", "champion", "learner", "parameters", "n_classes", "class_names", "n_features", "features",
)  # fmt: skip
"""The settings that some requests change."""

_NEW_PARAMETERS: dict[str, Changes] = {
    "banditron": (("parameters.gamma", 0.2), ("parameters.gamma", 0.6)),
    "soba-diag": (("parameters.gamma", 0.2), ("parameters.a", 2.0)),
    "perceptron": (("parameters.margin", "current"), ("parameters.unknown", 1)),
    "late-ucb": (("parameters.eta", 0.3), ("parameters.shortlist", 2), ("parameters.m", 4)),
    "igw-logistic": (("parameters.step", 1.0), ("parameters.scale", 30.0)),
    "stack-igw": (("parameters.bonus", 0.5), ("parameters.vectors", 2)),
    "joint-ucb": (("parameters.eta", 0.3), ("parameters.shortlist", 2), ("parameters.context", 4)),
    "igw-log": (("parameters.step", 0.5), ("parameters.scale", 30.0), ("parameters.bits", 9)),
}
"""New values of each learner's parameters. The model's state depends on some of them, so these requests are refused."""


def _is_wrapped(task: TaskSettings) -> bool:
    return (
        task.play != "own"
        or task.scale != "none"
        or not task.floor == task.holdout == 0.0
        or task.reward != "exclusive"
    )


CHALLENGERS = {"banditron": ("late-ucb:m=2",), "igw-logistic": ("late-ucb:m=2", "banditron")}
"""Each champion's challengers. There are only a few pairs, because compiling one pair takes longer than many runs."""

PARAMETERS: dict[str, dict[str, float | str]] = {"banditron": {"gamma": 0.4}, "late-ucb:m=2": {"m": 2, "drift": "off"}}

_DECIDING = (ItemKind.CONTEXT, ItemKind.FOREIGN_CONTEXT)
_CONTEXTS = (*_DECIDING, ItemKind.CONTEXT_AGAIN)


def _with_logs(luck: Luck, task: TaskSettings, items: list[Item]) -> tuple[TaskSettings, list[Item]]:
    """Have half of the runs replay a log. Some logging policies are uniform, and some contexts lack logged fields."""
    play = luck.choice(PLAYS)
    if play == "own" and luck.chance(50):
        return task, items
    least = luck.choice((0.0, 0.3))
    task = replace(task, play=play, propensity_min=least)
    if task.late == "ignore" and luck.chance(40):
        learner = luck.choice(tuple(LOG_LEARNERS))
        task = replace(task, learner=learner, parameters=LOG_LEARNERS[learner], on_expiry="drop")
        if luck.chance(50):
            task = replace(task, reward="any")
    logs: dict[str, Logged | None] = {}
    for item in items:
        if item.kind in _DECIDING:
            propensity = 1 / N_CLASSES if least == 0.0 else luck.choice((0.2, 0.3, 0.5, 1.0))
            draw = luck.below(20)
            logged = Logged(luck.below(N_CLASSES), None if draw == 1 else propensity)
            logs[item.id] = None if draw == 0 else logged
    return task, [item._replace(logged=logs.get(item.id)) for item in items]


def _draw_shared(luck: Luck, end_ms: int, *, timeless: bool) -> list[Item]:
    """Generate faults in the shared model's log, and records that another producer writes to the log by mistake."""
    faults = [luck.choice(SHARED_FAULTS) for _ in range(luck.below(4))]
    items = [_draw_fault(luck, kind, end_ms, timeless=timeless) for kind in faults]
    if not timeless and luck.chance(30):
        items.append(_draw_fault(luck, ItemKind.HOLD, end_ms, timeless=False)._replace(call=_LOG_TOPIC))
    for number in range(_FOREIGN_TO_LOG, _FOREIGN_TO_LOG + luck.choice((0, 0, 1, 2))):
        first_ms = luck.between(START_MS, end_ms)
        last_ms = first_ms + luck.choice((0, 10, 60))
        ends = ItemKind.FOREIGN_COMMIT if luck.chance(60) else ItemKind.FOREIGN_ABORT
        items.append(Item(first_ms, ItemKind.FOREIGN_BEGIN, number=number))
        items += [
            Item(first_ms, ItemKind.FOREIGN_OUTPUT, member=luck.below(6), number=number, call=_LOG_TOPIC)
            for _ in range(luck.between(1, 2))
        ]
        items.append(Item(last_ms, ends, number=number))
    return items


_FOREIGN_TO_LOG = 10
"""Lowest number of a transaction in which another producer writes to the shared model's log. Other kinds of
transactions have lower numbers.
"""

_LOG_TOPIC = "updates"


def _draw_delay(luck: Luck, window_ms: int) -> int:
    """Draw a delay with which feedback arrives in time, late, or within 1 ms of the deadline."""
    in_time = [luck.between(0, window_ms) for _ in range(2)]
    return luck.choice((0, *in_time, window_ms + luck.between(-1, 1), luck.between(window_ms, 3 * window_ms)))


_FOREIGN = {ItemKind.CONTEXT: ItemKind.FOREIGN_CONTEXT, ItemKind.FEEDBACK: ItemKind.FOREIGN_FEEDBACK}


def _put_in_transactions(luck: Luck, items: list[Item]) -> None:
    """Have another producer write some contexts and feedback in transactions that commit later or abort.

    The producer also writes to the learners' topics by mistake.
    """
    kinds = luck.choice(
        (_FOREIGN, {ItemKind.CONTEXT: ItemKind.FOREIGN_CONTEXT}, {ItemKind.FEEDBACK: ItemKind.FOREIGN_FEEDBACK})
    )
    for number in range(luck.between(1, 2)):
        chosen = [index for index, item in enumerate(items) if item.kind in kinds and luck.chance(15)]
        if not chosen:
            continue
        for index in chosen:
            items[index] = items[index]._replace(kind=kinds[items[index].kind], number=number)
        first_ms = min(items[index].at_ms for index in chosen)
        last_ms = max(items[index].at_ms for index in chosen)
        for _ in range(luck.below(3)):
            at_ms, topic = luck.between(first_ms, last_ms), luck.choice(FOREIGN_TOPICS)
            items.append(Item(at_ms, ItemKind.FOREIGN_OUTPUT, member=luck.below(6), number=number, call=topic))
        items.insert(0, Item(first_ms, ItemKind.FOREIGN_BEGIN, number=number))
        ends = ItemKind.FOREIGN_COMMIT if luck.chance(70) else ItemKind.FOREIGN_ABORT
        items.append(Item(last_ms + luck.between(0, 60), ends, number=number))


def _draw_faults(luck: Luck, end_ms: int, *, timeless: bool) -> list[Item]:
    kinds = TIMELESS_FAULTS if timeless else TIMED_FAULTS
    faults = [luck.choice(kinds) for _ in range(luck.between(0, 6))]
    if not timeless:
        faults += [ItemKind.PAUSE] * luck.choice((0, 0, 2, 10))
    return [_draw_fault(luck, kind, end_ms, timeless=timeless) for kind in faults]


def _draw_fault(luck: Luck, kind: ItemKind, end_ms: int, *, timeless: bool) -> Item:
    number, call = 0, ""
    if kind in IN_COMMIT:
        number = luck.choice(COMMIT_STEPS)
    elif kind in NUMBERS:
        number = luck.between(*NUMBERS[kind])
    if kind in TARGETS:
        call = luck.choice(TARGETS[kind])
    takes_ms = luck.choice((0, 5, 20, 80))
    if kind in (ItemKind.OUTAGE, ItemKind.SLEEP, ItemKind.HOLD):
        takes_ms = max(takes_ms, 5)
    elif kind is ItemKind.SLOW:
        takes_ms = luck.choice((100, 200, 400))
    elif kind is ItemKind.PAUSE:
        takes_ms = max(takes_ms, luck.between(1, 12))
    return Item(
        luck.between(START_MS, end_ms),
        kind,
        member=luck.below(3),
        number=number,
        call=call,
        for_ms=0 if timeless or kind is ItemKind.LAG else takes_ms,
    )
