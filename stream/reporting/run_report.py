"""A run's report, its serialisation, and the values shown in tables, pages and JSON.

The terms are the same as in the topics: a context is *decided*, its decision is *matched* or *expired*, and feedback
is matched, *late*, *duplicate*, *orphan* or *malformed*.

A page contains its runs in compressed form, in an inert element, and offers them for download as JSON; docs/formats.md
describes the format.
"""

import base64
import binascii
import gzip
import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from stream.errors import OnebitError
from stream.measures.errors import CurvePoint, DelayedPoint, Errors, HalfWidths, SharePoint, _rate
from stream.measures.latencies import Behind, Delays, Latency, LatencyCounts, ReplicaReport
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import Ledger

if TYPE_CHECKING:
    from stream.estimating.arms import ArmComparison
    from stream.estimating.challengers import ChallengerComparison
    from stream.estimating.live import LiveEstimates


def versions() -> dict[str, Any]:
    """Return the software versions on which a run's results may depend, keyed by name."""
    return {
        "onebit": version("onebit"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "machine": platform.machine(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One learner's run over one stream. Values derived from the ledger or the errors are not stored."""

    data: str
    learner: str
    params: Mapping[str, float | int | str]
    seed: int
    events: int  # number of contexts to replay
    classes: int
    features: int
    ledger: Ledger
    errors: Errors
    updates: int  # number of updates that changed the model
    state_sha256: str
    virtual_s: float  # duration according to the broker's clock
    wall_s: float
    settings: Mapping[str, object]  # effective settings by name; `command` is the command line
    full_information: bool = False  # True if the learner learns from the true class
    delays: Delays | None = None
    constant_error_rate: float = math.nan  # error of always choosing the most frequent class; nan if unknown
    report: str | None = None  # path to the page
    feedback_after_end: float = math.nan  # fraction of the matched feedback that arrived after the last decision
    delayed: tuple[DelayedPoint, ...] = ()  # known outcomes over time
    warnings: tuple[str, ...] = ()  # reasons why the figures may be misleading
    drift_alarms: int = 0  # number of times that drift detection reset the model or a class
    estimate: "LiveEstimates | None" = None  # estimate of the learner's own policy; None if not requested
    arms: "ArmComparison | None" = None  # comparison with the holdout; None if there is no holdout
    challengers: "ChallengerComparison | None" = None  # the challengers' estimates; None if there are no challengers
    model: str = "own"  # `own` (one model per partition) or `shared`
    replicas: tuple[ReplicaReport, ...] = ()  # replicas of a shared model
    model_behind: Behind | None = None  # for a shared model: percentiles over the steps that wrote to the log
    first_feedback: int | None = None  # number of decisions before the first matched feedback
    delay_counts: Sketch | None = None  # histogram of `delays`
    exploration: tuple[SharePoint, ...] = ()  # rate of non-greedy actions
    latency_counts: LatencyCounts | None = None
    changed: tuple[str, ...] = ()  # names of the settings that differ from the defaults
    versions: Mapping[str, str] = field(default_factory=dict)  # versions of Onebit and its dependencies
    latency: Latency | None = None  # latency of decisions on Kafka; None in virtual time
    audit_ok: bool = True  # True if the ledger recomputed from the topics equals the learner's

    @property
    def duplicates(self) -> int:
        """The number of repeated contexts and feedback records."""
        return self.ledger.context_duplicates + self.ledger.feedback_duplicates

    @property
    def orphans(self) -> int:
        """The number of feedback records without a context, both dropped and waiting."""
        return self.ledger.orphans_waiting + self.ledger.orphans_dropped

    @property
    def malformed(self) -> int:
        """The number of unreadable contexts and feedback records."""
        return self.ledger.context_malformed + self.ledger.feedback_malformed

    @property
    def ledger_ok(self) -> bool:
        """Whether the ledger balances and the audit agrees with the learner's counts."""
        return self.ledger.balances and self.audit_ok

    @property
    def events_per_s(self) -> float:
        """Events per second of wall time."""
        return _rate(self.events, self.wall_s)

    def as_json(self) -> dict[str, object]:
        """Return the report as JSON-serializable values, in a fixed order; undefined rates are None."""
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
            "arms": None if self.arms is None else self.arms.as_json(),
            "challengers": None if self.challengers is None else self.challengers.as_json(),
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
    """Return the outcomes known at the last decision."""
    if not points:
        return None
    last = points[-1]
    return {**last._asdict(), "outstanding": last.outstanding, "error_rate": last.error_rate}


def plain(value: object) -> object:
    """Convert a value for JSON: nan and infinities to None, mappings to dicts, unknown types to text."""
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


FORMAT = 1

_ELEMENT = re.compile(r'<script type="application/gzip" id="runs">([^<]*)</script>')


class SavedRunsError(OnebitError, ValueError):
    """Raised if a file contains no readable runs, or their format is not supported."""


def packed_runs(reports: Sequence[RunReport]) -> str:
    """Serialise runs for an HTML element, as JSON that is compressed with gzip and encoded as URL-safe base64."""
    return base64.urlsafe_b64encode(gzip.compress(runs_json(reports), mtime=0)).decode()


def runs_json(reports: Sequence[RunReport]) -> bytes:
    """Serialise runs as JSON."""
    return orjson.dumps({"format": FORMAT, "runs": [_saved(report) for report in reports]})


def read_runs(path: Path) -> list[RunReport]:
    """Read the runs from a page, or from JSON downloaded from a page.

    Raises:
        SavedRunsError: the file contains no readable runs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SavedRunsError(f"{path}: cannot read the run's page or its JSON file: {error}") from error
    found = _ELEMENT.search(text)
    try:
        fields = orjson.loads(text if found is None else gzip.decompress(base64.urlsafe_b64decode(found[1])))
    except (orjson.JSONDecodeError, binascii.Error, OSError, EOFError) as error:
        raise SavedRunsError(f"{path}: expected a run's page or its JSON file; found no run") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        got = fields.get("format") if isinstance(fields, dict) else None
        raise SavedRunsError(f"{path}: expected runs in format {FORMAT}; got {got!r}")
    try:
        return [_loaded(run) for run in fields["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise SavedRunsError(f"{path}: damaged runs: {type(error).__name__}: {error}") from error


def _saved(report: RunReport) -> dict[str, object]:
    errors, latency_counts = report.errors, report.latency_counts
    more: dict[str, object] = {
        "audit_ok": report.audit_ok,
        "window_events": errors.window_events,
        "curve": {
            "events": [point.events for point in errors.points],
            "mistakes": [round(point.events * point.error_rate) for point in errors.points],
            "window_mistakes": [_whole(point.window_error_rate * errors.window_events) for point in errors.points],
        },
        "delayed_curve": {
            name: [getattr(point, name) for point in report.delayed] for name in DelayedPoint._fields
        },
        "exploration": {
            name: [getattr(point, name) for point in report.exploration] for name in SharePoint._fields
        },
        "delay_counts": None if report.delay_counts is None else report.delay_counts.as_lists(),
        "latency_counts": (
            None if latency_counts is None else {"of": latency_counts.of, "counts": latency_counts.counts.as_lists()}
        ),
        "estimate": None if report.estimate is None else _saved_estimate(report.estimate),
    }  # fmt: skip
    saved = plain(report.as_json() | more)
    assert isinstance(saved, dict)
    return saved


def _loaded(run: Mapping[str, Any]) -> RunReport:
    ledger, delays = Ledger(**run["ledger"]), run["delays"]
    counts, latency, took = run["delay_counts"], run["latency"], run["latency_counts"]
    return RunReport(
        **{name: run[name] for name in _AS_THEY_ARE},
        constant_error_rate=_float(run["constant_error_rate"]),
        feedback_after_end=_float(run["feedback_after_end"]),
        ledger=ledger,
        errors=_errors(run),
        delays=None if delays is None else Delays(**delays),
        delayed=tuple(map(DelayedPoint, *(run["delayed_curve"][name] for name in DelayedPoint._fields))),
        warnings=tuple(run["warnings"]),
        changed=tuple(run["changed"]),
        exploration=tuple(map(SharePoint, *(run["exploration"][name] for name in SharePoint._fields))),
        delay_counts=None if counts is None else Sketch(dict(counts)),
        latency=None if latency is None else Latency(**latency),
        latency_counts=None if took is None else LatencyCounts(took["of"], Sketch(dict(took["counts"]))),
        estimate=None if run["estimate"] is None else _estimate(run["estimate"]),
        arms=None if run["arms"] is None else _arms(run["arms"]),
        challengers=None if run["challengers"] is None else _challengers(run["challengers"]),
        model=run["model"],
        replicas=tuple(ReplicaReport(**replica) for replica in run.get("replicas", ())),
        model_behind=Behind(**run["model_behind"]) if run.get("model_behind") else None,
    )  # fmt: skip


_AS_THEY_ARE = (
    "data", "learner", "params", "seed", "events", "classes", "features", "updates", "state_sha256", "virtual_s",
    "wall_s", "settings", "full_information", "report", "drift_alarms", "first_feedback", "versions", "audit_ok",
)  # fmt: skip


def _errors(run: Mapping[str, Any]) -> Errors:
    window, curve = run["window_events"], run["curve"]
    columns = (curve["events"], curve["mistakes"], curve["window_mistakes"])
    return Errors(
        events=curve["events"][-1] if curve["events"] else 0,
        mistakes=run["mistakes"],
        error_rate=_float(run["error_rate"]),
        error_rate_last_fifth=_float(run["error_rate_last_fifth"]),
        greedy_error_rate=_float(run["greedy_error_rate"]),
        window_events=window,
        points=tuple(
            CurvePoint(events, mistakes / events, math.nan if recent is None else recent / window)
            for events, mistakes, recent in zip(*columns, strict=True)
        ),
        half_widths=HalfWidths(**{name: _float(value) for name, value in run["half_widths"].items()}),
    )


def _saved_estimate(estimate: "LiveEstimates") -> dict[str, object]:
    path = [[at.n, at.ips, *at.anytime, at.logged] for at in estimate.path]
    flags = [list(flag) for flag in estimate.flags]
    return estimate.as_json() | {"flags": flags, "estimates": [list(one) for one in estimate.estimates], "path": path}


def _estimate(fields: Mapping[str, Any]) -> "LiveEstimates":
    from stream.estimating.intervals import Interval
    from stream.estimating.live import LiveEstimates, LivePoint
    from stream.estimating.running import LiveEstimate
    from stream.estimating.survey import Flag

    def interval(ends: Sequence[float] | None) -> Interval | None:
        return None if ends is None else Interval(*ends)

    return LiveEstimates(
        **{name: fields[name] for name in ("n", "without_outcome", "waiting", "ess", "weight_max")},
        logged=_float(fields["logged"]),
        flags=tuple(Flag(*flag) for flag in fields["flags"]),
        estimates=tuple(
            LiveEstimate(estimator, value, interval(normal), interval(anytime))
            for estimator, value, normal, anytime in fields["estimates"]
        ),
        path=tuple(LivePoint(n, ips, Interval(low, high), logged) for n, ips, low, high, logged in fields["path"]),
    )


def _arms(fields: Mapping[str, Any]) -> "ArmComparison":
    from stream.estimating.arms import ArmComparison

    return ArmComparison.of_json(fields)


def _challengers(fields: Mapping[str, Any]) -> "ChallengerComparison":
    from stream.estimating.challengers import ChallengerComparison

    return ChallengerComparison.of_json(fields)


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else round(value)


def _float(value: float | None) -> float:
    return math.nan if value is None else value
