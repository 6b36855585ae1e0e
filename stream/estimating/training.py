"""Trains a learner from logged decisions or from true classes.

A decision from a log is played as in `stream.task.play`, and updates the learner with the logged action, propensity and
reward. With true classes, the learner plays its own actions, and each bit follows from the class.

All bits arrive at once. The draws depend on the seed, the event id and the pass, so the same log gives the same model.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from math import isnan

from stream.estimating.policies import UNUSED_PROPENSITY
from stream.estimating.rows import Chunk, LogBatch, chunks, usable
from stream.learners import FromLogs, Learner
from stream.randomness.draws import Draws, Purpose
from stream.task.play import play_logged
from stream.wire.records import Decision, IndexArray, Logged
from stream.wire.rewards import BITS, RewardRange


class Skipped(StrEnum):
    """Reasons why a learner does not learn from a row. The values are names in messages."""

    NO_ACTION = "action-missing"
    NO_REWARD = "outcome-missing"
    NO_PROPENSITY = "propensity-missing"
    NO_LABEL = "label-missing"


class Trainer:
    """Trains one learner. `learned` and `skipped` count the rows of all passes."""

    def __init__(
        self,
        learner: Learner,
        seed: int,
        *,
        from_labels: bool,
        propensity_min: float = 0.0,
        classes: IndexArray | None = None,
        graded: RewardRange | None = None,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """Prepare to train a learner.

        Args:
            learner: the learner, which is updated in place.
            seed: the seed of all draws.
            from_labels: whether to learn from true classes instead of logged decisions.
            propensity_min: smaller logged propensities are raised to this value.
            classes: the eligible classes of rows that list none; None means all classes.
            graded: the range of graded rewards, which the learner learns as shares; None means bits.
            progress: called for each row with the number of rows so far.
        """
        self.learned = 0  # number of rows from which the learner has learned
        self.updates = 0  # number of updates that changed the model
        self.skipped: Counter[Skipped] = Counter()
        self._learner = learner
        self._from_labels = from_labels
        self._is_weighing = learner.from_logs is FromLogs.PROPENSITY
        self._propensity_min = propensity_min
        self._classes = classes
        self._graded = graded
        self._progress = progress
        self._action_draws, self._update_draws = Draws(seed, Purpose.ACTION), Draws(seed, Purpose.UPDATE)
        self._keys = Draws(seed, Purpose.ESTIMATE)

    def learn(self, batches: Iterable[LogBatch], epoch: int, limit: int | None = None) -> None:
        """Make a pass over the rows, or over as many as `limit`. The first pass is epoch 0."""
        left = limit
        for chunk in chunks(batches, self._keys, rewards=self._graded or BITS):
            for j, event_id in enumerate(chunk.ids[:left]):
                self._progress(self.learned + self.skipped.total())
                reason = self._learn(chunk, j, f"{event_id}~{epoch}" if epoch else event_id)
                if reason is None:
                    self.learned += 1
                else:
                    self.skipped[reason] += 1
            if left is not None and (left := left - len(chunk.ids)) <= 0:
                return

    def _learn(self, chunk: Chunk, j: int, event_id: str) -> Skipped | None:
        """Learn from a row, or return the reason why the learner does not."""
        learner, x, label = self._learner, chunk.features(j), int(chunk.labels[j])
        if self._from_labels:
            if label < 0:
                return Skipped.NO_LABEL
            decision = learner.predict(x, self._action_draws(event_id), self._among(chunk, j))
            learner.observe(x, decision)
            reward: float = int(decision.action == label)
        else:
            if chunk.actions[j] < 0:
                return Skipped.NO_ACTION
            if self._is_weighing and not usable(chunk.propensities[j : j + 1])[0]:
                return Skipped.NO_PROPENSITY
            decision = self._logged(chunk, j)
            learner.observe(x, decision)
            share = float(chunk.rewards[j])
            if isnan(share):
                return Skipped.NO_REWARD
            reward = int(share) if self._graded is None else share
        v = self._update_draws(event_id) if learner.randomised_update else 0.0
        self.updates += learner.update(x, decision, reward, v, label if self._from_labels else None)
        return None

    def _logged(self, chunk: Chunk, j: int) -> Decision:
        """Return the logged decision as if the learner had made it."""
        propensity = float(chunk.propensities[j])
        if not 0.0 < propensity <= 1.0:
            propensity = UNUSED_PROPENSITY
        x = chunk.features(j)
        own = self._learner.predict(x, 0.0, self._among(chunk, j))
        logged = Logged(int(chunk.actions[j]), max(propensity, self._propensity_min))
        return play_logged(self._learner, x, own, logged)

    def _among(self, chunk: Chunk, j: int) -> IndexArray | None:
        among = chunk.among(j)
        return self._classes if among is None else among
