"""`onebit.embedded`: an in-process pipeline in virtual time, for services and their tests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit.changes import request_for, send, settings_now, with_values
from onebit.testing.embedded import EmbeddedPipeline
from onebit.testing.pipeline import checked_id, feedback_of
from stream.errors import OnebitError
from stream.parsing import format_duration, parse_duration
from stream.programs.connection import Connected
from stream.wire.codec import HEADERS, MalformedError, decode_feedback, encode_feedback
from stream.wire.dead_letters import decode_dead_letter
from stream.wire.ledger import Ledger
from stream.wire.records import Record
from stream.wire.topics import partition_for


class RejectedError(OnebitError, ValueError):
    """A context or feedback was rejected as malformed."""


class Decided(NamedTuple):
    """A decision, with the fields of its record in the predictions topic."""

    id: str
    action: int
    greedy: int  # the class with the highest score
    propensity: float  # probability of the action
    scores: NDArray[np.float64]  # [K]
    model_version: int  # number of updates applied to the task's own model, or of log entries applied to a shared model
    class_name: str | None = None  # name or id of the action; None if the classes have no names


class Pipeline:
    """A learner on an embedded broker. Only `advance` and `settle` advance time."""

    def __init__(self, **settings: Any) -> None:
        """Create the topics and the learner; see `embedded`."""
        self.test = EmbeddedPipeline(**settings)
        self._settings = self.test.first_settings
        self._due: list[tuple[int, int, Callable[[], None]]] = []  # heap of delayed feedback, ordered by time
        self._numbers = count()

    @property
    def now_ms(self) -> int:
        """The current virtual time."""
        return self.test.clock.now_ms

    def decide(
        self,
        event_id: str,
        x: Sequence[float] | Mapping[str, Any],
        *,
        actions: Sequence[Mapping[str, Any]] | None = None,
        eligible: Sequence[str] | Sequence[int] | None = None,
        deferred: bool = False,
        baseline: str | int | None = None,
    ) -> Decided:
        """Write a context and return the decision for it.

        Args:
            event_id: The event's id. Only one decision is made per id.
            x: Features as a list, as `{"i": indices, "v": values}`, or as a mapping from names to values.
            actions: The actions with their features, such as `[{"id": "tea", "x": [3.5]}]`, in a pipeline with
                `actions_max`.
            eligible: Names or indices of the eligible classes, or ids of the eligible actions; None means all.
            deferred: Whether the window for feedback begins only when the decision is shown; see `shown`.
            baseline: Name or index of the class, or id of the action, that the service's own rule plays; see
                `--holdout-policy baseline`.

        Raises:
            RejectedError: the context is malformed, for example because it has the wrong number of features.
        """
        fields: dict[str, Any] = {} if eligible is None else {"eligible": list(eligible)}
        fields |= {} if actions is None else {"actions": list(actions)}
        fields |= {} if baseline is None else {"baseline": baseline}
        self.test.context(event_id, x, **fields, **({"deferred": True} if deferred else {}))
        try:
            found = self.test.prediction(event_id)
        except AssertionError:
            if (why := self._why_rejected(event_id)) is None:
                raise
            raise RejectedError(why) from None
        return Decided(
            found["id"],
            found["action"],
            found["greedy"],
            found["propensity"],
            np.array(found["scores"], np.float64),
            found["model_version"],
            found.get("class"),
        )

    def _why_rejected(self, event_id: str) -> str | None:
        """Return the reason given in the newest dead letter with this id, or None if there is none."""
        partition = partition_for(event_id.encode(), self.test.partitions)
        letters = map(decode_dead_letter, reversed(self.test.records(self.test.topics.dead_letter, partition)))
        return next((letter.reason for letter in letters if letter.key == event_id.encode()), None)

    def feedback(
        self,
        event_id: str,
        reward: float,
        *,
        after: str = "0ms",
        action: int | str | None = None,
        label: int | None = None,
        part: str | None = None,
        final: bool = False,
    ) -> None:
        """Write feedback now, or after a virtual delay; see `advance`.

        Args:
            event_id: The decision's id.
            reward: 1 if the decision's action was right, otherwise 0; or a number, with graded rewards.
            after: Virtual delay, such as 30s.
            action: Optional field of the feedback; see docs/topics.md.
            label: Optional field.
            part: The id of this part of the reward; required if rewards are summed.
            final: Whether the decision is settled at once, although other feedback could change its reward.

        Raises:
            NotSendableError: a value has the wrong type.
            RejectedError: the reward, the action or the label is out of range, or the part is missing.
        """
        checked = feedback_of(event_id, reward, action, label, part, final=final)
        try:
            record = Record("", 0, 0, 0, None, encode_feedback(checked), HEADERS)
            decode_feedback(
                record,
                self._settings.n_classes,
                graded=self._settings.graded,
                rule=self._settings.feedback,
                has_actions=self._settings.actions is not None,
            )
        except MalformedError as error:
            raise RejectedError(f"feedback for {event_id!r}: {error}") from error
        fields: dict[str, Any] = {"action": checked.action, "label": checked.label, "part": part, "final": final}
        self._send(partial(self.test.feedback, event_id, checked.reward, **fields), after)

    def shown(self, event_id: str, *, after: str = "0ms") -> None:
        """Report, now or after a virtual delay, that a deferred decision was shown.

        Args:
            event_id: The decision's id.
            after: Virtual delay, such as 5s.
        """
        self._send(partial(self.test.shown, checked_id(event_id)), after)

    def _send(self, write: Callable[[], None], after: str) -> None:
        if delay_ms := parse_duration(after):
            heappush(self._due, (self.now_ms + delay_ms, next(self._numbers), write))
        else:
            write()
            self.test.work()

    def advance(self, duration: str) -> None:
        """Advance virtual time. Delayed feedback arrives and decisions expire at their due times."""
        until_ms = self.now_ms + parse_duration(duration)
        while self._due and self._due[0][0] <= until_ms:
            at_ms, _, write = heappop(self._due)
            self._pass(at_ms - self.now_ms)
            write()
            self.test.work()
        self._pass(until_ms - self.now_ms)

    def settle(self) -> None:
        """Advance time until all delayed feedback has arrived."""
        if self._due:
            self.advance(format_duration(max(at_ms for at_ms, *_ in self._due) - self.now_ms))

    def _pass(self, duration_ms: int) -> None:
        self.test.advance(format_duration(duration_ms))

    def example(self, event_id: str) -> Mapping[str, Any]:
        """Return a settled decision's record from the examples topic."""
        return MappingProxyType(self.test.example(event_id))

    @property
    def ledger(self) -> Ledger:
        """The current counts of contexts, decisions and feedback."""
        self.test.work()
        return self.test.ledger()

    def change(self, **settings: Any) -> None:
        """Change settings of the running pipeline, which its learner applies at once.

        Args:
            settings: New values by the names in the journal, such as `window_ms=120_000` or `champion="late-ucb"`.

        Raises:
            ChangeRefusedError: a setting is unknown, a value is invalid, or the pipeline cannot make this change.
            SettingsError: the pipeline has not made a decision.
        """
        test = self.test
        now = settings_now(Connected(test.broker, test.topics, test.partitions))
        after = with_values(now.settings, settings)
        request = request_for(now, after)
        if request.changes:
            send(test.broker, test.topics, request)
            test.work()
            self._settings = after

    def restart(self) -> None:
        """Kill the learner and recover a new one from the topics, with the pipeline's current settings."""
        self.test.restart_learner()


@contextmanager
def embedded(
    *, n_classes: int | None = None, n_features: int, learner: str = "auto", window: str = "5m", **settings: Any
) -> Iterator[Pipeline]:
    """Create an in-process pipeline in virtual time. It does not need Kafka, never sleeps, and is reproducible.

    At the end of the `with` block, all delayed feedback is delivered, and the ledger is verified.

    Args:
        n_classes: Number of classes K; None if the `classes_max` setting is used.
        n_features: Number of features d.
        learner: Name of the learner; `auto` chooses one based on the numbers of classes and features.
        window: Time to wait for feedback before a decision expires.
        settings: Other settings from docs/settings.md, by name.

    Raises:
        OnebitError: a setting is invalid.
        AssertionError: the ledger does not balance.

    >>> import onebit
    >>> with onebit.embedded(n_classes=3, n_features=4, learner="late-ucb", window="5m") as pipeline:
    ...     decision = pipeline.decide("visit-1", [0.3, 1.2, 0.1, 1.0])
    ...     pipeline.feedback("visit-1", 1, after="30s")
    ...     pipeline.advance("1m")
    ...     pipeline.example("visit-1")["delay_ms"], pipeline.ledger.matched
    (30000, 1)
    """
    sizes = {"n_features": n_features} | ({} if n_classes is None else {"n_classes": n_classes})
    pipeline = Pipeline(**sizes, learner=[learner], window=window, **settings)
    try:
        yield pipeline
        pipeline.settle()
        pipeline.test.finish()
    finally:
        pipeline.test.close()
