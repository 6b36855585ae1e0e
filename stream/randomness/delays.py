"""When feedback comes: delay, loss and duplication, drawn per event id.

A delay is the inverse distribution function of its law at one uniform, and so a pure function of (seed, event id,
label). Delays are whole milliseconds, at least 0: continuous laws are rounded to the nearest, and every law is cut at
`DURATION_MS_MAX`.

    none                  0 ms: feedback is sent at once
    fixed:10s             always 10 s
    geometric:10s         mean 10 s: ticks of 1 ms up to and with the first success, so at least 1 ms
    exponential:10s       mean 10 s
    lognormal:10s,1.0     median 10 s; 1.0 is the standard deviation of the logarithm
    weibull:10s,0.7       scale 10 s (63.2 % are shorter), shape 0.7 (below 1: a heavy tail)
    empirical:FILE        one delay in ms a line; one of them is drawn, each as likely as the others
    0=fixed:1s;*=none     per class, which is the true label of the event, not the action; * is any other class

>>> delay = parse_delay("0=fixed:1s;1=lognormal:1m,1.0;*=none")
>>> delay.draw_ms(0, 0.5), delay.draw_ms(1, 0.5), delay.draw_ms(2, 0.5)
(1000, 60000, 0)
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

from stream.durations import DURATION_MS_MAX, DurationError, parse_duration
from stream.errors import OnebitError
from stream.parsing import parse_number
from stream.randomness.draws import Draws, Purpose

GRAMMAR = (
    "none, fixed:10s, geometric:10s, exponential:10s, lognormal:10s,1.0, weibull:10s,0.7, empirical:FILE, "
    "or per class 0=fixed:1s;1=lognormal:1m,1.0;*=none"
)


class DelayError(OnebitError, ValueError):
    """A delay specification, a probability or a file of delays that cannot be used."""


class Law(Protocol):
    """The distribution of a delay."""

    def quantile_ms(self, u: float) -> int:
        """The delay that a share u of all delays does not exceed, u in [0, 1)."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same delay."""

    delay_ms: int

    def quantile_ms(self, u: float) -> int:
        """The delay, whatever u."""
        return self.delay_ms


@dataclass(frozen=True, slots=True)
class Geometric:
    """Ticks of 1 ms up to and with the first success, each with probability 1/mean: P(D > n) = (1 - 1/mean)ⁿ."""

    mean_ms: int  # at least 1

    def quantile_ms(self, u: float) -> int:
        """The least n of 1, 2, ... with P(D ≤ n) ≥ u."""
        if self.mean_ms == 1:
            return 1
        return min(max(math.ceil(math.log1p(-u) / math.log1p(-1.0 / self.mean_ms)), 1), DURATION_MS_MAX)


@dataclass(frozen=True, slots=True)
class Exponential:
    """P(D > t) = exp(-t/mean)."""

    mean_ms: int

    def quantile_ms(self, u: float) -> int:
        """The quantile -mean · log(1 - u)."""
        return _rounded_ms(-self.mean_ms * math.log1p(-u))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """log D is normal, with the logarithm of the median as its mean."""

    median_ms: int
    sigma: float

    def quantile_ms(self, u: float) -> int:
        """The quantile median · exp(σ Φ⁻¹(u)); u = 0 counts as half the least step of a draw, where Φ⁻¹ is finite."""
        return _scaled_exp_ms(self.median_ms, self.sigma * _STANDARD_NORMAL.inv_cdf(u or 2.0**-54))


@dataclass(frozen=True, slots=True)
class Weibull:
    """P(D > t) = exp(-(t/scale)^shape)."""

    scale_ms: int
    shape: float

    def quantile_ms(self, u: float) -> int:
        """The quantile scale · (-log(1 - u))^(1/shape)."""
        if u == 0.0:
            return 0
        return _scaled_exp_ms(self.scale_ms, math.log(-math.log1p(-u)) / self.shape)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Delays that were seen: each is as likely as it is frequent in the list."""

    delays_ms: tuple[int, ...] = field(repr=False)  # sorted, not empty

    def quantile_ms(self, u: float) -> int:
        """The delay at rank floor(u · n) of n."""
        return self.delays_ms[int(u * len(self.delays_ms))]


@dataclass(frozen=True, slots=True)
class DelayModel:
    """A law of the delay for every class."""

    spec: str  # as it was written
    otherwise: Law  # of the classes that `by_class` does not name
    by_class: Mapping[int, Law] = field(default_factory=dict)  # true label -> law

    def draw_ms(self, label: int | None, u: float) -> int:
        """The delay of an event with this true label, in milliseconds, from a uniform u in [0, 1).

        One whose label is not known is of no class that is named.
        """
        law = self.otherwise if label is None else self.by_class.get(label, self.otherwise)
        return law.quantile_ms(u)

    def quantile_ms(self, u: float) -> int:
        """The delay that in every class at least a share 1 - u of all delays reaches."""
        return min(law.quantile_ms(u) for law in (self.otherwise, *self.by_class.values()))

    def check_classes(self, n_classes: int) -> None:
        """Raise DelayError when a class is named that the data does not have."""
        for label in self.by_class:
            if label >= n_classes:
                raise DelayError(
                    f"delay {self.spec!r} names class {label}; the data has the classes 0 to {n_classes - 1}"
                )

    @property
    def always_ms(self) -> int | None:
        """The delay of every event, where it is one and the same; None: it must be drawn."""
        return self.otherwise.delay_ms if isinstance(self.otherwise, Fixed) and not self.by_class else None


NO_DELAY = DelayModel("none", Fixed(0))


class FeedbackPlan:
    """When the feedback of an event is sent, counted from its prediction: a pure function of (seed, event id, label).

    Without a delay model the delays are those that a log has; an event of which it has none gets no feedback.

    `plan(event_id, label)` is [] when the feedback is lost, [delay_ms] when it is sent once, and [delay_ms,
    copy_delay_ms] when it is sent twice. The copy has a delay of its own, and may come first. Loss is a matter of the
    event, not of the copy: a lost feedback has no copy either.
    """

    __slots__ = ("_always_ms", "_copy_delay", "_delay", "_duplicate", "_loss", "delay", "duplicates", "loss", "seed")

    def __init__(
        self, seed: int, delay: DelayModel | None = NO_DELAY, loss: float = 0.0, duplicates: float = 0.0
    ) -> None:
        self.seed = seed
        self.delay = delay
        self._always_ms = None if delay is None else delay.always_ms
        self.loss = _probability("loss", loss)
        self.duplicates = _probability("duplicates", duplicates)
        self._delay = Draws(seed, Purpose.DELAY)
        self._loss = Draws(seed, Purpose.LOSS)
        self._duplicate = Draws(seed, Purpose.DUPLICATE)
        self._copy_delay = Draws(seed, Purpose.DUPLICATE_DELAY)

    def __reduce__(self) -> "tuple[type[FeedbackPlan], tuple[int, DelayModel | None, float, float]]":
        """Pickle what it is made of: the state of a hash cannot be."""
        return FeedbackPlan, (self.seed, self.delay, self.loss, self.duplicates)

    def __call__(self, event_id: str, label: int | None, logged_ms: int | None = None) -> list[int]:
        """The delays in milliseconds: none, one or two.

        Args:
            event_id: of the event.
            label: its true class; None: not known.
            logged_ms: the delay that a log has for it.
        """
        if self.loss > 0.0 and self._loss(event_id) < self.loss:
            return []
        is_copied = self.duplicates > 0.0 and self._duplicate(event_id) < self.duplicates
        always_ms = logged_ms if self.delay is None else self._always_ms
        if always_ms is not None:
            return [always_ms, always_ms] if is_copied else [always_ms]
        if self.delay is None:
            return []
        draws = (self._delay, self._copy_delay) if is_copied else (self._delay,)
        return [self.delay.draw_ms(label, draw(event_id)) for draw in draws]


def parse_delay(text: str) -> DelayModel:
    """Read a delay specification; the grammar stands at the top of this file."""
    if _CLASS.match(text) is None:
        return DelayModel(text, _parse_law(text, text))
    laws: dict[int | None, Law] = {}
    for part in text.split(";"):
        match = _CLASS.match(part)
        if match is None:
            raise DelayError(f"delay {text!r}: each part reads CLASS=DELAY or *=DELAY; got {part!r}")
        label = None if match[1] == "*" else int(match[1])
        if label in laws:
            raise DelayError(f"delay {text!r}: class {match[1]} is given twice; leave one of them out")
        laws[label] = _parse_law(part[match.end() :], text)
    otherwise = laws.pop(None, None)
    if otherwise is None:
        raise DelayError(f"delay {text!r}: the classes that are not named need a delay too; add ;*=none or another")
    return DelayModel(text, otherwise, {label: law for label, law in laws.items() if label is not None})


def _parse_law(law_text: str, spec: str) -> Law:
    name, colon, rest = law_text.strip().partition(":")
    arguments = tuple(argument.strip() for argument in rest.split(",")) if colon else ()
    try:
        match name, arguments:
            case "none", ():
                return Fixed(0)
            case "fixed", (delay,):
                return Fixed(parse_duration(delay))
            case "geometric", (mean,):
                return Geometric(_positive_ms("the mean of a geometric delay", mean))
            case "exponential", (mean,):
                return Exponential(parse_duration(mean))
            case "lognormal", (median, sigma):
                return LogNormal(parse_duration(median), _number("sigma", sigma, zero_allowed=True))
            case "weibull", (scale, shape):
                return Weibull(parse_duration(scale), _number("the shape", shape, zero_allowed=False))
            case "empirical", (_, *_) if rest.strip():
                return read_empirical(Path(rest.strip()))
    except (DelayError, DurationError) as error:
        raise DelayError(f"delay {spec!r}: {error}") from error
    raise DelayError(f"delay {spec!r}: expected {GRAMMAR}; got {law_text.strip()!r}")


def read_empirical(path: Path) -> Empirical:
    """Read a file with one delay in milliseconds a line; blank lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DelayError(f"cannot read the delays in {path}: {error}") from error
    delays_ms = [_line_ms(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not delays_ms:
        raise DelayError(f"{path} holds no delays; write one in milliseconds on each line")
    return Empirical(tuple(sorted(delays_ms)))


def _line_ms(path: Path, number: int, line: str) -> int:
    delay_ms = parse_number(line.strip())
    if delay_ms is None or not 0.0 <= delay_ms <= DURATION_MS_MAX:
        raise DelayError(
            f"{path}, line {number}: a delay is a number of milliseconds without a unit, from 0 to {DURATION_MS_MAX}; "
            f"got {line.strip()!r}"
        )
    return _rounded_ms(delay_ms)


def _positive_ms(what: str, text: str) -> int:
    duration_ms = parse_duration(text)
    if duration_ms == 0:
        raise DelayError(f"{what} is at least 1ms, its tick; got {text!r}; for no delay write none")
    return duration_ms


def _number(what: str, text: str, *, zero_allowed: bool) -> float:
    number = parse_number(text)
    if number is None or not (number > 0.0 or (zero_allowed and number == 0.0)):
        raise DelayError(f"{what} is a number {'at least' if zero_allowed else 'above'} 0, such as 1.0; got {text!r}")
    return number


def _probability(what: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise DelayError(f"{what} is a probability, a number in [0, 1] such as 0.02 for 2 %; got {value!r}")
    return value


def _rounded_ms(delay_ms: float) -> int:
    return min(int(delay_ms + 0.5), DURATION_MS_MAX)


def _scaled_exp_ms(scale_ms: int, exponent: float) -> int:
    """The product scale · exp(exponent), cut before exp overflows."""
    return _rounded_ms(scale_ms * math.exp(min(exponent, _EXPONENT_MAX)))


_CLASS = re.compile(r"\s*([0-9]{1,9}|\*)\s*=")
_STANDARD_NORMAL = NormalDist()
_EXPONENT_MAX = 100.0  # exp(100) is 2.7e43
