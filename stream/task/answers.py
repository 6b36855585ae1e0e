"""The reward of a decision with several feedback records.

With the rule `max`, the highest reward counts; `sum` adds the rewards of the decision's parts, each of them once. Both
results are independent of the order in which the records arrive, and of duplicates.
"""

from collections.abc import Mapping
from math import fsum
from typing import NamedTuple

from stream.task.join_table import Input
from stream.wire.records import Feedback, Record
from stream.wire.rewards import BITS, FeedbackRule, RewardRange

PARTS_MAX = 64
"""Limit on the parts of a decision's reward. A task stores the parts of all decisions that are waiting for others."""


class Answer(NamedTuple):
    """A pending decision's feedback so far."""

    feedback: Feedback  # the last feedback that changed the reward, with the combined reward
    record: Record  # its record, without the content
    parts: Mapping[str, float] = {}  # the rewards of a sum's parts, by id


class Combination(NamedTuple):
    """Combines the feedback for a decision according to a rule."""

    rule: FeedbackRule = "first"
    rewards: RewardRange = BITS
    parts_max: int = PARTS_MAX

    def add(self, answer: Answer | None, feedback: Feedback, record: Record) -> tuple[Answer, Input]:
        """Return a decision's answer with new feedback, and the input that the feedback represents.

        Args:
            answer: the feedback so far, or None.
            feedback: the new feedback.
            record: its record.
        """
        parts: Mapping[str, float] = {} if answer is None else answer.parts
        if self.rule == "sum":
            part = feedback.part or ""
            is_new = part not in parts
            if answer is not None and is_new and len(parts) >= self.parts_max:
                return answer, Input.EXCESS
            parts = {**parts, part: feedback.reward}
            feedback = feedback._replace(reward=self._total(parts))
            is_last = feedback.is_final
        else:
            is_new = answer is None or feedback.reward > answer.feedback.reward
            is_last = self.rule == "first" or feedback.is_final or feedback.reward >= self.rewards.high
        after = Answer(feedback, record._replace(key=None, value=None, headers=()), parts)
        if is_last:
            return (after if is_new or answer is None else answer), Input.FEEDBACK
        return after, Input.PARTIAL if is_new else Input.REPEATED

    def conflicts(self, answer: Answer | None, feedback: Feedback) -> bool:
        """Return whether feedback has a different reward than the earlier feedback with the same part of a sum."""
        parts = {} if answer is None else answer.parts
        return parts.get(feedback.part or "", feedback.reward) != feedback.reward

    def would_change(self, feedback: Feedback, reward: float | None) -> bool:
        """Return whether feedback for a settled decision with this reward would have changed the reward.

        The parts of a settled decision's sum are unknown, so feedback with any part could have changed the sum.
        """
        return self.rule == "sum" or reward is None or feedback.reward > reward

    def _total(self, parts: Mapping[str, float]) -> float:
        """Return the sum of all parts, limited to the range. The sum is exact, so it does not depend on the order."""
        low, high = self.rewards
        return min(max(fsum(parts.values()), low), high)
