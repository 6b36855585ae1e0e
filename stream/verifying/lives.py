"""The life of one event id, judged: was each of its records dealt with as the join's rules say.

Nothing here is shared with the join: what it counts and what it did is seen in the topics, and judged by times and
offsets. Every context has a prediction or is a duplicate; every example settles the next decision of its id; every
feedback settled a decision, or was a duplicate, late, or an orphan.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from stream.randomness.draws import Purpose, uniform
from stream.verifying.evidence import (
    CONTEXTS,
    FEEDBACK,
    ContextSeen,
    Evidence,
    ExampleSeen,
    FeedbackSeen,
    Life,
    Place,
    PredictionSeen,
)
from stream.verifying.settings_by_step import SettingsByStep
from stream.wire.dead_letters import DEAD_LETTER_MISMATCHED, DEAD_LETTER_ORPHAN
from stream.wire.events import Logged, Outcome


class _Expiry(NamedTuple):
    """When a decision expires unless feedback comes or room is needed."""

    place: Place  # what was applied up to here came before
    stream_ms: int
    deadline_ms: int

    @property
    def settled(self) -> tuple[int, int]:
        """The step, and the stream time, of the example that tells so."""
        return self.place.step, self.stream_ms


class _Settled(NamedTuple):
    """An example, and when its decision would have expired; None: not yet."""

    example: ExampleSeen
    prediction: PredictionSeen | None  # None: it is missing
    expiry: _Expiry | None

    @property
    def when(self) -> tuple[int, int]:
        """Step and stream time of the settlement."""
        return self.example.step, self.example.settled_at_ms

    @property
    def is_too_soon(self) -> bool:
        """Whether the settlement was before the expiry."""
        return self.expiry is None or self.when < self.expiry.settled


class _Orphan(NamedTuple):
    """Feedback that waited for its context."""

    decisions: int  # of its id, before it came
    stream_ms: int  # when it came
    reward: int
    ended_in: int | None  # the step that wrote its dead letter


@dataclass(slots=True)
class Judge:
    """Judges one life after the other, and keeps the counts of all."""

    evidence: Evidence
    settings: SettingsByStep
    last_step: int
    fault: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)

    def judge(self, life: Life) -> None:
        """Take in one life."""
        aside = {c.offset for c in life.contexts if c.logged is not None and self._is_aside(life, c, c.logged)}
        decided_as = self._contexts(life)
        settled = self._examples(life, aside)
        self._feedback(life, decided_as, settled)
        self._overdue(life)

    def _contexts(self, life: Life) -> list[Place]:
        """Judge the contexts, and return when each decision was made."""
        answers: dict[int, PredictionSeen] = {}
        for prediction in life.predictions:
            if prediction.context_offset in answers:
                self.fault(
                    f"context offset {prediction.context_offset} has two predictions; the second is at offset "
                    f"{prediction.offset}"
                )
            answers[prediction.context_offset] = prediction
        decided_as: list[Place] = []
        for context in life.contexts:
            self.counts["contexts"] += 1
            place = f"context at offset {context.offset}"
            if context.dead_letter is not None:
                self.fault(f"{place} has a dead letter, and can be read")
            if (answer := answers.pop(context.offset, None)) is not None:
                self._check_played(context, answer)
                decided_as.append(context.place)
            elif decided_as:
                self.counts["context_duplicates"] += 1
            elif other := self.evidence.predicted_for(context.offset):
                self.fault(f"{place} is {life.id!r}; its prediction is of {other!r}")
            else:
                self.fault(f"{place}, {life.id!r}, has no prediction")
        self.counts["decided"] += len(decided_as)
        for offset, prediction in answers.items():
            self.fault(
                f"prediction at offset {prediction.offset} answers context offset {offset}, which is no "
                f"applied context of {life.id!r}"
            )
        return decided_as

    def _check_played(self, context: ContextSeen, prediction: PredictionSeen) -> None:
        """Whether a decision is the log's where that is to be played, and counts a propensity below the least."""
        place, logged, settings = f"prediction at offset {prediction.offset}", context.logged, self.settings.latest
        if logged is None:
            if prediction.target is not None:
                self.fault(f"{place} has a target, and no decision of a log was looked at")
            return
        own = (prediction.action, prediction.propensity)
        if prediction.target is None:
            self.fault(f"{place} has no target, and its context has a decision of a log")
        elif settings.play == "logged" and own != logged:
            self.fault(f"{place}: action {own[0]} with propensity {own[1]}; the log has {logged[0]} with {logged[1]}")
        elif settings.play == "match" and own != prediction.target:
            self.fault(f"{place}: action {own[0]} with propensity {own[1]} is not its target")
        least = settings.propensity_min if settings.play == "match" else settings.learned_propensity_min
        self.counts["propensities_floored"] += logged.propensity is not None and logged.propensity < least

    def _is_aside(self, life: Life, context: ContextSeen, logged: Logged) -> bool:
        """Whether the log cannot tell the bit of the decision that was made for a context."""
        settings = self.settings.latest
        actions = [one.action for one in life.predictions if one.context_offset == context.offset]
        if settings.play != "match" or not actions:
            return False
        least, propensity = settings.propensity_min, logged.propensity or 0.0
        is_taken = least == 0.0 or uniform(settings.seed, Purpose.LOG, life.id) * propensity < least
        return actions[0] != logged.action or not is_taken

    def _examples(self, life: Life, aside: set[int]) -> list[_Settled]:
        """Judge the examples, each beside the decision that it settles.

        Args:
            life: theirs.
            aside: the offsets of the contexts whose decisions do not count.
        """
        settled = []
        for number, example in enumerate(life.examples):
            place = f"example at offset {example.offset}"
            action, propensity, prediction = example.action, example.propensity, None
            if number >= len(life.predictions):
                self.fault(f"{place} settles {life.id!r} once more than it has predictions, {len(life.predictions)}")
            else:
                prediction = life.predictions[number]
                action, propensity = prediction.action, prediction.propensity
            is_aside = prediction is not None and prediction.context_offset in aside
            if (example.action, example.propensity) != (action, propensity):
                self.fault(
                    f"{place}: action {example.action} with propensity {example.propensity} is not that of the "
                    f"prediction, {action} with {propensity}"
                )
            if (example.outcome is Outcome.UNMATCHED) is not is_aside:
                what = "cannot" if is_aside else "can"
                self.fault(f"{place}: {life.id!r} is {example.outcome}, and the log {what} tell its bit")
            first_ms, last_ms = self.evidence.stream_ms(example.step - 1), self.evidence.stream_ms(example.step)
            if not first_ms <= example.settled_at_ms <= last_ms:
                self.fault(
                    f"{place}: settled at {example.settled_at_ms} ms in step {example.step}, whose stream time is from "
                    f"{first_ms} to {last_ms} ms"
                )
            settled.append(_Settled(example, prediction, self._expiry(prediction)))
            if example.outcome is Outcome.EXPIRED:
                self._expired(settled[-1], place)
            elif example.outcome is Outcome.UNMATCHED:
                self._unmatched(example, place)
            else:
                self.counts["matched"] += 1
        return settled

    def _expiry(self, prediction: PredictionSeen | None) -> _Expiry | None:
        """When a decision expires: as soon as stream time passes its deadline, or at once when settings change."""
        if prediction is None or prediction.dated is None:
            return None
        evidence, spans, dated = self.evidence, self.settings.spans, prediction.dated
        for number, (first_step, settings) in enumerate(spans):
            deadline_ms = dated.ms + settings.join.window_ms
            begun_ms = evidence.stream_ms(first_step - 1)
            is_before = prediction.step < first_step and dated.offset < evidence.feedback_end(first_step - 1)
            if is_before and begun_ms > deadline_ms:
                return _Expiry(Place(first_step, -1, CONTEXTS, -1), begun_ms, deadline_ms)
            known_ms = max(dated.stream_ms, evidence.stream_ms(prediction.step - 1))
            found = evidence.advance_after(max(deadline_ms, known_ms))
            if found is not None:
                stream_ms, offset = found
                step = evidence.step_of(FEEDBACK, offset)
                if number + 1 == len(spans) or step < spans[number + 1].first_step:
                    return _Expiry(Place(step, stream_ms, FEEDBACK, offset - 1), stream_ms, deadline_ms)
        return None

    def _expired(self, settled: _Settled, place: str) -> None:
        self.counts["expired"] += 1
        example, prediction, expiry = settled
        is_late = expiry is not None and settled.when > expiry.settled and not _is_early(prediction)
        if is_late or (settled.is_too_soon and not self._makes_room(settled)):
            due = "it is not due yet" if expiry is None else f"its deadline is {expiry.deadline_ms} ms, passed at "
            due += "" if expiry is None else f"{expiry.stream_ms} ms in step {expiry.place.step}"
            self.fault(f"{place}: expired at {example.settled_at_ms} ms in step {example.step}, and {due}")
        assumed = 0 if self.settings.at(example.step).on_expiry == "negative" else None
        if (example.reward, example.delay_ms, example.feedback_offset) != (assumed, None, None):
            self.fault(f"{place}: expired with reward {example.reward}; expected {assumed} and no feedback")

    def _makes_room(self, settled: _Settled) -> bool:
        """Whether a decision may have expired before its time, because too many were pending.

        That is when those made up to its step, and not settled before it, are more than may be. Which of the step's
        were made before it, the topics do not say.
        """
        step, limits = settled.example.step, self.settings.at(settled.example.step).join
        pending = self.evidence.predictions_up_to(step) - settled.example.number + 1
        return settled.is_too_soon and pending > limits.pending_max

    def _unmatched(self, example: ExampleSeen, place: str) -> None:
        self.counts["unmatched"] += 1
        if (example.reward, example.delay_ms) != (None, None):
            self.fault(f"{place}: unmatched with reward {example.reward}; expected none")

    def _feedback(self, life: Life, decided_as: list[Place], settled: list[_Settled]) -> None:
        settled_by: dict[int, tuple[int, _Settled]] = {}  # by feedback offset, with the number of the decision
        for number, one in enumerate(settled):
            offset = one.example.feedback_offset
            if one.example.outcome is Outcome.MATCHED or offset is not None:
                if offset is None or offset in settled_by:
                    example_place = f"example at offset {one.example.offset}"
                    self.fault(f"{example_place}: feedback offset {offset} missing or used twice")
                else:
                    settled_by[offset] = number, one
        latest: _Orphan | None = None  # the latest feedback of this id that waited for its context
        for feedback in life.feedback:
            self.counts["feedback"] += 1
            decisions = bisect_right(decided_as, feedback.place)  # before this feedback
            waited = _Orphan(decisions, feedback.stream_ms, feedback.reward, feedback.dead_in)
            if feedback.dead_letter == DEAD_LETTER_ORPHAN:
                self.counts["orphans_dropped"] += 1
                if decisions and not (
                    len(settled) >= decisions and self._is_forgotten(settled[decisions - 1], feedback)
                ):
                    self.fault(
                        f"feedback at offset {feedback.offset} was dropped as an orphan; {life.id!r} was decided"
                    )
                latest = waited
            elif feedback.dead_letter == DEAD_LETTER_MISMATCHED:
                self.counts["mismatched"] += 1
                if self._was_refused_as_orphan(life, feedback, decisions, settled):
                    latest = waited
            elif feedback.offset in settled_by:
                number, one = settled_by.pop(feedback.offset)
                if one.example.outcome is Outcome.UNMATCHED:
                    self._check_passed(one.example, feedback, has_waited=number == decisions)
                else:
                    self._check_example(one, feedback, has_waited=number == decisions)
                if number == decisions:
                    latest = waited
            elif self._is_orphan(feedback, decisions, settled, latest):
                latest = waited
            if feedback.dead_letter not in (None, DEAD_LETTER_ORPHAN, DEAD_LETTER_MISMATCHED):
                self.fault(f"feedback at offset {feedback.offset} has a dead letter, and can be read")
        for offset, (_, one) in settled_by.items():
            self._check_example(one, self.evidence.feedback_at(offset), has_waited=True)

    def _check_passed(self, example: ExampleSeen, feedback: FeedbackSeen, *, has_waited: bool) -> None:
        """Count feedback that waited for a decision of which the log cannot tell the bit."""
        self.counts["feedback_unmatched"] += 1
        if not has_waited:
            self.fault(
                f"example at offset {example.offset}: {example.id!r} is unmatched, and feedback offset "
                f"{feedback.offset}, which it names, did not wait for it"
            )

    def _was_refused_as_orphan(
        self, life: Life, feedback: FeedbackSeen, decisions: int, settled: list[_Settled]
    ) -> bool:
        """Whether feedback was refused when its context came; it must name another action than the decided one."""
        actions = [prediction.action for prediction in life.predictions]
        was_orphan = (
            decisions == 0
            or (feedback.dead_in or 0) > feedback.place.step
            or decisions > len(actions)
            or feedback.action == actions[decisions - 1]
            or (len(settled) >= decisions and self._is_forgotten(settled[decisions - 1], feedback))
        )
        index = decisions if was_orphan else decisions - 1
        decided = actions[index] if index < len(actions) else None
        if feedback.action is None or decided is None or feedback.action == decided:
            self.fault(
                f"feedback at offset {feedback.offset} was refused as of another action, {feedback.action}; decided "
                f"for {life.id!r} was {'nothing' if decided is None else decided}"
            )
        return was_orphan

    def _check_example(self, settled: _Settled, feedback: FeedbackSeen | None, *, has_waited: bool) -> None:
        """Whether an example says what the feedback said that it names, and when it came."""
        example, prediction, expiry = settled
        place = f"example at offset {example.offset}"
        if feedback is None:
            self.fault(
                f"{place}: {example.id!r} was matched by offset {example.feedback_offset}, which is no applied feedback"
            )
            return
        dated = None if prediction is None else prediction.dated
        is_dated = dated is not None and dated.offset < feedback.offset
        expected = (feedback.id, feedback.reward, max(0, feedback.append_ms - dated.ms) if dated and is_dated else 0)
        if (example.id, example.reward, example.delay_ms) != expected:
            self.fault(
                f"{place}: {example.id!r} with reward {example.reward} after {example.delay_ms} ms; its feedback at "
                f"offset {feedback.offset} is of {expected[0]!r} with {expected[1]} after {expected[2]} ms"
            )
        elif not has_waited and settled.when != (feedback.place.step, feedback.stream_ms):
            self.fault(
                f"{place}: settled at {example.settled_at_ms} ms in step {example.step}; its feedback at offset "
                f"{feedback.offset} was applied at {feedback.stream_ms} ms in step {feedback.place.step}"
            )
        elif expiry is not None and feedback.place > expiry.place and not _is_early(prediction):
            self.fault(
                f"{place}: matched by feedback at offset {feedback.offset}; its deadline, {expiry.deadline_ms} ms, had "
                f"passed at {expiry.stream_ms} ms"
            )
        if feedback.action not in (None, example.action):
            self.fault(
                f"{place}: {example.id!r} with action {example.action}; its feedback at offset {feedback.offset} is of "
                f"action {feedback.action}"
            )

    def _is_forgotten(self, settled: _Settled, feedback: FeedbackSeen) -> bool:
        """Whether a settled decision was no longer remembered when a feedback came: for its age, or to make room."""
        example = settled.example
        place = feedback.place
        if self.settings.retain_passed(example.settled_at_ms, place.step, feedback.stream_ms):
            return True
        return any(
            self._made_room(example.number + limit, next_step, place)
            for limit, next_step in self.settings.retained_limits(place.step)
        )

    def _made_room(self, for_number: int, next_step: int | None, place: Place) -> bool:
        """Whether an id was forgotten for a later settlement, before another place and before the limit changed.

        Args:
            for_number: the settlement's, by the limit.
            next_step: the first step under another limit; None: there is none.
            place: where it is asked for.
        """
        if for_number > self.evidence.examples:
            return False
        settled_at = self._settlement_place(for_number)
        return settled_at < place and (next_step is None or settled_at.step < next_step)

    def _settlement_place(self, number: int) -> Place:
        """When the decision of an example, given by its number, was settled.

        One with feedback was, when the later of its two records was applied; an unmatched one, when its context was.
        One that expired was, when time had passed; or, before its time, when a decision was made that needed its room,
        or when the limits had changed.
        """
        step, outcome, settled_at_ms, prediction, context, feedback = self.evidence.settlement(number)
        if feedback is not None:
            return feedback if context is None else max(feedback, context)
        if outcome is Outcome.UNMATCHED and context is not None:
            return context
        expiry = self._expiry(prediction)
        if expiry is not None and expiry.settled == (step, settled_at_ms):
            return expiry.place
        made_room_for = self.evidence.decision_place(number + self.settings.at(step).join.pending_max)
        if made_room_for is None or made_room_for.step != step:
            return Place(step, -1, CONTEXTS, -1)
        return made_room_for

    def _is_orphan(
        self, feedback: FeedbackSeen, decisions: int, settled: list[_Settled], latest: _Orphan | None
    ) -> bool:
        """Count feedback that settled nothing and was not dropped; whether it still waits for its context."""
        first_bit: int | None = None
        if latest and latest.decisions == decisions and not self._was_dropped(latest, feedback):
            first_bit = latest.reward
        elif decisions > len(settled):
            self.fault(f"feedback at offset {feedback.offset} did not settle {feedback.id!r}, which is pending")
        elif decisions:
            example = settled[decisions - 1].example
            if example.feedback_offset is not None and example.feedback_offset > feedback.offset:
                self.fault(
                    f"feedback at offset {feedback.offset} did not settle {feedback.id!r}; offset "
                    f"{example.feedback_offset} did"
                )
            if not self._is_forgotten(settled[decisions - 1], feedback):
                if example.outcome is Outcome.UNMATCHED:
                    self.counts["feedback_unmatched"] += 1
                    return False
                self._check_not_refused(feedback, example)
                if example.outcome is Outcome.EXPIRED:
                    self.counts["late"] += 1
                    self._check_late(feedback, settled[decisions - 1])
                    return False
                first_bit = example.reward
        if first_bit is not None:
            self.counts["feedback_duplicates"] += 1
            self.counts["conflicts"] += first_bit != feedback.reward
            return False
        self.counts["orphans_waiting"] += 1
        if decisions < len(settled) and settled[decisions].example.outcome is Outcome.UNMATCHED:
            self.fault(
                f"feedback at offset {feedback.offset} waited for {feedback.id!r}, whose example does not name it"
            )
        return True

    def _check_not_refused(self, feedback: FeedbackSeen, example: ExampleSeen) -> None:
        """Whether feedback that was not refused names the decided action, where the learner knew that still."""
        if feedback.action not in (None, example.action):
            self.fault(
                f"feedback at offset {feedback.offset} is of action {feedback.action}, and was not refused; decided "
                f"for {feedback.id!r} was {example.action}"
            )

    def _was_dropped(self, orphan: _Orphan, feedback: FeedbackSeen) -> bool:
        """Whether feedback that waited had been dropped when another of its id came."""
        if orphan.ended_in is not None and orphan.ended_in < feedback.place.step:
            return True
        return self.settings.orphan_passed(orphan.stream_ms, feedback.place.step, feedback.stream_ms)

    def _check_late(self, feedback: FeedbackSeen, settled: _Settled) -> None:
        """Whether feedback that changed nothing had indeed come after its decision expired."""
        example, _, expiry = settled
        is_before = not self._makes_room(settled) and (expiry is None or feedback.place <= expiry.place)
        if is_before or feedback.place.step < example.step:
            self.fault(
                f"feedback at offset {feedback.offset} came in time for {feedback.id!r}, at {feedback.append_ms} ms; "
                f"the decision expired all the same, at {example.settled_at_ms} ms in step {example.step}"
            )

    def _overdue(self, life: Life) -> None:
        """Whether a decision still waits although its deadline has passed."""
        for prediction in life.predictions[len(life.examples) :]:
            expiry = self._expiry(prediction)
            if expiry is not None and not _is_early(prediction):
                self.fault(
                    f"{life.id!r} is pending at {self.evidence.stream_ms(self.last_step)} ms; its deadline was "
                    f"{expiry.deadline_ms} ms"
                )


def _is_early(prediction: PredictionSeen | None) -> bool:
    """Whether a decision may have waited, beyond its time, for the one before it, which was dated later."""
    return prediction is not None and prediction.dated is not None and prediction.dated.is_early
