"""Learners for coba's experiments: `pip install 'onebit[coba]'`.

>>> from coba import Environments, Experiment
>>> rows = Environments.from_linear_synthetic(500, n_actions=2, n_action_features=0, seed=1).binary()
>>> result = Experiment(rows, [Learner(), Learner("banditron", gamma=0.1)]).run(quiet=True)
>>> len(result.learners), len(result.interactions)
(2, 1000)
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from onebit.adapters.named import AUTO, Names, make_learner
from stream.learners import FromLogs, check_parameters, registered
from stream.learners import Learner as OnebitLearner
from stream.randomness.draws import Purpose, uniform
from stream.wire.records import Decision, Features


class Learner:
    """A Onebit learner for coba. All interactions must have the same actions. Rewards must be 0 or 1.

    coba calls `learn` with the decision that `predict` returned. For a logged action, `learn` uses the logged
    probability. A context is None, a number, a string, a sequence, or a mapping from names to values. String values
    are categories.

    Args:
        learner: A learner's name. The default depends on the numbers of classes and features.
        n_features: The maximum number of features. The default is the length of the first context.
        seed: The seed for all random draws.
        parameters: The learner's parameters.

    Raises:
        ParameterError: the learner or a parameter is unknown.
        ValueError: the learner needs the true class, which coba does not reveal.
    """

    def __init__(
        self, learner: str = AUTO, n_features: int | None = None, seed: int = 1, **parameters: float | int | str
    ) -> None:
        if learner != AUTO:
            check_parameters(learner, parameters)
            if registered()[learner].needs_label:
                raise ValueError(f"{learner} needs the true class, which coba does not reveal; choose another learner")
        self.params = {"family": "onebit", "learner": learner, "n_features": n_features, "seed": seed, **parameters}
        self._name, self._n_features, self._seed, self._parameters = learner, n_features, seed, parameters
        self._actions: list[Any] = []
        self._model: OnebitLearner | None = None
        self._decisions = self._updates = 0

    def score(self, context: Any, actions: Sequence[Any], action: Any) -> float:
        """Return the probability that the learner would play the action."""
        model, x = self._prepared(context, actions)
        return float(model.distribution(x)[self._actions.index(action)])

    def predict(self, context: Any, actions: Sequence[Any]) -> tuple[Any, float, dict[str, Decision]]:
        """Return an action, its probability, and the decision, which coba passes to `learn`."""
        model, x = self._prepared(context, actions)
        decision = model.predict(x, uniform(self._seed, Purpose.ACTION, str(self._decisions)))
        model.observe(x, decision)
        self._decisions += 1
        return actions[decision.action], decision.propensity, {"decision": decision}

    def learn(
        self, context: Any, action: Any, reward: float, probability: float, decision: Decision | None = None
    ) -> None:
        """Learn from the reward of an action. `probability` is the probability with which the action was played.

        Raises:
            ValueError: the reward is not 0 or 1, neither `predict` nor `score` has been called, or the action is from
                a log and the learner cannot learn from logs.
        """
        if reward not in (0, 1):
            raise ValueError(f"learn: the reward of action {action!r} is {reward}; expected 0 or 1")
        model, x = self._prepared(context, self._actions)
        if decision is None:
            if model.from_logs is FromLogs.UNSOUND:
                raise ValueError(f"{model.name} learns only from its own actions; choose another learner for logs")
            predicted = model.predict(x, uniform(self._seed, Purpose.ACTION, f"logged {self._updates}"))
            decision = model.as_played(x, predicted, self._actions.index(action), probability)
            model.observe(x, decision)
        v = uniform(self._seed, Purpose.UPDATE, str(self._updates)) if model.randomised_update else 0.0
        model.update(x, decision, int(reward), v)
        self._updates += 1

    def _prepared(self, context: Any, actions: Sequence[Any]) -> tuple[OnebitLearner, Features]:
        """Return the learner and the context's features. The first call creates the learner."""
        named = _named(context)
        if self._model is None:
            if len(actions) < 2:
                raise ValueError("the actions are not known yet; call predict or score before learn")
            n_features = self._n_features or max(len(named), 1)
            self._actions = list(actions)
            self._model = make_learner(self._name, len(actions), n_features, self._parameters)
            self._names = Names("feature", n_features)
        if list(actions) != self._actions:
            raise ValueError(
                f"all interactions must have the same actions; expected {self._actions}, got {list(actions)}"
            )
        return self._model, self._names.features(named)


def _named(context: Any) -> Mapping[Hashable, object]:
    """Return a context as a mapping from names to values. The items of a sequence are named by their positions."""
    if context is None:
        return {}
    if hasattr(context, "items"):  # coba's sparse rows are not instances of Mapping
        return dict(context.items())
    if isinstance(context, int | float | str):
        return {0: context}
    return dict(enumerate(context))
