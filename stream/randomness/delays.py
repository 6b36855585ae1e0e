"""Feedback timing: delay, loss and duplication, drawn per event id.

A delay is the quantile of its distribution at a uniform draw. It is therefore a pure function of (seed, event id,
label). Delays are integer milliseconds from 0 to `DURATION_MS_MAX`. Values from continuous distributions are rounded to
the nearest integer.

    none                  0 ms: feedback is sent immediately
    fixed:10s             always 10 s
    geometric:10s         mean 10 s; the number of 1 ms ticks up to the first success, so at least 1 ms
    exponential:10s       mean 10 s
    lognormal:10s,1.0     median 10 s; 1.0 is the standard deviation of the logarithm
    weibull:10s,0.7       scale 10 s (63.2% of delays are shorter), shape 0.7 (below 1: a heavy tail)
    empirical:FILE        one delay in ms per line; each line is equally likely
    0=fixed:1s;*=none     per class (the event's true label, not the action); * is any other class

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

from stream.errors import OnebitError
from stream.parsing import DURATION_MS_MAX, DurationError, parse_duration, parse_number
from stream.randomness.draws import Draws, Purpose
from stream.text import lines_of, read_text

GRAMMAR = (
    "none, fixed:10s, geometric:10s, exponential:10s, lognormal:10s,1.0, weibull:10s,0.7, empirical:FILE, "
    "or per class 0=fixed:1s;1=lognormal:1m,1.0;*=none"
)


class DelayError(OnebitError, ValueError):
    """Raised for an invalid delay specification, probability or delay file."""


class Law(Protocol):
    """A delay distribution."""

    def quantile_ms(self, u: float) -> int:
        """Return the u-quantile of the delay, for u in [0, 1)."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant delay."""

    delay_ms: int

    def quantile_ms(self, u: float) -> int:
        """Return the constant delay; u has no effect."""
        return self.delay_ms


@dataclass(frozen=True, slots=True)
class Geometric:
    """Geometric: P(D > n) = (1 - 1/mean)ⁿ. D is the number of 1 ms ticks up to the first success.

    Each tick succeeds with probability 1/mean.
    """

    mean_ms: int  # at least 1

    def quantile_ms(self, u: float) -> int:
        """Return the smallest n ≥ 1 with P(D ≤ n) ≥ u."""
        if self.mean_ms == 1:
            return 1
        return min(max(math.ceil(math.log1p(-u) / math.log1p(-1.0 / self.mean_ms)), 1), DURATION_MS_MAX)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential: P(D > t) = exp(-t/mean)."""

    mean_ms: int

    def quantile_ms(self, u: float) -> int:
        """Return the quantile -mean · log(1 - u)."""
        return _rounded_ms(-self.mean_ms * math.log1p(-u))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal: log D is normal; its mean is the logarithm of the median."""

    median_ms: int
    sigma: float

    def quantile_ms(self, u: float) -> int:
        """Return the quantile median · exp(σ Φ⁻¹(u)); u = 0 is replaced with half the smallest step between draws."""
        return _scaled_exp_ms(self.median_ms, self.sigma * _STANDARD_NORMAL.inv_cdf(u or 2.0**-54))


@dataclass(frozen=True, slots=True)
class Weibull:
    """Weibull: P(D > t) = exp(-(t/scale)^shape)."""

    scale_ms: int
    shape: float

    def quantile_ms(self, u: float) -> int:
        """Return the quantile scale · (-log(1 - u))^(1/shape)."""
        if u == 0.0:
            return 0
        return _scaled_exp_ms(self.scale_ms, math.log(-math.log1p(-u)) / self.shape)


@dataclass(frozen=True, slots=True)
class Empirical:
    """An empirical distribution: every entry in the list is equally likely."""

    delays_ms: tuple[int, ...] = field(repr=False)  # sorted, not empty

    def quantile_ms(self, u: float) -> int:
        """Return the delay at rank floor(u · n) of n."""
        return self.delays_ms[int(u * len(self.delays_ms))]


@dataclass(frozen=True, slots=True)
class DelayModel:
    """The delay distribution for each class."""

    spec: str  # the original specification
    otherwise: Law  # distribution for classes not in `by_class`
    by_class: Mapping[int, Law] = field(default_factory=dict)  # distribution by true label

    def draw_ms(self, label: int | None, u: float) -> int:
        """Return the delay in milliseconds for an event with this true label, given a uniform draw u from [0, 1).

        An event without a label uses `otherwise`.
        """
        law = self.otherwise if label is None else self.by_class.get(label, self.otherwise)
        return law.quantile_ms(u)

    def quantile_ms(self, u: float) -> int:
        """Return the smallest of the classes' u-quantiles.

        In every class, at least a fraction 1 - u of the delays are no shorter than this quantile.
        """
        return min(law.quantile_ms(u) for law in (self.otherwise, *self.by_class.values()))

    def check_classes(self, n_classes: int) -> None:
        """Raise DelayError if the specification names a class that is not in the data."""
        for label in self.by_class:
            if label >= n_classes:
                raise DelayError(f"delay {self.spec!r} names class {label}; expected a class in 0..{n_classes - 1}")

    @property
    def always_ms(self) -> int | None:
        """Return the delay if all events have the same delay, otherwise None."""
        return self.otherwise.delay_ms if isinstance(self.otherwise, Fixed) and not self.by_class else None


NO_DELAY = DelayModel("none", Fixed(0))


class FeedbackPlan:
    """Plans an event's feedback delays as a function of (seed, event id, label).

    Without a delay model, the delays come from the log, and an event without a logged delay receives no feedback.

    `plan(event_id, label)` is [] if the feedback is lost, [delay_ms] if it is sent once, and [delay_ms, copy_delay_ms]
    if it is sent twice. The copy has its own delay and may arrive first. Loss applies to the event: lost feedback has
    no copy.
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
        """Pickle only the constructor's arguments, because the hash states cannot be pickled."""
        return FeedbackPlan, (self.seed, self.delay, self.loss, self.duplicates)

    def __call__(self, event_id: str, label: int | None, logged_ms: int | None = None) -> list[int]:
        """Return a list of zero, one or two delays in milliseconds.

        Args:
            event_id: The event id.
            label: The true class; None if unknown.
            logged_ms: The delay in the log; used if there is no delay model.
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
    """Parse a delay specification. The module's docstring describes the grammar."""
    if _CLASS.match(text) is None:
        return DelayModel(text, _parse_law(text, text))
    laws: dict[int | None, Law] = {}
    for part in text.split(";"):
        match = _CLASS.match(part)
        if match is None:
            raise DelayError(f"delay {text!r}: expected CLASS=DELAY or *=DELAY; got {part!r}")
        label = None if match[1] == "*" else int(match[1])
        if label in laws:
            raise DelayError(f"delay {text!r}: duplicate class {match[1]}; remove one of the entries")
        laws[label] = _parse_law(part[match.end() :], text)
    otherwise = laws.pop(None, None)
    if otherwise is None:
        raise DelayError(f"delay {text!r}: the other classes have no delay; add ;*=none or another delay")
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
    """Read a file with one delay in milliseconds per line. Blank lines are skipped."""
    try:
        lines = lines_of(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DelayError(f"cannot read the delays in {path}: {error}") from error
    delays_ms = [_line_ms(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not delays_ms:
        raise DelayError(f"{path} contains no delays; write one delay in milliseconds per line")
    return Empirical(tuple(sorted(delays_ms)))


def _line_ms(path: Path, number: int, line: str) -> int:
    delay_ms = parse_number(line.strip())
    if delay_ms is None or not 0.0 <= delay_ms <= DURATION_MS_MAX:
        raise DelayError(
            f"{path}, line {number}: expected a number of milliseconds without a unit, from 0 to {DURATION_MS_MAX}; "
            f"got {line.strip()!r}"
        )
    return _rounded_ms(delay_ms)


def _positive_ms(what: str, text: str) -> int:
    duration_ms = parse_duration(text)
    if duration_ms == 0:
        raise DelayError(f"{what} must be at least 1ms; got {text!r}; use none for no delay")
    return duration_ms


def _number(what: str, text: str, *, zero_allowed: bool) -> float:
    number = parse_number(text)
    if number is None or not (number > 0.0 or (zero_allowed and number == 0.0)):
        raise DelayError(
            f"{what} must be a number {'of at least' if zero_allowed else 'above'} 0, such as 1.0; got {text!r}"
        )
    return number


def _probability(what: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise DelayError(f"{what} must be a probability in [0, 1], such as 0.02 for 2%; got {value!r}")
    return value


def _rounded_ms(delay_ms: float) -> int:
    return min(int(delay_ms + 0.5), DURATION_MS_MAX)


def _scaled_exp_ms(scale_ms: int, exponent: float) -> int:
    """Return scale · exp(exponent), with the exponent limited so that exp does not overflow."""
    return _rounded_ms(scale_ms * math.exp(min(exponent, _EXPONENT_MAX)))


_CLASS = re.compile(r"\s*([0-9]{1,9}|\*)\s*=")
_STANDARD_NORMAL = NormalDist()
_EXPONENT_MAX = 100.0  # exp(100) is 2.7e43
