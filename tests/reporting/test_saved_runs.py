"""Runs that are saved in a page or in its JSON file are identical when they are read back."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from stream.estimating.intervals import Interval
from stream.estimating.live_results import Flag, LiveEstimate, LiveEstimates, LivePoint
from stream.measures.errors import DelayedCurve, ErrorCurve, ShareCurve
from stream.measures.latencies import Latency, LatencyCounts, ReplicaReport
from stream.reporting.page import page
from stream.reporting.pages import write_page
from stream.reporting.runs import LearnerRun, SavedRunsError, read_runs, runs_json
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import Ledger
from tests.reporting.test_page import CHALLENGED, COMPARED, run_report

GOLDEN = Path(__file__).parents[1] / "golden" / "runs.format1.json"
AT = datetime(2026, 3, 1, tzinfo=UTC)


def full_report(**changes: Any) -> LearnerRun:
    """A report with every optional field."""
    estimate = LiveEstimates(
        30, 5, 0, 20.5, 10.0, 0.1, (Flag("outcome-missing", "5 of 35 decisions have no outcome"),),
        (LiveEstimate("ips", 0.25, Interval(0.125, 0.375), Interval(0.0625, 0.5)),
         LiveEstimate("snips", None, None, None)),
        (LivePoint(30, 0.25, 0.0625, 0.5, 0.1),),
    )  # fmt: skip
    given: dict[str, Any] = {
        "events": 40,
        "delayed": DelayedCurve((1, 40), (0, 30), (0, 12), (0, 3), (0, 1)),
        "warnings": ("too <late>",),
        "first_feedback": 7,
        "delay_counts": Sketch({151: 5, 156: 20, 161: 5}),
        "exploration": ShareCurve((2, 40), (0.5, 1 / 3)),
        "latency": Latency(5, 8, 13, 40),
        "latency_counts": LatencyCounts("step", Sketch({-59: 1, -54: 3})),
        "changed": ("loss", "delay"),
        "versions": {"onebit": "0.1.0", "python": "3.11.7"},
        "constant_error_rate": 0.9,
        "estimate": estimate,
        "holdout": COMPARED,
        "challengers": CHALLENGED,
        "drift_alarms": 2,
        "full_information": True,
    }
    return run_report(**(given | changes))


def test_reports_that_are_read_from_a_page_equal_the_saved_reports(tmp_path: Path) -> None:
    empty = run_report("empty", events=0, ledger=Ledger(), delays=None)  # a run without events has no rates
    reports = [full_report(), run_report("soba-diag"), empty]
    read = read_runs(write_page(tmp_path / "page.html", reports, AT))
    assert runs_json(read) == runs_json(reports)
    assert page(read) == page(reports)
    for name in ("estimate", "holdout", "challengers", "latency", "latency_counts", "delayed"):
        assert getattr(read[0], name) == getattr(reports[0], name)
    assert read[0].errors.points[-1] == reports[0].errors.points[-1]
    assert math.isnan(read[2].errors.error_rate)


def test_saved_runs_in_format_1_can_be_read() -> None:
    (read,) = read_runs(GOLDEN)
    assert runs_json([read]) == GOLDEN.read_bytes()
    assert (read.learner, read.first_feedback, read.delay_counts) == ("banditron", 7, Sketch({151: 5, 156: 20, 161: 5}))
    assert read.errors.points[-1] == (40, read.errors.mistakes / 40, 0.0)
    assert (read.model, read.replicas) == ("shared", (ReplicaReport("learner-1", 90, "cd" * 32),))


@pytest.mark.parametrize(
    "content",
    [
        "<p>another page</p>",
        '<script type="application/gzip" id="runs">bm8</script>',
        '{"format": 7, "runs": []}',
        "[1]",
        '{"format": 1, "runs": [{"learner": "soba"}]}',
    ],
)
def test_files_without_saved_runs_are_rejected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "some"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SavedRunsError):
        read_runs(path)
    with pytest.raises(SavedRunsError):
        read_runs(tmp_path / "none")


def test_saved_json_contains_all_fields_of_printed_json() -> None:
    report = full_report()
    (saved,) = orjson.loads(runs_json([report]))["runs"]
    printed = report.to_dict()
    del printed["estimate"]  # unlike the printed estimate, the saved estimate also contains the path
    assert {name: saved[name] for name in printed} == orjson.loads(orjson.dumps(printed))


def test_curve_of_mistakes_is_saved_as_integers() -> None:
    curve = ErrorCurve()
    for mistake in (True, False, False):
        curve.add(mistake, mistake)
    (saved,) = orjson.loads(runs_json([replace(run_report(), errors=curve.summary())]))["runs"]
    assert saved["curve"] == {"events": [1, 2, 3], "mistakes": [1, 1, 1], "window_mistakes": [1, 0, 0]}
