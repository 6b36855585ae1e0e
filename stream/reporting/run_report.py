"""The report of one run: what scripts, tables and the page are made of.

The words are those of the topics: a context is *decided*, its decision is *matched* or *expired*, feedback is matched,
*late*, *duplicate*, *orphan* or *malformed*.

"""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.reporting.errors import DelayedPoint, Errors, SharePoint, _rate
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import Ledger

if TYPE_CHECKING:
    from stream.estimating.live import LiveEstimates


def versions() -> dict[str, Any]:
    """The versions that the bits of a run may depend on, by name."""
    return {
        "onebit": version("onebit"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "machine": platform.machine(),
    }


class Latency(NamedTuple):
    """How long decisions took, in ms; right within 2.4 %."""

    median_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


def quantiles(latencies: Sketch) -> Latency | None:
    """The latency that each share of the decisions did not exceed; None without decisions.

    >>> quantiles(Sketch({35: 98, 66: 1, 93: 1}))
    Latency(median_ms=5, p90_ms=5, p99_ms=20, max_ms=71)
    """
    found = [latencies.quantile_s(share) for share in (0.5, 0.9, 0.99, 1.0)]
    return Latency(*(round(1_000 * one) for one in found if one is not None)) if latencies.size else None


class LatencyCounts(NamedTuple):
    """How long the learner took, in real time, and how often."""

    of: Literal["decision", "step"]  # from a context in its topic to its prediction; or, embedded, for a whole step
    counts: Sketch


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


class ReplicaReport(NamedTuple):
    """A replica of a shared model, when it has read the whole log."""

    instance: str  # the learner process that has it
    version: int  # entries of the log
    sha256: str  # of its state


class Behind(NamedTuple):
    """How many entries the log of a shared model had before a step wrote to it, and that it was decided without."""

    median: int
    p99: int
    max: int


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
    full_information: bool = False  # the learner learns from the true class, not from one bit
    delays: Delays | None = None
    constant_error_rate: float = math.nan  # of always answering the most frequent class; nan: not known
    report: str | None = None  # where the page is
    feedback_after_end: float = math.nan  # share of the matched feedback that came after the last decision
    delayed: tuple[DelayedPoint, ...] = ()  # what could be known, as decisions were made
    warnings: tuple[str, ...] = ()  # what people should know before they trust the figures
    drift_alarms: int = 0  # how often drift has reset the model, or a class of it
    estimate: "LiveEstimates | None" = None  # of the learner's own policy; None: not asked for
    model: str = "own"  # whose decides: `own`, of each partition, or `shared`, of all
    replicas: tuple[ReplicaReport, ...] = ()  # of a shared one
    model_behind: Behind | None = None  # likewise, over the steps that wrote to its log
    first_feedback: int | None = None  # decisions that had been made when the first feedback was matched
    delay_counts: Sketch | None = None  # of the matched feedback, as `delays`
    exploration: tuple[SharePoint, ...] = ()  # how often the action was not the greedy class
    latency_counts: LatencyCounts | None = None
    changed: tuple[str, ...] = ()  # settings that are not the defaults
    versions: Mapping[str, str] = field(default_factory=dict)  # of what the run was made with
    latency: Latency | None = None  # of decisions on a Kafka; in virtual time there is none to be told
    audit_ok: bool = True  # the ledger recomputed from the topics alone is the learner's

    @property
    def duplicates(self) -> int:
        """Contexts and feedback that came again."""
        return self.ledger.context_duplicates + self.ledger.feedback_duplicates

    @property
    def orphans(self) -> int:
        """Feedback whose context never came: dropped, or waiting to the end."""
        return self.ledger.orphans_waiting + self.ledger.orphans_dropped

    @property
    def malformed(self) -> int:
        """Contexts and feedback that could not be read."""
        return self.ledger.context_malformed + self.ledger.feedback_malformed

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
        ledger, errors = self.ledger, self.errors
        fields: dict[str, object] = {
            "data": self.data,
            "learner": self.learner,
            "params": self.params,
            "seed": self.seed,
            "events": self.events,
            "classes": self.classes,
            "features": self.features,
            "decided": ledger.decided,
            "matched": ledger.matched,
            "expired": ledger.expired,
            "pending": ledger.pending,
            "late": ledger.late,
            "duplicates": self.duplicates,
            "orphans": self.orphans,
            "conflicts": ledger.conflicts,
            "malformed": self.malformed,
            "mistakes": errors.mistakes,
            "error_rate": errors.error_rate,
            "error_rate_last_fifth": errors.error_rate_last_fifth,
            "greedy_error_rate": errors.greedy_error_rate,
            "updates": self.updates,
            "ledger_ok": self.ledger_ok,
            "state_sha256": self.state_sha256,
            "virtual_s": self.virtual_s,
            "wall_s": self.wall_s,
            "events_per_s": self.events_per_s,
            "report": self.report,
            "full_information": self.full_information,
            "settings": self.settings,
            "ledger": ledger._asdict(),
            "delays": self.delays._asdict() if self.delays else None,
            "constant_error_rate": self.constant_error_rate,
            "feedback_after_end": self.feedback_after_end,
            "delayed": _delayed(self.delayed),
            "warnings": list(self.warnings),
            "drift_alarms": self.drift_alarms,
            "latency": self.latency._asdict() if self.latency else None,
            "estimate": None if self.estimate is None else self.estimate.as_json(),
            "first_feedback": self.first_feedback,
            "changed": list(self.changed),
            "versions": self.versions,
            "model": self.model,
            "half_widths": errors.half_widths._asdict(),
        }
        if self.replicas:
            fields["model_version"] = max(replica.version for replica in self.replicas)
            fields["replicas"] = [replica._asdict() for replica in self.replicas]
        if self.model_behind is not None:
            fields["model_behind"] = self.model_behind._asdict()
        return {key: plain(value) for key, value in fields.items()}


def _delayed(points: tuple[DelayedPoint, ...]) -> dict[str, float] | None:
    """What was known when the last decision was made."""
    if not points:
        return None
    last = points[-1]
    return {**last._asdict(), "outstanding": last.outstanding, "error_rate": last.error_rate}


def plain(value: object) -> object:
    """A value as JSON has it: nan and infinities are None, mappings are dicts, what JSON does not know is its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value)
