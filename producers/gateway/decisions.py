"""The decisions that the gateway remembers, the requests that wait for a decision, and the fallback after a timeout."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import orjson
from msgspec import Struct

from stream.randomness.draws import Purpose, uniform
from stream.wire.classes import Classes
from stream.wire.codec import ActionReading, MalformedError
from stream.wire.named_features import FeatureEncoder
from stream.wire.records import FloatArray, IndexArray
from stream.wire.rewards import FeedbackRule, RewardRange

REMEMBERED_MAX = 1_000_000
"""Limit on the number of remembered decisions, which need about 600 bytes each, without their scores. The oldest is
removed first."""


SCORES_BYTES_MAX = 100_000_000
"""Limit on the size of the remembered scores: 8 bytes for each class, or about 40 for each action with an id. The
oldest scores are removed first; the decisions themselves are kept."""

TIMEOUTS, TIMEOUTS_S = 3, 60.0
"""The learner is considered silent if this many requests have timed out within this time, and no prediction has arrived
since the first of them. Without further requests, the gateway is ready again after this time, and tries once more."""


class FallbackError(ValueError):
    """Raised if the fallback does not exist or cannot be used."""


class PipelineFacts(NamedTuple):
    """The pipeline settings that the gateway uses; they are known after the learner's first step."""

    n_classes: int
    n_features: int  # of a context without its actions
    seed: int
    class_names: tuple[str, ...] | None = None
    encoder: FeatureEncoder | None = None  # the encoding of named features
    open_classes: bool = False  # True if contexts name the classes
    unsupported: str | None = None  # name of a learner that cannot decide among eligible classes
    retired: tuple[str | int, ...] = ()  # classes that are never eligible
    graded: RewardRange | None = None  # the range of graded rewards; None for bits
    reading: ActionReading | None = None  # how contexts' actions are read; None if the pipeline decides among classes
    rule: FeedbackRule = "first"  # how a decision's feedback determines its reward

    def classes(self) -> Classes:
        """Return the pipeline's classes. Names that an open pipeline adds later are not included."""
        return Classes(
            self.n_classes, self.class_names, is_open=self.open_classes, unsupported=self.unsupported,
            retired=self.retired,
        )  # fmt: skip


class Answer(Struct, frozen=True, gc=False):
    """The answer to a context. The garbage collector ignores answers, because traversing all of them takes 0.2 s."""

    action: int
    propensity: float | None  # None if the propensity is unknown
    class_name: str | None = None
    model_version: int | None = None  # None for a fallback, which has no model
    append_ms: int = 0  # append time of the prediction
    trace: bytes | None = None  # the prediction's trace if it is sampled


Scores = FloatArray | dict[str, float]
"""A decision's scores: float64[K], or by id if contexts have actions."""


class _Stored(NamedTuple):
    """Remembered scores."""

    content: bytes  # float64[K], or JSON by id
    has_ids: bool


class Rejection(NamedTuple):
    """A context that the learner has rejected."""

    event_id: str
    value: bytes
    reason: str


def fallback_answer(
    given: str,
    event_id: str,
    facts: PipelineFacts,
    eligible: IndexArray | None = None,
    actions: Sequence[str] | None = None,
) -> Answer:
    """Return the fallback for an event: the given class, or a uniformly random class determined by the seed and the id.

    Args:
        given: The class's name or number, or `uniform`. With actions, a number is a place in the context's list.
        event_id: The event's id.
        facts: The pipeline's settings.
        eligible: The eligible classes, int32[m]; None means all.
        actions: The ids of the context's actions; None if there are none or they are not known yet.

    >>> facts = PipelineFacts(n_classes=3, n_features=1, seed=0, class_names=("news", "offers", "help"))
    >>> fallback_answer("offers", "visit-1", facts).action, fallback_answer("2", "visit-1", facts).class_name
    (1, 'help')

    Raises:
        FallbackError: the pipeline does not have this class, or the class is not eligible.
    """
    names, n_classes, propensity = facts.class_names, facts.n_classes, 1.0
    if facts.open_classes:
        raise FallbackError("expected a pipeline with fixed classes; got open classes")
    if names is not None and given in names:
        action = names.index(given)
    elif given == "uniform":
        among = range(n_classes) if eligible is None else eligible.tolist()
        action = among[int(len(among) * uniform(facts.seed, Purpose.FALLBACK, event_id))]
        propensity = 1.0 / len(among)
    elif given.isdecimal() and int(given) < n_classes:
        action = int(given)
    else:
        known_as = "a class of the pipeline" if facts.reading is None else "an action's place in the context's list"
        raise FallbackError(f"expected uniform, or {known_as} (0 to {n_classes - 1}); got {given!r}")
    if eligible is not None and action not in eligible:
        if (action if names is None else names[action]) in facts.retired:
            raise FallbackError(
                f"expected a class that is not retired; got {given!r}. Start the gateway with a different fallback, or "
                "restore the class with `onebit change`"
            )
        raise FallbackError(f"expected an eligible {'class' if facts.reading is None else 'action'}; got {given!r}")
    known = names if actions is None else actions
    return Answer(action, propensity, None if known is None else known[action])


class Decisions:
    """Remembered answers by event id, and the requests that wait for an answer. Used only by the event loop."""

    def __init__(
        self, remember_ms: int, remembered_max: int = REMEMBERED_MAX, scores_bytes_max: int = SCORES_BYTES_MAX
    ) -> None:
        """Create an empty memory.

        Args:
            remember_ms: time for which an answer is remembered, measured by append times.
            remembered_max: limit on remembered answers.
            scores_bytes_max: limit on the size of remembered scores.
        """
        self.remember_ms = remember_ms
        self._remembered_max = remembered_max
        self._scores_bytes_max = scores_bytes_max
        self._scores: dict[str, _Stored] = {}  # for the newest answers, in the order of arrival
        self._scores_bytes = 0
        self._answers: dict[str, Answer] = {}  # answers in the order of arrival
        self._waiting: dict[str, dict[asyncio.Future[Answer], bytes]] = {}  # with the value of each request's context
        self._timed_out_s: deque[float] = deque(maxlen=TIMEOUTS)  # times of the last timeouts since the last prediction

    @property
    def remembered(self) -> int:
        """The number of remembered answers."""
        return len(self._answers)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum(map(len, self._waiting.values()))

    def find(self, event_id: str) -> Answer | None:
        """Return the remembered answer to an event, or None."""
        return self._answers.get(event_id)

    def scores(self, event_id: str) -> Scores | None:
        """Return the scores of a decision, or None if they are not remembered."""
        found = self._scores.get(event_id)
        if found is None:
            return None
        by_id: dict[str, float] = orjson.loads(found.content) if found.has_ids else {}
        return by_id if found.has_ids else np.frombuffer(found.content)

    def add(self, answers: Iterable[tuple[str, Answer, Scores]]) -> None:
        """Remember answers and wake the requests that wait for them. Only the first answer to an event is used."""
        newest_ms = 0
        self._timed_out_s.clear()
        for event_id, answer, scores in answers:
            kept = self._answers.setdefault(event_id, answer)
            if kept is answer:
                has_ids = isinstance(scores, dict)
                stored = _Stored(orjson.dumps(scores) if has_ids else np.asarray(scores).tobytes(), has_ids)
                self._scores[event_id] = stored
                self._scores_bytes += len(stored.content)
            newest_ms = max(newest_ms, answer.append_ms)
            for future in self._waiting.get(event_id, ()):
                if not future.done():
                    future.set_result(kept)
        while self._answers:
            oldest = next(iter(self._answers))
            is_recent = self._answers[oldest].append_ms >= newest_ms - self.remember_ms
            if is_recent and len(self._answers) <= self._remembered_max:
                break
            del self._answers[oldest]
            self._forget_scores(oldest)
        while self._scores_bytes > self._scores_bytes_max:
            self._forget_scores(next(iter(self._scores)))

    def _forget_scores(self, event_id: str) -> None:
        if (stored := self._scores.pop(event_id, None)) is not None:
            self._scores_bytes -= len(stored.content)

    def time_out(self, now_s: float) -> None:
        """Record that a request has timed out."""
        self._timed_out_s.append(now_s)

    def is_learner_silent(self, now_s: float) -> bool:
        """Return whether requests time out, and no predictions arrive. Can be called from any thread."""
        times = tuple(self._timed_out_s)
        return len(times) == TIMEOUTS and now_s - times[0] <= TIMEOUTS_S

    def reject(self, rejections: Iterable[Rejection]) -> None:
        """End the requests that wait for the decisions on rejected contexts."""
        for event_id, value, reason in rejections:
            for future, written in self._waiting.get(event_id, {}).items():
                if written == value and not future.done():
                    future.set_exception(MalformedError(reason))

    @contextmanager
    def expected(self, event_id: str, value: bytes) -> Iterator[asyncio.Future[Answer]]:
        """Yield a future for the answer to an event. Call this method before writing the event's context.

        Args:
            event_id: The event's id.
            value: The context's value.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(event_id, {})
        waiting[future] = value
        try:
            yield future
        finally:
            waiting.pop(future, None)
            if not waiting:
                self._waiting.pop(event_id, None)
