"""Changes of a running pipeline's settings: what carries over, and what is refused."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from stream.learners import FromLogs, KernelLearner, Learner, Parameter, ParameterError, create, registered
from stream.learners.wrappers.challenge import BEFORE, SETTLED_BEFORE, Challenge, decision_of, parts_of
from stream.settings.model import Change
from stream.settings.task_fields import JoinSettings
from stream.task.carry import Carry, ChangeError, Reason, Stage, check_change, members_of, names_of, sources_of
from stream.task.settings import TaskSettings
from stream.task.stored_settings import STORED
from stream.wire.named_features import Kind, build, from_plain, to_plain
from stream.wire.records import NOT_ELIGIBLE, Decision, Features, IndexArray

K, D = 3, 4
K_MORE, D_MORE = 5, 6

VARIANTS: dict[str, dict[str, Any]] = {
    "confidit diagonal": {"covariance": "diag"},
    "confidit projected": {"projection": True, "covariance": "diag"},
    "late-ucb plain": {"expand": "none", "drift": "off"},
    "late-ucb quadratic": {"expand": "quadratic"},
    "late-ucb projected": {"project": 5, "drift": "off"},
    "selectron logistic": {"loss": "logistic", "support_max": 20},
    "soba-adaptive full": {"covariance": "full"},
    "stack-igw without vectors": {"vectors": 0},
}
LEARNERS = [*(name for name, cls in registered().items() if not cls.for_actions), *VARIANTS]

FIXED_SIZE = {
    "biased-halving", "exp4", "feature-blocks", "halving", "hypothesis-exhaustion", "selectron logistic",
}  # fmt: skip
"""Learners whose random or hashed structures, or whose memory, depend on the number of features."""

RELATIVE = {"stack-igw", "stack-igw without vectors", "confidit projected"}
"""Learners whose score for a class depends on the scores of all classes."""

LEARNS_ABOUT_ALL = {"igw-logistic"} | RELATIVE
"""Learners that also learn about classes that are not eligible, and so about classes that do not exist yet."""

PHASES_OF_SIZE = {"late-ucb", "late-ucb projected"}
"""Learners with random features whose phases depend on the number of features at the start."""


def settings(name: str, n_classes: int = K, n_features: int = D, **others: Any) -> TaskSettings:
    learner = name.split()[0]
    return TaskSettings(learner, n_classes, n_features, parameters=VARIANTS.get(name, {}), **others)


def carried(learner: Learner, before: TaskSettings, after: TaskSettings) -> Learner:
    return Carry(before, after, learner).learner


def contexts(size: int, seed: int = 3) -> Iterator[tuple[Features, float, int]]:
    """Yield features, draws and labels."""
    rng = np.random.default_rng(seed)
    for _ in range(size):
        x = rng.normal(size=D)
        indices = np.flatnonzero(rng.random(D) < 0.8).astype(np.int32)
        yield Features(indices, x[indices]), float(rng.random()), int(rng.integers(K))


class Waiting(NamedTuple):
    x: Features
    decision: Decision
    label: int


def make_decisions(learner: Learner, size: int, seed: int = 3, eligible: IndexArray | None = None) -> list[Waiting]:
    made = []
    for x, u, label in contexts(size, seed):
        decision = learner.predict(x, u, eligible)
        learner.observe(x, decision)
        made.append(Waiting(x, decision, label))
    return made


def settle(learner: Learner, waiting: list[Waiting]) -> None:
    for x, decision, label in waiting:
        learner.update(x, decision, int(decision.action == label), 0.3, label)


def trained(learner: Learner, eligible: IndexArray | None = None, batches: int = 12) -> list[Waiting]:
    """Train a learner with delayed bits. Return the decisions that are still pending."""
    waiting: list[Waiting] = []
    for batch in range(batches):
        made = make_decisions(learner, 5, batch, eligible)
        settle(learner, waiting)
        waiting = made
    return waiting


def moved(carry: Carry, waiting: list[Waiting]) -> list[Waiting]:
    return [one._replace(decision=carry.decision(one.x, one.decision)) for one in waiting]


def assert_same_state(one: Learner, other: Learner) -> None:
    first, second = one.state(), other.state()
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], name)


def decisions_differ(one: Learner, other: Learner, eligible: IndexArray | None) -> bool:
    """Return whether the scores of the first K classes ever differ, bit for bit."""
    return any(
        not np.array_equal(one.predict(x, u).scores, other.predict(x, u, eligible).scores[:K])
        for x, u, _ in contexts(50, seed=99)
    )


EXISTING = np.arange(K, dtype=np.int32)

SUPPORTING = [name for name in LEARNERS if registered()[name.split()[0]].supports_eligible]


@pytest.mark.parametrize("name", SUPPORTING)
def test_scores_of_existing_classes_stay_the_same_with_more_classes(name: str) -> None:
    before, after = settings(name), settings(name, n_classes=K_MORE)
    old = before.make_learner()
    trained(old)
    new = carried(old, before, after)
    assert new.n_classes == K_MORE
    assert decisions_differ(old, new, EXISTING) == (name in RELATIVE)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in FIXED_SIZE])
def test_scores_stay_the_same_with_more_features(name: str) -> None:
    before, after = settings(name), settings(name, n_features=D_MORE)
    old = before.make_learner()
    trained(old)
    new = carried(old, before, after)
    assert new.n_features == D_MORE
    assert not decisions_differ(old, new, None)


@pytest.mark.parametrize("name", [name for name in SUPPORTING if name not in LEARNS_ABOUT_ALL])
def test_model_with_added_classes_learns_as_if_they_had_never_been_eligible(name: str) -> None:
    before, after = settings(name), settings(name, n_classes=K_MORE)
    old, larger = before.make_learner(), after.make_learner()
    waiting, expected = trained(old), trained(larger, EXISTING)
    carry = Carry(before, after, old)
    settle(carry.learner, moved(carry, waiting))
    settle(larger, expected)
    settle(carry.learner, make_decisions(carry.learner, 20, 50))
    settle(larger, make_decisions(larger, 20, 50))
    assert_same_state(carry.learner, larger)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in FIXED_SIZE | PHASES_OF_SIZE])
def test_model_with_added_features_learns_as_if_they_had_always_been_0(name: str) -> None:
    before, after = settings(name), settings(name, n_features=D_MORE)
    old, larger = before.make_learner(), after.make_learner()
    waiting, expected = trained(old), trained(larger)
    carry = Carry(before, after, old)
    settle(carry.learner, moved(carry, waiting))
    settle(larger, expected)
    assert_same_state(carry.learner, larger)


def test_classes_and_features_are_added_together_as_one_after_the_other() -> None:
    before, after = settings("late-ucb", scale="standard"), settings("late-ucb", K_MORE, D_MORE, scale="standard")
    between = settings("late-ucb", n_classes=K_MORE, scale="standard")
    old = before.make_learner()
    trained(old)
    one_by_one = carried(carried(old, before, between), between, after)
    assert_same_state(carried(old, before, after), one_by_one)


@pytest.mark.parametrize("name", sorted(FIXED_SIZE))
def test_learner_that_cannot_be_extended_is_refused(name: str) -> None:
    with pytest.raises(ChangeError) as raised:
        check_change(settings(name), settings(name, n_features=D_MORE))
    assert (raised.value.setting, raised.value.reason) == ("n_features", Reason.CANNOT_GROW)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in SUPPORTING])
def test_more_classes_are_refused_without_eligible_classes(name: str) -> None:
    with pytest.raises(ChangeError) as raised:
        check_change(settings(name), settings(name, n_classes=K_MORE))
    assert (raised.value.setting, raised.value.reason) == ("n_classes", Reason.NO_ELIGIBLE)


def other_values(parameter: Parameter) -> list[Any]:
    if parameter.choices:
        return [choice for choice in parameter.choices if choice != parameter.default]
    assert isinstance(parameter.default, int | float)
    value = parameter.default / 2 if parameter.default else 0.5
    return [type(parameter.default)(value)]


CHANGES = [
    pytest.param(name, parameter.name, value, id=f"{name}-{parameter.name}-{value}")
    for name, cls in registered().items()
    for parameter in cls.parameters
    if parameter.can_change and not cls.for_actions
    for value in other_values(parameter)
]


@pytest.mark.parametrize(("name", "parameter", "value"), CHANGES)
def test_new_model_does_not_depend_on_a_parameter_that_can_change(name: str, parameter: str, value: Any) -> None:
    one, other = create(name, K, D), create(name, K, D, **{parameter: value})
    assert_same_state(one, other)
    for declared in ("from_logs", "retractable", "one_right_class", "greedy_parts", "observed", "grows", "kernels"):
        assert getattr(one, declared) == getattr(other, declared)
    assert isinstance(one, KernelLearner)
    assert isinstance(other, KernelLearner)
    assert one.logged_size == other.logged_size


@pytest.mark.parametrize(("name", "parameter", "value"), CHANGES)
def test_model_and_pending_decisions_are_kept_with_a_parameter_that_can_change(
    name: str, parameter: str, value: Any
) -> None:
    before = TaskSettings(name, K, D)
    after = replace(before, parameters={parameter: value})
    old = before.make_learner()
    waiting = trained(old, batches=3)
    carry = Carry(before, after, old)
    assert_same_state(carry.learner, old)
    settle(carry.learner, moved(carry, waiting))


SHAPING = [
    ("late-ucb", "m", 32), ("late-ucb", "lam", 0.5), ("late-ucb", "drift", "off"), ("igw-logistic", "bias", 0.2),
    ("soba-diag", "a", 2.0), ("confidit", "variant", 3), ("halving", "seed", 1), ("exp4", "gamma", 0.2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameter", "value"), SHAPING)
def test_parameter_that_the_model_depends_on_is_refused(name: str, parameter: str, value: Any) -> None:
    before = TaskSettings(name, K, D)
    with pytest.raises(ChangeError) as raised:
        check_change(before, replace(before, parameters={parameter: value}))
    assert (raised.value.setting, raised.value.reason) == (f"parameters.{parameter}", Reason.SHAPES_MODEL)
    assert raised.value.got == value


BANDITRON = TaskSettings("banditron", K, D, parameters={"gamma": 0.3})
PAIR = replace(BANDITRON, challengers={"soba-diag": {}})
TRIPLE = replace(BANDITRON, challengers={"soba-diag": {}, "igw-logistic": {}})
CLASSES = replace(BANDITRON, class_names=("a", "b", "c"))

FIXED: dict[str, Any] = {
    "scale": "standard", "play": "logged", "reward": "any", "propensity_min": 0.1,
    "dated_by": "context", "open_classes": True,
}  # fmt: skip

MOVED: dict[str, Any] = {"seed": 1, "model": "shared"}

REFUSED: dict[str, tuple[TaskSettings, TaskSettings, str, Reason]] = {
    **{
        name: (BANDITRON, replace(BANDITRON, **{name: value}), name, reason)
        for reason, values in ((Reason.FIXED, FIXED), (Reason.MOVABLE, MOVED))
        for name, value in values.items()
    },
    "fewer classes": (BANDITRON, replace(BANDITRON, n_classes=2), "n_classes", Reason.FEWER),
    "fewer features": (BANDITRON, replace(BANDITRON, n_features=2), "n_features", Reason.FEWER),
    "renamed class": (
        CLASSES, replace(BANDITRON, class_names=("a", "b", "d")), "class_names", Reason.RENAMED,
    ),
    "class at the start": (
        CLASSES, replace(BANDITRON, n_classes=4, class_names=("d", "a", "b", "c")),
        "class_names", Reason.RENAMED,
    ),
    "names for classes": (BANDITRON, CLASSES, "class_names", Reason.FIXED),
    "named features": (
        BANDITRON, replace(BANDITRON, features=to_plain(build({"a": (Kind.CATEGORICAL, list("wxyz"))}, None))),
        "features", Reason.FIXED,
    ),
    "other learner": (BANDITRON, TaskSettings("soba-diag", K, D), "learner", Reason.UNTRAINED),
    "own decisions": (
        TaskSettings("ova-perceptron", K, D, floor=0.1), TaskSettings("ova-perceptron", K, D), "floor",
        Reason.OWN_DECISIONS,
    ),
    "own decisions, holdout": (
        TaskSettings("ova-perceptron", K, D, holdout=0.1), TaskSettings("ova-perceptron", K, D), "holdout",
        Reason.OWN_DECISIONS,
    ),
    "parameter of a challenger": (
        replace(BANDITRON, challengers={"soba-diag": {}}), replace(BANDITRON, challengers={"soba-diag": {"a": 2.0}}),
        "challenger soba-diag, a", Reason.SHAPES_MODEL,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "setting", "reason"), REFUSED.values(), ids=REFUSED)
def test_change_is_refused(before: TaskSettings, after: TaskSettings, setting: str, reason: Reason) -> None:
    with pytest.raises(ChangeError) as raised:
        check_change(before, after)
    assert (raised.value.setting, raised.value.reason) == (setting, reason)


@pytest.mark.parametrize("name", [name for name, stored in STORED.items() if stored.change is Change.REFUSED])
def test_setting_that_cannot_change_has_a_reason(name: str) -> None:
    assert STORED[name].reason or name in ("join", "parameters")  # their parts are stored under their own names


def test_model_is_kept_when_windows_limits_and_policies_change() -> None:
    join = JoinSettings(**{field.name: 1_000 for field in fields(JoinSettings)})
    after = replace(BANDITRON, join=join, on_expiry="negative")
    old = BANDITRON.make_learner()
    (first, *_) = trained(old)
    carry = Carry(BANDITRON, after, old)
    assert_same_state(carry.learner, old)
    kept = carry.decision(*first[:2])
    assert kept[:3] == first.decision[:3]
    np.testing.assert_array_equal(kept.scores, first.decision.scores)


@pytest.mark.parametrize("name", ["banditron", "ova-perceptron"])
def test_pending_decisions_teach_the_same_after_a_floor_is_added(name: str) -> None:
    before = TaskSettings(name, K, D)
    after = replace(before, floor=0.2, holdout=0.1)
    old = before.make_learner()
    waiting = trained(old)
    carry = Carry(before, after, old)
    settle(carry.learner, moved(carry, waiting))
    settle(old, waiting)
    assert_same_state(carry.learner, old)


def test_decisions_keep_their_propensities_when_the_floor_changes() -> None:
    before = TaskSettings("ova-perceptron", K, D, floor=0.5)
    after = replace(before, floor=0.1, holdout=0.2, holdout_policy="constant:1")
    old = before.make_learner()
    waiting = trained(old)
    carry = Carry(before, after, old)
    for one, other in zip(waiting, moved(carry, waiting), strict=True):
        assert one.decision[:3] == other.decision[:3]
        np.testing.assert_array_equal(one.decision.logged, other.decision.logged)


def test_floor_can_be_removed_if_the_learner_learns_from_all_decisions() -> None:
    before = TaskSettings("banditron", K, D, floor=0.5)
    old = before.make_learner()
    waiting = trained(old)
    carry = Carry(before, replace(before, floor=0.0), old)
    settle(carry.learner, moved(carry, waiting))
    settle(old, waiting)
    assert_same_state(carry.learner, old)


def alone(name: str, parameters: Mapping[str, Any], waiting: list[Waiting]) -> Learner:
    """Return a learner that reads each decision from a log when the bit arrives."""
    learner, untrained = create(name, K, D, **parameters), create(name, K, D, **parameters)
    for x, decision, label in waiting:
        own = untrained.as_played(x, untrained.predict(x, 0.5), decision.action, decision.propensity)
        learner.observe(x, own)
        learner.update(x, own, int(decision.action == label), 0.3)
    return learner


@pytest.mark.parametrize(
    ("challenger", "parameters"),
    [("igw-logistic", {}), ("late-ucb:m=4,drift=off", {"m": 4, "drift": "off"})],
)
def test_added_challenger_learns_from_pending_decisions_when_their_bits_arrive(
    challenger: str, parameters: dict[str, Any]
) -> None:
    after = replace(BANDITRON, challengers={challenger: parameters})
    old = BANDITRON.make_learner()
    waiting = trained(old)
    carry = Carry(BANDITRON, after, old)
    later = moved(carry, waiting)
    assert [one.decision[:3] for one in later] == [one.decision[:3] for one in waiting]
    settle(carry.learner, later)
    settle(old, waiting)
    champion, added = members_of(carry.learner)
    assert_same_state(champion, old)
    assert_same_state(added, alone(challenger.partition(":")[0], parameters, waiting))


def test_observing_an_earlier_decision_leaves_an_added_challenger_unchanged() -> None:
    after = replace(BANDITRON, challengers={"igw-logistic": {}})
    old = BANDITRON.make_learner()
    waiting = trained(old)
    carry = Carry(BANDITRON, after, old)
    assert isinstance(carry.learner, Challenge)
    before = copy.copy(carry.learner)
    for x, decision, _ in moved(carry, waiting):
        carry.learner.observe(x, decision)
        carry.learner.observe_early(x, decision)
        assert list(carry.learner.observed_parts(x, decision)) == []
    assert_same_state(carry.learner, before)


def test_added_challenger_has_no_part_in_the_correction_of_a_settled_decision() -> None:
    before = replace(BANDITRON, on_expiry="negative", late="correct")
    after = replace(before, challengers={"late-ucb:m=4,drift=off": {"m": 4, "drift": "off"}})
    old = before.make_learner()
    (x, decision, _) = make_decisions(old, 1)[0]
    old.update(x, decision, 0)
    carry = Carry(before, after, old)
    settled = carry.decision(x, decision, Stage.SETTLED)
    untrained = copy.copy(members_of(carry.learner)[1])
    carry.learner.retract(x, settled, 0, 1)
    old.retract(x, decision, 0, 1)
    champion, added = members_of(carry.learner)
    assert_same_state(champion, old)
    assert_same_state(added, untrained)


def test_added_challenger_corrects_what_it_learned_from_an_earlier_decision() -> None:
    before = replace(BANDITRON, on_expiry="negative", late="correct")
    after = replace(before, challengers={"late-ucb:m=4,drift=off": {"m": 4, "drift": "off"}})
    old = before.make_learner()
    (x, decision, _) = make_decisions(old, 1)[0]
    carry, other = Carry(before, after, old), Carry(before, after, old)
    pending = carry.decision(x, decision)
    carry.learner.update(x, pending, 0)
    carry.learner.retract(x, pending, 0, 1)
    other.learner.update(x, pending, 1)
    for name, value in carry.learner.state().items():
        np.testing.assert_allclose(np.asarray(value), np.asarray(other.learner.state()[name]), atol=1e-12)


def test_challengers_are_kept_by_name_when_one_is_added_before_them() -> None:
    old = PAIR.make_learner()
    waiting = trained(old)
    old.promote(1)
    waiting += make_decisions(old, 5, 70)
    carry = Carry(replace(PAIR, champion="soba-diag"), replace(TRIPLE, champion="soba-diag"), old)
    assert names_of(TRIPLE) == ("banditron", "igw-logistic", "soba-diag")
    assert carry.learner.decides == 2
    settle(carry.learner, moved(carry, waiting))
    settle(old, waiting)
    banditron, added, soba = members_of(carry.learner)
    assert_same_state(banditron, members_of(old)[0])
    assert_same_state(soba, members_of(old)[1])
    assert_same_state(added, alone("igw-logistic", {}, waiting))


def test_other_learners_are_kept_when_a_challenger_is_removed() -> None:
    old = TRIPLE.make_learner()
    waiting = trained(old)
    carry = Carry(TRIPLE, PAIR, old)
    settle(carry.learner, moved(carry, waiting))
    settle(old, waiting)
    first, _, third = members_of(old)
    for one, other in zip(members_of(carry.learner), (first, third), strict=True):
        assert_same_state(one, other)


@pytest.mark.parametrize("keeps_a_challenger", [False, True])
def test_promoted_learner_replaces_the_removed_champion(keeps_a_challenger: bool) -> None:
    after = replace(BANDITRON, learner="soba-diag", parameters={})
    if keeps_a_challenger:
        after = replace(after, challengers={"igw-logistic": {}})
    old = TRIPLE.make_learner()
    waiting = trained(old)
    old.promote(2)
    waiting += make_decisions(old, 5, 70)
    carry = Carry(replace(TRIPLE, champion="soba-diag"), after, old)
    assert carry.learner.deciding.name == "soba-diag"
    later = moved(carry, waiting)
    assert [one.decision[0::2][:2] for one in later] == [one.decision[0::2][:2] for one in waiting]
    settle(carry.learner, later)
    settle(old, waiting)
    by_name = dict(zip(names_of(TRIPLE), members_of(old), strict=True))
    for name, learner in zip(names_of(after), members_of(carry.learner), strict=True):
        assert_same_state(learner, by_name[name])


def test_champion_is_promoted_in_the_same_change() -> None:
    old = BANDITRON.make_learner()
    trained(old)
    assert carried(old, BANDITRON, replace(PAIR, champion="soba-diag")).decides == 1


def test_removing_the_deciding_learner_is_refused_unless_another_is_promoted() -> None:
    with pytest.raises(ChangeError) as raised:
        check_change(PAIR, TaskSettings("soba-diag", K, D))
    assert (raised.value.setting, raised.value.reason) == ("challengers", Reason.DECIDES)
    promoted = replace(PAIR, champion="soba-diag")
    old = promoted.make_learner()
    assert carried(old, promoted, replace(BANDITRON, champion="banditron")).name == "banditron"
    assert carried(old, promoted, TaskSettings("soba-diag", K, D)).name == "soba-diag"


def test_champion_must_be_one_of_the_learners() -> None:
    with pytest.raises(ParameterError):
        check_change(PAIR, replace(BANDITRON, champion="soba-diag"))


def test_pending_decision_teaches_nothing_if_only_later_learners_remain() -> None:
    old = BANDITRON.make_learner()
    waiting = trained(old)
    added = Carry(BANDITRON, PAIR, old)
    after = TaskSettings("soba-diag", K, D, champion="soba-diag")
    removed = Carry(PAIR, after, added.learner)
    for x, decision, _ in moved(added, waiting):
        last = removed.decision(x, decision)
        assert (last.action, last.propensity, last.can_teach) == (decision.action, decision.propensity, False)
        again = Carry(after, replace(after, n_classes=K_MORE), removed.learner).decision(x, last)
        assert (again.can_teach, again.scores.size) == (False, K_MORE)


@pytest.mark.parametrize(
    ("before", "after", "sources"),
    [
        (BANDITRON, PAIR, {"banditron": "banditron", "soba-diag": None}),
        (PAIR, TaskSettings("soba-diag", K, D), {"soba-diag": "soba-diag"}),
        (
            PAIR,
            TaskSettings("soba-diag", K, D, challengers={"banditron:gamma=0.3": {"gamma": 0.3}}),
            {"soba-diag": "soba-diag", "banditron:gamma=0.3": "banditron"},
        ),
        (
            TaskSettings("late-ucb", K, D, challengers={"late-ucb:m=32": {"m": 32}}),
            TaskSettings("late-ucb", K, D, parameters={"m": 32}),
            {"late-ucb": "late-ucb:m=32"},
        ),
        (BANDITRON, replace(BANDITRON, parameters={"gamma": 0.1}), {"banditron": "banditron"}),
    ],
)
def test_learners_are_matched_by_parameters_then_by_name(
    before: TaskSettings, after: TaskSettings, sources: dict[str, str | None]
) -> None:
    assert sources_of(before, after) == sources


@pytest.mark.parametrize("decides", [0, 1, 2])
def test_decision_is_composed_of_its_parts(decides: int) -> None:
    learner = TRIPLE.make_learner()
    trained(learner)
    learner.promote(decides)
    widths = [K, K, K]
    for x, u, _ in contexts(10):
        decision = learner.predict(x, u)
        number, parts = parts_of(decision, widths)
        assert (number, tuple(part.action for part in parts)) == learner.choices(decision)
        again = decision_of(decision.action, decision.propensity, K, number, parts)
        assert again[:3] == decision[:3]
        np.testing.assert_array_equal(again.scores, decision.scores)
        np.testing.assert_array_equal(again.logged, decision.logged)


def test_carried_decision_has_the_origin_of_an_added_challenger() -> None:
    old = BANDITRON.make_learner()
    x, decision, _ = make_decisions(old, 1)[0]
    carry = Carry(BANDITRON, PAIR, old)
    assert carry.decision(x, decision).logged[-1] == BEFORE
    assert carry.decision(x, decision, Stage.SETTLED).logged[-1] == SETTLED_BEFORE


def test_new_classes_were_not_eligible_for_pending_decisions() -> None:
    old = PAIR.make_learner()
    x, decision, _ = make_decisions(old, 1)[0]
    carry = Carry(PAIR, replace(PAIR, n_classes=K_MORE), old)
    later = carry.decision(x, decision)
    assert later.scores.tolist() == [*decision.scores, NOT_ELIGIBLE, NOT_ELIGIBLE]
    assert carry.learner.choices(later)[1] == old.choices(decision)[1]


@pytest.mark.parametrize(
    ("before", "more"),
    [
        (CLASSES, {"class_names": ("a", "b", "c", "d")}),
        (replace(BANDITRON, open_classes=True), {}),
        (replace(PAIR, model="shared"), {}),
    ],
)
def test_classes_are_added_to_a_fixed_set_to_open_classes_and_to_a_shared_model(
    before: TaskSettings, more: dict[str, Any]
) -> None:
    check_change(before, replace(before, n_classes=4, **more))


def test_change_depends_only_on_its_arguments() -> None:
    old = BANDITRON.make_learner()
    waiting = trained(old)
    one, other = Carry(BANDITRON, TRIPLE, old), Carry(BANDITRON, TRIPLE, old)
    settle(one.learner, moved(one, waiting))
    for first, second in zip(moved(one, waiting), moved(other, waiting), strict=True):
        assert first.decision[:3] == second.decision[:3]
        np.testing.assert_array_equal(first.decision.logged, second.decision.logged)


def test_unsound_learners_do_not_use_the_propensity() -> None:
    """A decision of the learner itself has two propensities with a floor, but only one without."""
    for name, cls in registered().items():
        if cls.from_logs is FromLogs.UNSOUND:
            learner = create(name, K, D)
            x, decision, label = make_decisions(learner, 1)[0]
            other = copy.copy(learner)
            settle(learner, [Waiting(x, decision, label)])
            settle(other, [Waiting(x, decision._replace(propensity=0.5), label)])
            assert_same_state(learner, other)


NAMED = {"price": (Kind.NUMERIC, None), "country": (Kind.CATEGORICAL, ["de", "at"])}


def named(**changes: Any) -> TaskSettings:
    plain = to_plain(build(NAMED, None)) | changes
    return TaskSettings("banditron", K, from_plain(plain).n_features, features=plain)


def test_features_are_appended_with_a_running_scale() -> None:
    before = replace(named(), scale="standard")
    added = [{"name": "country", "kind": "categorical", "values": ["fr"]}]
    after = replace(named(added=added), scale="standard")
    old = before.make_learner()
    for u in np.linspace(0.0, 0.9, 40):
        x = Features(np.array([0, 1], np.int32), np.array([100.0 * u, 1.0]))
        old.observe(x, old.predict(x, float(u)))
    new = carried(old, before, after)
    x = Features(np.array([0, 2], np.int32), np.array([30.0, 1.0]))
    np.testing.assert_array_equal(old.predict(x, 0.5).scores, new.predict(x, 0.5).scores)
    assert old.predict(x, 0.5).logged.tolist() == new.predict(x, 0.5).logged.tolist()


def test_category_in_the_middle_is_refused() -> None:
    names = {"country": NAMED["country"], "price": NAMED["price"]}
    longer = {"country": (Kind.CATEGORICAL, ["de", "at", "fr"]), "price": NAMED["price"]}
    before, after = (
        TaskSettings("banditron", K, encoder.n_features, features=to_plain(encoder))
        for encoder in (build(names, None), build(longer, None))
    )
    with pytest.raises(ChangeError) as raised:
        check_change(before, after)
    assert (raised.value.setting, raised.value.reason) == ("features", Reason.MOVED)
