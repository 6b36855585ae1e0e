"""Each policy's action probabilities for a log's rows. Before each row, learners apply all feedback that is due."""

import numpy as np
import pytest

from producers.datasets.log import MISSING
from stream.estimating.policies import EstimateError, Model, Policy, Trained, Training, evaluable_learners, parse_policy
from stream.estimating.rows import Chunk, Eligible, LogBatch, chunks
from stream.learners import ParameterError, create, registered
from stream.randomness.delays import parse_delay
from stream.randomness.draws import Draws, Purpose
from stream.wire.records import FloatArray
from tests.estimating.logs import N_CLASSES, N_FEATURES, MemoryLog, a_log

NAMES = tuple("abcd")


def parsed(spec: str, training: Training | None = None) -> Policy:
    return parse_policy(spec, NAMES, N_FEATURES, training or Training())


def all_chunks(rows: LogBatch, rows_max: int = 1_024) -> list[Chunk]:
    return list(chunks(MemoryLog(rows).batches(), Draws(0, Purpose.ESTIMATE), rows_max))


def probabilities(policy: Policy, rows: LogBatch, rows_max: int = 1_024) -> FloatArray:
    return np.concatenate([policy.probabilities(chunk) for chunk in all_chunks(rows, rows_max)])


def naive_probabilities(rows: LogBatch, delays_ms: list[int]) -> FloatArray:
    """The action probabilities for late-ucb. For each row, a new learner first replays all earlier rows."""
    chunk = all_chunks(rows)[0]
    n = len(chunk.ids)
    p = np.zeros((n, N_CLASSES))
    for t in range(n):
        learner = create("late-ucb", N_CLASSES, N_FEATURES)
        now_ms = chunk.decided_at_ms[t]
        events = [(chunk.decided_at_ms[j], 0, j) for j in range(t)]
        due = [(chunk.decided_at_ms[j] + delays_ms[j], j) for j in range(t)]
        at_once = {j for j in range(t) if delays_ms[j] == 0}
        events += [(time, -1, j) for time, j in due if time < now_ms and j not in at_once]
        decisions = {}
        # If feedback is due at the exact time of a decision, the learner applies the feedback after the decision.
        for _, kind, j in sorted(events, key=lambda one: (one[0] + (0.5 if one[1] else 0.0), one[2])):
            x = chunk.features(j)
            if kind == 0:
                own = learner.predict(x, 0.0)
                decisions[j] = learner.as_played(x, own, int(chunk.actions[j]), float(chunk.propensities[j]))
                learner.observe(x, decisions[j])
            if kind == -1 or j in at_once:
                learner.update(x, decisions[j], int(chunk.rewards[j]))
        p[t] = learner.distribution(chunk.features(t))
    return p


def with_delays(rows: LogBatch, delays_ms: list[int]) -> LogBatch:
    return rows._replace(delays_ms=np.array(delays_ms, np.int64))


DELAYS_MS = {
    "no delay": [0] * 40,
    "late": [2_500] * 40,
    "due at a later decision": [2_000] * 40,
    "out of order": [int(delay) for delay in np.random.default_rng(0).integers(0, 12_000, 40)],
}


@pytest.mark.parametrize("delays_ms", DELAYS_MS.values(), ids=DELAYS_MS)
def test_learner_applies_all_feedback_that_is_due_before_a_decision(delays_ms: list[int]) -> None:
    rows = with_delays(a_log(40), delays_ms)
    expected = naive_probabilities(rows, delays_ms)
    np.testing.assert_array_equal(probabilities(parsed("late-ucb"), rows), expected)
    np.testing.assert_array_equal(probabilities(parsed("late-ucb"), rows, rows_max=7), expected)


def test_missing_delay_is_drawn_from_the_delay_model() -> None:
    rows = a_log(40)
    model = parse_delay("exponential:5s")
    draws = Draws(3, Purpose.DELAY)
    drawn = [model.draw_ms(-1, draws(one)) for one in rows.ids]
    ours = probabilities(parsed("late-ucb", Training(seed=3, delay=model)), rows)
    np.testing.assert_array_equal(ours, naive_probabilities(rows, drawn))
    logged = probabilities(parsed("late-ucb", Training(seed=3, delay=model)), with_delays(rows, [0] * 40))
    np.testing.assert_array_equal(logged, naive_probabilities(rows, [0] * 40))


def test_learner_learns_nothing_from_lost_feedback() -> None:
    rows = a_log(60)
    lost = probabilities(parsed("late-ucb"), rows._replace(rewards=np.full(60, np.nan)))
    assert (lost == 0.0).all()  # rows without an outcome have no probabilities
    known = rows.rewards.copy()
    known[30:] = 1 - known[30:]
    first, second = (probabilities(parsed("late-ucb"), rows._replace(rewards=bits)) for bits in (rows.rewards, known))
    np.testing.assert_array_equal(first[:31], second[:31])
    assert not np.array_equal(first[31:], second[31:])


@pytest.mark.parametrize(("name", "learns"), [("banditron", False), ("late-ucb", True)])
def test_only_unweighted_learners_learn_from_a_row_without_a_propensity(name: str, learns: bool) -> None:
    rows = a_log(50)
    unknown = rows.propensities.copy()
    unknown[20] = np.nan
    flipped = rows.rewards.copy()
    flipped[20] = 1 - flipped[20]
    found = [
        probabilities(parsed(name), rows._replace(propensities=unknown, rewards=bits))
        for bits in (rows.rewards, flipped)
    ]
    assert np.array_equal(found[0], found[1]) != learns
    assert found[0][20].sum() == pytest.approx(1.0)


def test_delays_without_times_are_rejected() -> None:
    rows = with_delays(a_log(5), [1_000] * 5)._replace(decided_at_ms=np.full(5, MISSING))
    with pytest.raises(EstimateError):
        probabilities(parsed("late-ucb"), rows)


def test_learner_without_delays_requires_no_times() -> None:
    rows = a_log(30)
    timeless = rows._replace(decided_at_ms=np.full(30, MISSING))
    np.testing.assert_array_equal(probabilities(parsed("late-ucb"), timeless), probabilities(parsed("late-ucb"), rows))


@pytest.mark.parametrize("name", evaluable_learners())
def test_every_learner_that_supports_logs_learns_from_a_log(name: str) -> None:
    rows = a_log(60)
    p = probabilities(parsed(name), with_delays(rows, [1_500] * 60))
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)
    assert parsed(name).changes


@pytest.mark.parametrize("name", sorted(set(registered()) - set(evaluable_learners())))
def test_error_names_a_learner_that_cannot_be_evaluated_on_a_log(name: str) -> None:
    with pytest.raises(EstimateError) as raised:
        parsed(name)
    assert name in str(raised.value)


def test_right_answer_does_not_update_other_classes_if_several_classes_can_be_right() -> None:
    rows = a_log(80)
    several = Training(reward="any")
    np.testing.assert_array_equal(
        probabilities(parsed("igw-logistic", several), rows), probabilities(parsed("igw-logistic:others=0"), rows)
    )
    with pytest.raises(EstimateError):
        parsed("banditron", several)
    with pytest.raises(ParameterError):
        parsed("igw-logistic:others=0.3", several)


def test_fixed_policies_have_their_documented_probabilities() -> None:
    rows = a_log(10)
    assert (probabilities(parsed("uniform"), rows) == 0.25).all()
    assert (probabilities(parsed("constant:c"), rows) == [0.0, 0.0, 1.0, 0.0]).all()
    assert probabilities(parsed("logged"), rows).argmax(axis=1).tolist() == rows.actions.tolist()
    policies = map(parsed, ("uniform", "constant:c", "logged", "late-ucb"))
    assert [policy.weight_max(0.05, N_CLASSES) for policy in policies] == [5, 20, 1, 20]


def test_policies_play_only_eligible_classes() -> None:
    rows = a_log(60)
    sets: list[list[int]] = [[int(action), 3] if action < 3 else [] for action in rows.actions]
    rows = rows._replace(eligible=Eligible.of_lists(sets))
    among = np.array([[not one or k in one for k in range(N_CLASSES)] for one in sets])
    uniform = among / among.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(probabilities(parsed("uniform"), rows), uniform)
    constant = np.where(among[:, [1]], np.eye(N_CLASSES)[1], uniform)
    np.testing.assert_array_equal(probabilities(parsed("constant:b"), rows), constant)
    fixed = Model("model:m.npz", create("igw-logistic", N_CLASSES, N_FEATURES))
    for policy in (*map(parsed, ("igw-logistic", "late-ucb", "banditron")), fixed):
        p = probabilities(policy, rows)
        assert (p[~among] == 0.0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)


def test_model_policy_does_not_learn() -> None:
    learner = create("igw-logistic", N_CLASSES, N_FEATURES)
    before = learner.state()
    p = probabilities(Model("model:m.npz", learner), a_log(20))
    assert p[0].tolist() == learner.distribution(all_chunks(a_log(20))[0].features(0)).tolist()
    after = learner.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_parameters_are_passed_to_the_learner() -> None:
    rows = a_log(80)
    played = {spec: probabilities(parsed(spec), rows) for spec in ("igw-logistic", "igw-logistic:step=1,scale=10")}
    assert not np.array_equal(played["igw-logistic"], played["igw-logistic:step=1,scale=10"])
    by_hand = Trained("same", create("igw-logistic", N_CLASSES, N_FEATURES, step=1, scale=10), Training())
    np.testing.assert_array_equal(probabilities(by_hand, rows), played["igw-logistic:step=1,scale=10"])


@pytest.mark.parametrize("spec", ["constant:e", "greedy", "late-ucb:eta"])
def test_error_names_an_unknown_policy(spec: str) -> None:
    with pytest.raises(EstimateError) as raised:
        parsed(spec)
    assert f"policy {spec}: " in str(raised.value)


def test_error_names_an_unknown_parameter() -> None:
    with pytest.raises(ParameterError):
        parsed("late-ucb:step=1")
