"""Random schedules: each is generated from a seed."""

from dataclasses import replace
from functools import partial
from typing import Any

from consumers.learner.program import LearnerOptions
from onebit.simulation.random_changes import CHALLENGERS, PARAMETERS, is_wrapped, with_changes, with_lags, with_retired
from onebit.simulation.random_faults import (
    KEEP_MS,
    draw_fault,
    draw_faults,
    draw_shared,
    put_in_transactions,
    with_retention,
)
from onebit.simulation.schedule import (
    CONTEXTS,
    DECIDING,
    EVENTS,
    N_CLASSES,
    N_FEATURES,
    NEVER_MS,
    START_MS,
    Item,
    ItemKind,
    MoveDraw,
    Schedule,
)
from stream.learners import FromLogs, registered
from stream.learners.wrappers.mixture import BASELINE
from stream.randomness.draws import Luck
from stream.settings.task_fields import JoinSettings, Play
from stream.task.settings import UNIFORM, Sharing, TaskSettings
from stream.wire.records import Logged

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
    items += draw_faults(luck, max(item.at_ms for item in items), timeless=timeless)
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
        items += draw_shared(Luck(seed ^ _DICE["shared models"]), max(item.at_ms for item in items), timeless=timeless)
        items.sort(key=lambda item: item.at_ms)
    repeated = Luck(seed ^ _DICE["repeated commits"])
    if repeated.chance(25):
        end_ms = max(item.at_ms for item in items)
        items.append(draw_fault(repeated, ItemKind.COMMIT_REPEATED, end_ms, timeless=timeless))
        items.sort(key=lambda item: item.at_ms)
    learner, task = _with_offers(Luck(seed ^ _DICE["offers"]), learner, task)
    task = _with_values(Luck(seed ^ _DICE["rewards"]), task)
    task, items = _with_several(Luck(seed ^ _DICE["several rewards"]), task, items, timeless=timeless)
    if not timeless:
        task, items = with_changes(Luck(seed ^ _DICE["changes"]), task, items)
        items = with_retired(Luck(seed ^ _DICE["retired"]), task, items)
        if model == "shared":
            items = with_lags(Luck(seed ^ _DICE["lags"]), items)
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
            items = with_retention(kept, items)
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
        put_in_transactions(luck, items)
    return items


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
        item._replace(eligible=luck.choice(ELIGIBLE)) if item.kind in CONTEXTS and luck.chance(60) else item
        for item in items
    ]
    return task, drawn


ELIGIBLE: tuple[tuple[int, ...], ...] = ((0,), (2,), (1, 0), (2, 1), (0, 1, 2), (0, 0), (), (3,))
"""Possible lists of eligible classes. If the classes are not open, the last three are malformed with three classes."""


def _with_deferrals(
    luck: Luck, task: TaskSettings, items: list[Item], *, timeless: bool
) -> tuple[TaskSettings, list[Item]]:
    """Defer some decisions in 40% of the runs. Add shown records for some of these decisions and for a few others."""
    if not luck.chance(40):
        return task, items
    limits = replace(task.join, activation_window_ms=luck.choice((None, 10, 40, 150)))
    noise = luck.choice((5, 20, 40))
    deferred = {item.id for item in items if item.kind in DECIDING and luck.chance(70)}
    drawn = [
        item._replace(deferred=item.id in deferred or (item.kind is ItemKind.CONTEXT_AGAIN and luck.chance(50)))
        if item.kind in CONTEXTS
        else item
        for item in items
    ]

    def add(at_ms: int, kind: ItemKind, event_id: str) -> None:
        drawn.append(Item(max(START_MS, at_ms), kind, event_id, polls=timeless or luck.chance(80)))

    for item in items:
        if item.kind not in DECIDING or (item.id not in deferred and not luck.chance(noise)):
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
        holdout_policy=task.holdout_policy if task.holdout else UNIFORM,  # no policy for classes
    )


def _with_values(luck: Luck, task: TaskSettings) -> TaskSettings:
    """Give graded rewards to a third of the runs of learners that learn them, without wrappers and challengers."""
    return replace(task, **GRADED) if _can_be_graded(task) and luck.chance(33) else task


GRADED: dict[str, Any] = {"rewards": "graded", "reward_range": "-3,1.5"}


def _can_be_graded(task: TaskSettings) -> bool:
    return task.learner in VALUED and not task.challengers and not is_wrapped(task)


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
        if item.kind not in DECIDING:
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
    if not luck.chance(50) or not names or is_wrapped(task):
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
        item._replace(baseline=luck.below(N_CLASSES)) if item.kind in CONTEXTS and luck.chance(90) else item
        for item in items
    ]


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
        if item.kind in DECIDING:
            propensity = 1 / N_CLASSES if least == 0.0 else luck.choice((0.2, 0.3, 0.5, 1.0))
            draw = luck.below(20)
            logged = Logged(luck.below(N_CLASSES), None if draw == 1 else propensity)
            logs[item.id] = None if draw == 0 else logged
    return task, [item._replace(logged=logs.get(item.id)) for item in items]


def _draw_delay(luck: Luck, window_ms: int) -> int:
    """Draw a delay with which feedback arrives in time, late, or within 1 ms of the deadline."""
    in_time = [luck.between(0, window_ms) for _ in range(2)]
    return luck.choice((0, *in_time, window_ms + luck.between(-1, 1), luck.between(window_ms, 3 * window_ms)))
