"""How a run went, as numbers and tables: the progressive error, and the report of one run.

Nothing here draws, prints or reads. The words are those of the topics: a context is *decided*, its decision is
*matched* or *expired*, feedback is matched, *late*, *duplicate*, *orphan* or *malformed*.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.events import Example, Outcome
from stream.ledger import Ledger

CURVE_POINTS_MAX = 400
"""Points kept for drawing: a figure is some 700 px wide, and every point costs 15 bytes of the page."""

WINDOWS_PER_RUN = 20
"""The sliding window is this part of the run: long enough to be smooth, short enough to show a change."""


class CurvePoint(NamedTuple):
    """The error as it stood after some number of decisions."""

    events: int  # decisions so far
    error_rate: float  # over all decisions so far
    window_error_rate: float  # over the last `Errors.window_events` decisions; nan before there are so many


class Errors(NamedTuple):
    """The progressive error of a run: every decision is judged as it was made, before anything was learned from it."""

    events: int
    mistakes: int  # decisions whose action was wrong
    error_rate: float  # nan without a decision, as all rates here
    error_rate_last_fifth: float  # of the action, over the last fifth of the decisions, rounded up
    greedy_error_rate: float  # of the class with the highest score
    window_events: int
    points: tuple[CurvePoint, ...]


class ErrorCurve:
    """Collects the mistakes of one run, in the order of the decisions: one byte and some 0.1 µs for each.

    For runs that end; a program that runs for ever counts with something bounded.

    >>> curve = ErrorCurve()
    >>> for mistake in (True, True, False, True, False):
    ...     curve.add(mistake, greedy_mistake=False)
    >>> curve.error_rate, curve.summary().error_rate_last_fifth
    (0.6, 0.0)
    """

    __slots__ = ("_append", "_codes", "mistakes")

    def __init__(self) -> None:
        self._codes = bytearray()  # bit 0: the action was wrong; bit 1: the greedy class was wrong
        self._append = self._codes.append
        self.mistakes = 0

    def __len__(self) -> int:
        """Decisions so far."""
        return len(self._codes)

    def add(self, mistake: bool, greedy_mistake: bool) -> None:
        """Take in the next decision: was its action wrong, and would the greedy class have been wrong."""
        self._append(mistake + 2 * greedy_mistake)
        self.mistakes += mistake

    @property
    def error_rate(self) -> float:
        """The error of all decisions so far; nan before the first."""
        return _rate(self.mistakes, len(self._codes))

    def summary(self) -> Errors:
        """The figures of the run so far; more may be added afterwards."""
        # A copy: a view would keep the bytearray from growing for as long as it lives.
        codes = np.frombuffer(bytes(self._codes), dtype=np.uint8)
        events = codes.size
        mistakes_before = np.concatenate(([0], np.cumsum(codes & 1, dtype=np.int64)))  # int64[events + 1]
        fifth_starts_at = events * 4 // 5
        fifth_mistakes = int(mistakes_before[-1] - mistakes_before[fifth_starts_at])
        window_events = max(1, events // WINDOWS_PER_RUN)
        return Errors(
            events=events,
            mistakes=int(mistakes_before[-1]),
            error_rate=_rate(int(mistakes_before[-1]), events),
            error_rate_last_fifth=_rate(fifth_mistakes, events - fifth_starts_at),
            greedy_error_rate=_rate(int(np.count_nonzero(codes & 2)), events),
            window_events=window_events,
            points=_points(mistakes_before, window_events),
        )


def _points(mistakes_before: NDArray[np.int64], window_events: int) -> tuple[CurvePoint, ...]:
    """Points spaced both evenly and geometrically, so that the curve is smooth on a linear and on a log axis."""
    events = mistakes_before.size - 1
    if events == 0:
        return ()
    half = CURVE_POINTS_MAX // 2
    spaced = np.concatenate((np.geomspace(1, events, half), np.linspace(1, events, half)))
    at = np.unique(np.rint(spaced).astype(np.int64))
    overall = mistakes_before[at] / at
    window_starts_at = np.maximum(at - window_events, 0)
    window = (mistakes_before[at] - mistakes_before[window_starts_at]) / window_events
    window[at < window_events] = np.nan
    return tuple(map(CurvePoint, at.tolist(), overall.tolist(), window.tolist()))


class MatchedError(NamedTuple):
    """The error as feedback tells it: the share of reward 0 among the decisions whose feedback came in time.

    Where the true classes are not known, no more can be said. Decisions without feedback in time are not in it.
    """

    matched: int
    mistakes: int  # those of them with reward 0
    last_fifth: int  # how many the last fifth of them are, rounded up
    last_fifth_mistakes: int

    @property
    def error_rate(self) -> float:
        """Of all of them; nan without any."""
        return _rate(self.mistakes, self.matched)

    @property
    def error_rate_last_fifth(self) -> float:
        """Of the last fifth of them; nan without any."""
        return _rate(self.last_fifth_mistakes, self.last_fifth)


def matched_error(partitions: Iterable[Iterable[Example]]) -> MatchedError:
    """The error over all examples, those of each partition in the order in which they were settled.

    One byte is kept for each example of a partition. The last fifth is that of every partition.

    >>> wrong, right = (Example("id", Outcome.MATCHED, 1, 0.5, reward, 10, 20) for reward in (0, 1))
    >>> error = matched_error([[wrong, wrong, wrong, wrong, right], [right] * 4 + [wrong]])
    >>> error, error.error_rate, error.error_rate_last_fifth
    (MatchedError(matched=10, mistakes=5, last_fifth=2, last_fifth_mistakes=1), 0.5, 0.5)
    """
    parts = []
    for examples in partitions:
        rewards = bytes(example.reward or 0 for example in examples if example.outcome is Outcome.MATCHED)
        last = rewards[len(rewards) * 4 // 5 :]
        parts.append(MatchedError(len(rewards), rewards.count(0), len(last), last.count(0)))
    return MatchedError(*map(sum, zip(*parts, strict=True)))


class Delays(NamedTuple):
    """How late matched feedback came, in ms from the decision."""

    median_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


def summarise_delays(delays_ms: Sequence[float] | NDArray[Any]) -> Delays | None:
    """The quantiles of the delays of all matched feedback; None when none was matched."""
    if len(delays_ms) == 0:
        return None
    return Delays(*np.quantile(np.asarray(delays_ms, dtype=np.float64), (0.5, 0.9, 0.99, 1.0)).tolist())


def constant_error_rate(labels_per_class: Sequence[int] | NDArray[Any]) -> float:
    """The error of the best constant answer, the most frequent class; nan without labels.

    >>> constant_error_rate([10, 60, 30])
    0.4
    """
    counts = [int(count) for count in labels_per_class]
    return _rate(sum(counts) - max(counts, default=0), sum(counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One learner's run over one stream. What follows from the ledger or from the errors is never given twice."""

    data: str
    learner: str
    params: Mapping[str, float | int | str]
    seed: int
    events: int  # contexts that were to be replayed
    classes: int
    features: int
    ledger: Ledger
    errors: Errors
    updates: int  # updates that changed the model
    state_sha256: str
    virtual_s: float  # how long the run took by the broker's clock
    wall_s: float
    settings: Mapping[str, object]  # the effective ones, by their names in the settings; `command` is the command line
    full_information: bool = False  # the learner is told the right class, not only one bit
    delays: Delays | None = None
    constant_error_rate: float = math.nan  # of always answering the most frequent class; nan: not known
    report: str | None = None  # where the page is
    audit_ok: bool = True  # the ledger recomputed from the topics alone is the learner's

    @property
    def decided(self) -> int:
        """Contexts that got an answer."""
        return self.ledger.decided

    @property
    def matched(self) -> int:
        """Decisions whose feedback came in time."""
        return self.ledger.matched

    @property
    def expired(self) -> int:
        """Decisions whose feedback did not come in time."""
        return self.ledger.expired

    @property
    def pending(self) -> int:
        """Decisions that still wait."""
        return self.ledger.pending

    @property
    def late(self) -> int:
        """Feedback that came after its decision had expired."""
        return self.ledger.late

    @property
    def duplicates(self) -> int:
        """Contexts and feedback that came again."""
        return self.ledger.context_duplicates + self.ledger.feedback_duplicates

    @property
    def orphans(self) -> int:
        """Feedback whose context never came: dropped, or waiting to the end."""
        return self.ledger.orphans_waiting + self.ledger.orphans_dropped

    @property
    def conflicts(self) -> int:
        """Duplicate feedback that said otherwise than the first."""
        return self.ledger.conflicts

    @property
    def malformed(self) -> int:
        """Contexts and feedback that could not be read."""
        return self.ledger.context_malformed + self.ledger.feedback_malformed

    @property
    def mistakes(self) -> int:
        """Decisions whose action was wrong."""
        return self.errors.mistakes

    @property
    def error_rate(self) -> float:
        """Mistakes per decision."""
        return self.errors.error_rate

    @property
    def error_rate_last_fifth(self) -> float:
        """Mistakes per decision over the last fifth of the decisions."""
        return self.errors.error_rate_last_fifth

    @property
    def greedy_error_rate(self) -> float:
        """The error had the class with the highest score always been played."""
        return self.errors.greedy_error_rate

    @property
    def ledger_ok(self) -> bool:
        """Whether the ledger balances, and the audit agrees with the learner's counts."""
        return self.ledger.balances and self.audit_ok

    @property
    def events_per_s(self) -> float:
        """Events per second of wall time."""
        return _rate(self.events, self.wall_s)

    def as_json(self) -> dict[str, object]:
        """The report as plain values for JSON, in a fixed order; a rate that is not defined is None."""
        summary: dict[str, object] = {key: _plain(getattr(self, key)) for key in JSON_KEYS}
        return summary | {
            "full_information": self.full_information,
            "settings": _plain(self.settings),
            "ledger": self.ledger._asdict(),
            "delays": _plain(self.delays._asdict()) if self.delays else None,
            "constant_error_rate": _plain(self.constant_error_rate),
        }


JSON_KEYS = (
    "data",
    "learner",
    "params",
    "seed",
    "events",
    "classes",
    "features",
    "decided",
    "matched",
    "expired",
    "pending",
    "late",
    "duplicates",
    "orphans",
    "conflicts",
    "malformed",
    "mistakes",
    "error_rate",
    "error_rate_last_fifth",
    "greedy_error_rate",
    "updates",
    "ledger_ok",
    "state_sha256",
    "virtual_s",
    "wall_s",
    "events_per_s",
    "report",
)
"""The keys that scripts may rely on, in their order; more follow them."""


class Table(NamedTuple):
    """Text in rows and columns, for a terminal or a page. The first column names its row; all others are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def comparison(reports: Sequence[RunReport]) -> Table:
    """The runs side by side."""
    return Table(
        ("learner", "error", "last fifth", "greedy", "matched", "expired", "late", "duplicate", "wall time"),
        tuple(
            (
                label,
                percent(report.error_rate),
                percent(report.error_rate_last_fifth),
                percent(report.greedy_error_rate),
                f"{report.matched:,}",
                f"{report.expired:,}",
                f"{report.late:,}",
                f"{report.duplicates:,}",
                duration(report.wall_s),
            )
            for label, report in zip(labels(reports), reports, strict=True)
        ),
    )


def labels(reports: Sequence[RunReport]) -> tuple[str, ...]:
    """A short name for each run: its learner, with what tells it from other runs of the same learner."""
    names = [report.learner for report in reports]
    result = []
    for number, report in enumerate(reports, start=1):
        same = [other for other in reports if other.learner == report.learner]
        differing = [key for key in report.params if len({str(other.params.get(key)) for other in same}) > 1]
        told_apart = " ".join(f"{key}={_short(report.params[key])}" for key in differing)
        if names.count(report.learner) == 1:
            result.append(report.learner)
        else:
            result.append(f"{report.learner} {told_apart or f'#{number}'}")
    return tuple(result) if len(set(result)) == len(result) else tuple(f"{n} #{i}" for i, n in enumerate(result, 1))


def percent(rate: float) -> str:
    """A rate for people: three digits that count, "–" when it is not defined.

    >>> [percent(rate) for rate in (0.5, 0.0874, 0.00012, 0.0, float("nan"))]
    ['50.0 %', '8.74 %', '0.012 %', '0 %', '–']
    """
    if math.isnan(rate):
        return "–"
    value = 100 * rate
    if value == 0:
        return "0 %"
    decimals = 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{decimals}f} %" if value >= 0.001 else "< 0.001 %"


def duration(seconds: float) -> str:
    """A time span for people.

    >>> [duration(seconds) for seconds in (0.0042, 3.14, 59.96, 125, 7320)]
    ['4 ms', '3.1 s', '1 min 0 s', '2 min 5 s', '2 h 2 min']
    """
    if math.isnan(seconds):
        return "–"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def _short(value: float | int | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rate(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _plain(value: object) -> object:
    """A value as JSON has it: nan and infinities are None, mappings are dicts, what JSON does not know is its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value)
