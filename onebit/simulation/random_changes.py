"""Random requests to change a running pipeline's settings."""

from dataclasses import replace
from typing import Any

from onebit.simulation.random_faults import draw_fault
from onebit.simulation.schedule import (
    CONTEXTS,
    N_CLASSES,
    N_CLASSES_MAX,
    N_FEATURES,
    N_FEATURES_MAX,
    START_MS,
    Changes,
    Item,
    ItemKind,
    class_name,
    feature_name,
)
from stream.learners.wrappers.mixture import BASELINE
from stream.randomness.draws import Luck
from stream.task.settings import UNIFORM, TaskSettings, learner_of
from stream.wire.named_features import Kind, build, to_plain


def with_changes(luck: Luck, task: TaskSettings, items: list[Item]) -> tuple[TaskSettings, list[Item]]:
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
        if item.kind in CONTEXTS and luck.chance(30):
            item = item._replace(feature=luck.between(N_FEATURES, N_FEATURES_MAX - 1), has_names=has_names)
        if item.kind in CONTEXTS and restricts and luck.chance(20):
            item = item._replace(eligible=luck.choice(NEWLY_ELIGIBLE))
        if item.action is not None and luck.chance(20):
            item = item._replace(action=luck.between(N_CLASSES, N_CLASSES_MAX - 1))
        return item

    return task, list(map(drawn, items))


NEWLY_ELIGIBLE: tuple[tuple[int, ...], ...] = ((3,), (4, 0), (1, 3, 4))
"""Lists of eligible classes with classes that only a request can add, except in a pipeline with open classes."""


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
    is_alone = is_wrapped(task) or task.graded is not None
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


def _encoder_of(n_features: int) -> dict[str, Any]:
    return to_plain(build({feature_name(i): (Kind.NUMERIC, None) for i in range(n_features)}, None))


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


def with_retired(luck: Luck, task: TaskSettings, items: list[Item]) -> list[Item]:
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


def with_lags(luck: Luck, items: list[Item]) -> list[Item]:
    """Let a process with a shared model read an old end of the log around half of the requested changes.

    Its tasks then write entries with the earlier settings after the change in the log.
    """
    lags = [
        draw_fault(luck, ItemKind.LAG, item.at_ms, timeless=False)._replace(at_ms=item.at_ms)
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

CHALLENGERS = {"banditron": ("late-ucb:m=2",), "igw-logistic": ("late-ucb:m=2", "banditron")}
"""Each champion's challengers. There are only a few pairs, because compiling one pair takes longer than many runs."""

PARAMETERS: dict[str, dict[str, float | str]] = {"banditron": {"gamma": 0.4}, "late-ucb:m=2": {"m": 2, "drift": "off"}}


def is_wrapped(task: TaskSettings) -> bool:
    """Return whether the settings need a wrapper or logged decisions, or allow several right classes."""
    return (
        task.play != "own"
        or task.scale != "none"
        or not task.floor == task.holdout == 0.0
        or task.reward != "exclusive"
    )
