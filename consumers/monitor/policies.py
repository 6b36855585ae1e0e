"""Policies evaluated by the monitor, and their weights for a live pipeline's decisions.

Three policies are always evaluated, based on the predictions alone. The user can name additional `onebit estimate`
policies, which are applied to one decision at a time. A policy that uses features requires the context, which a
prediction references by offset.

A decision with propensity 1 was not drawn at random and contains no information about other actions. It has a weight
only for the policy that made it.

A model must not be evaluated on decisions that it was trained on. A model exported from this pipeline is therefore
evaluated on later decisions only.
"""

from collections.abc import Mapping, Sequence
from math import nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from consumers.monitor.comparisons import Comparison, comparisons_of
from stream.estimating.live import target_weight
from stream.estimating.policies import BASELINE
from stream.estimating.rows import Chunk, Eligible
from stream.wire.codec import ActionReading, MalformedError, decode_context, step_of
from stream.wire.named_features import FeatureEncoder
from stream.wire.records import HOLDOUT, NOT_ELIGIBLE, NOTHING_LOGGED, Envelope, Features, Prediction, Record
from stream.wire.rewards import BITS, RewardRange

if TYPE_CHECKING:
    from stream.estimating.policies import Policy

ALWAYS = ("greedy", "uniform", "learner", BASELINE)
"""Policies that are always evaluated. `learner` is the learner's own policy in a replay of a log, and `baseline` the
service's own rule, if contexts name its class."""

POLICY_SETTINGS = (
    "n_classes",
    "n_features",
    "class_names",
    "features",
    "holdout",
    "challengers",
    "envelope",
    "actions",
)
"""The pipeline's settings on which the evaluated policies and the comparisons depend."""

Contexts = Mapping[tuple[int, int], Record]
"""Context records by partition and offset."""

NO_FEATURES = Features(np.zeros(0, np.int32), NOTHING_LOGGED)


class Known(NamedTuple):
    """Decisions that a model may have been trained on."""

    partition: int | None  # None for a shared model, which was trained on all partitions
    until: int  # the last step used for training, or the version of the shared model

    def has(self, record: Record, prediction: Prediction) -> bool:
        """Return whether the model may have been trained on the prediction in this record."""
        if self.partition is None:
            return prediction.model_version < self.until
        return record.partition == self.partition and (step_of(record) or 0) <= self.until


class Named(NamedTuple):
    """A policy given by the user."""

    key: str  # identifies the policy's stored sums; includes the model's digest
    policy: "Policy"
    known: Known | None = None


class Policies:
    """All evaluated policies, for K = n_classes and d = n_features."""

    def __init__(
        self,
        named: Sequence[Named] = (),
        n_classes: int = 0,
        n_features: int = 0,
        encoder: FeatureEncoder | None = None,
        holdout: float = 0.0,
        envelope: Envelope = "none",
        settings: Mapping[str, Any] = MappingProxyType({}),
        graded: RewardRange | None = None,
        reading: ActionReading | None = None,
    ) -> None:
        """Create the policies.

        Args:
            named: The policies given by the user.
            n_classes: K.
            n_features: d.
            encoder: The encoder for named features, or None.
            holdout: The share of the decisions in the holdout.
            envelope: The envelope of contexts from other programs; see `decode_context`.
            settings: The pipeline's settings for which the policies were created; see `POLICY_SETTINGS`.
            graded: The range of graded rewards; None for bits.
            reading: How contexts' actions are read, or None if the pipeline decides among classes.
        """
        self.settings = settings
        self._named = tuple(named)
        self._n_classes = n_classes
        self._reading = reading
        self._context_features = n_features if reading is None else reading.blocks.context
        self._encoder = encoder
        self._envelope = envelope
        self._holdout = holdout
        self.graded = graded  # the range of graded rewards; None for bits
        self.names = (*ALWAYS, *(one.policy.name for one in named))
        self.keys = (*ALWAYS, *(one.key for one in named))
        self.look_at_x = any(one.policy.looks_at_x for one in named)

    def comparisons(self) -> dict[str, Comparison]:
        """Return new, empty comparisons."""
        return comparisons_of(self._holdout, self.rewards, has_challengers=self.settings.get("challengers") != {})

    @property
    def rewards(self) -> RewardRange:
        """The range of the rewards."""
        return self.graded or BITS

    def weights(self, record: Record, prediction: Prediction, context: Record | None) -> tuple[float, ...]:
        """Return a decision's weight π(a|x)/μ(a|x) for each policy, in the order of the policies.

        A weight is NaN if it is unknown or undefined, or if the model may have been trained on the decision.

        Args:
            record: The prediction's record.
            prediction: The decision.
            context: Its context, or None if it no longer exists or no policy requires it.
        """
        always = _always(prediction)
        if not self._named or prediction.decision.scores.size != self._n_classes:
            return always + (nan,) * len(self._named)
        x = self._features(context, prediction.id) if self.look_at_x else None
        return always + tuple(self._weight(one, record, prediction, x) for one in self._named)

    def _weight(self, one: Named, record: Record, prediction: Prediction, x: Features | None) -> float:
        if (x is None and one.policy.looks_at_x) or (one.known is not None and one.known.has(record, prediction)):
            return nan
        if not (one.policy.is_logged or is_drawn(prediction.decision.propensity)):
            return nan
        row = _row(prediction, NO_FEATURES if x is None else x)
        if row.eligible is not None and not one.policy.supports_eligible:
            return nan
        p = one.policy.probabilities(row)
        return float(one.policy.weights(p, row.actions, row.propensities)[0])

    def _features(self, context: Record | None, event_id: str) -> Features | None:
        if context is None:
            return None
        try:
            found = decode_context(
                context, self._context_features, encoder=self._encoder, envelope=self._envelope, actions=self._reading
            )
        except MalformedError:
            return None
        return found.x if found.id == event_id else None


def is_drawn(propensity: float) -> bool:
    """Return whether a decision was drawn at random with a known probability."""
    return 0.0 < propensity < 1.0  # the comparison is False for NaN


def _always(prediction: Prediction) -> tuple[float, ...]:
    """Return the weights for the policies that are always evaluated."""
    action, greedy, propensity, scores = prediction.decision[:4]
    m = int(np.count_nonzero(scores != NOT_ELIGIBLE))
    if not is_drawn(propensity):
        is_baseline = propensity == 1.0 and prediction.arm == HOLDOUT and prediction.baseline == action
        return (*(nan,) * (len(ALWAYS) - 1), 1.0 if is_baseline else nan)
    return (
        float(action == greedy) / propensity,
        1.0 / (m * propensity),
        nan if prediction.target is None else target_weight(prediction),
        nan if prediction.baseline is None else float(action == prediction.baseline) / propensity,
    )


def _row(prediction: Prediction, x: Features) -> Chunk:
    """Return a decision as a log row, without its reward."""
    one: dict[str, Any] = {name: np.zeros(1, np.int64) for name in ("labels", "delays_ms")}
    one["baselines"] = np.array([-1 if prediction.baseline is None else prediction.baseline])
    among = np.flatnonzero(prediction.decision.scores != NOT_ELIGIBLE).astype(np.int32)
    is_limited = among.size < prediction.decision.scores.size
    return Chunk(
        ids=(prediction.id,),
        offsets=np.array([0, x.indices.size]),
        indices=x.indices,
        values=x.values,
        decided_at_ms=np.zeros(1, np.int64),
        actions=np.array([prediction.decision.action]),
        propensities=np.array([prediction.decision.propensity]),
        rewards=np.zeros(1),  # any value, so that the row counts as judged
        keys=np.zeros(1, np.uint64),
        eligible=Eligible(np.array([0, among.size]), among) if is_limited else None,
        **one,
    )
