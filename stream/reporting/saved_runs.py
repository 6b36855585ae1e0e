"""Serialisation of runs, in a page or in JSON downloaded from a page.

docs/formats.md describes the format. A page has it compressed in an inert element.
"""

import base64
import binascii
import gzip
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from stream.errors import OnebitError
from stream.reporting.errors import CurvePoint, DelayedPoint, Errors, HalfWidths, SharePoint
from stream.reporting.run_report import Behind, Delays, Latency, LatencyCounts, ReplicaReport, RunReport, plain
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import Ledger

if TYPE_CHECKING:
    from stream.estimating.live import LiveEstimates

FORMAT = 1

_ELEMENT = re.compile(r'<script type="application/gzip" id="runs">([^<]*)</script>')


class SavedRunsError(OnebitError, ValueError):
    """The file has no runs, or runs of an unsupported version."""


def packed_runs(reports: Sequence[RunReport]) -> str:
    """Serialise runs for an element of a page: JSON, gzip, URL-safe base64."""
    return base64.urlsafe_b64encode(gzip.compress(runs_json(reports), mtime=0)).decode()


def runs_json(reports: Sequence[RunReport]) -> bytes:
    """Serialise runs as JSON."""
    return orjson.dumps({"format": FORMAT, "runs": [_saved(report) for report in reports]})


def read_runs(path: Path) -> list[RunReport]:
    """Read the runs of a page, or of JSON downloaded from a page.

    Raises:
        SavedRunsError: the file has no readable runs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SavedRunsError(f"{path}: cannot read the page of a run or its JSON: {error}") from error
    found = _ELEMENT.search(text)
    try:
        fields = orjson.loads(text if found is None else gzip.decompress(base64.urlsafe_b64decode(found[1])))
    except (orjson.JSONDecodeError, binascii.Error, OSError, EOFError) as error:
        raise SavedRunsError(f"{path}: expected the page of a run or its JSON; found no run") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        got = fields.get("format") if isinstance(fields, dict) else None
        raise SavedRunsError(f"{path}: expected runs of format {FORMAT}; got {got!r}")
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


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else round(value)


def _float(value: float | None) -> float:
    return math.nan if value is None else value
