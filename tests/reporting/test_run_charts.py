"""Run charts. Runs that differ only in the seed are drawn as one line with a band."""

import json
import math
import re
from itertools import combinations

import numpy as np
import pytest
from msgspec.structs import replace

from stream.measures.errors import MistakeCurve, ShareCurve
from stream.measures.latencies import LatencyCounts
from stream.reporting.charts import Axis, Chart, Level, Line, Mark, chart_json
from stream.reporting.ledger_flow import flow_words, ledger_flow
from stream.reporting.page import page
from stream.reporting.run_charts import error_charts, time_charts
from stream.reporting.runs import LearnerRun
from stream.reporting.tables import comparison, labels, series_of
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import Ledger
from tests.reporting.test_page import Reader, run_report


def of_seed(seed: int, error: float = 0.5, learner: str = "banditron") -> LearnerRun:
    """The report for a run with a given seed and a constant error rate."""
    report = run_report(learner, seed=seed, settings={"seed": seed, "command": f"--seed {seed}", "window": "10s"})
    events, window = range(100, 1_001, 10), report.errors.window_events
    curve = MistakeCurve(tuple(events), tuple(round(error * n) for n in events), (round(error * window),) * len(events))
    return replace(report, errors=replace(report.errors, error_rate=error, curve=curve))


def charts(reports: list[LearnerRun]) -> dict[str, Chart]:
    found = series_of(reports)
    names = labels([series.first for series in found])
    return {chart.key: chart for chart in (*error_charts(names, found), *time_charts(names, found))}


def test_runs_that_differ_only_in_the_seed_are_one_series() -> None:
    other = replace(of_seed(4), settings={"delay": "none"})
    found = series_of([of_seed(1), other, of_seed(2), of_seed(1), of_seed(3, learner="soba-diag")])
    assert [[run.seed for run in series.runs] for series in found] == [[1, 2], [4], [1], [3]], "no run is dropped"


def test_line_of_several_seeds_shows_the_mean_and_its_confidence_interval() -> None:
    line = charts([of_seed(1, 0.2), of_seed(2, 0.3), of_seed(3, 0.7)])["windowed"].lines[0]
    half = 4.302653 * np.std([0.2, 0.3, 0.7], ddof=1) / math.sqrt(3)  # 4.302653: Student's t, 2 degrees of freedom
    assert line.label == "banditron"
    assert (line.y[-1], line.low[-1], line.high[-1]) == pytest.approx((0.4, max(0.0, 0.4 - half), min(1.0, 0.4 + half)))
    alone = charts([of_seed(1)])["windowed"].lines[0]
    assert (list(alone.low), list(alone.high)) == ([], [])


def test_confidence_band_is_clipped_to_0_and_1() -> None:
    line = charts([of_seed(1, 0.0), of_seed(2, 1.0)])["progressive"].lines[0]
    assert (min(line.low), max(line.high)) == (0.0, 1.0)


def test_table_of_runs_with_several_seeds_shows_means() -> None:
    table = comparison([of_seed(1, 0.2), of_seed(2, 0.3), of_seed(3, 0.7), of_seed(1, 0.5, "soba-diag")])
    assert table.columns[:3] == ("learner", "seeds", "error")
    assert [row[:3] for row in table.rows] == [("banditron", "3", "40.0±65.7%"), ("soba-diag", "1", "50.0±2.8%")]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert "seeds" not in comparison([of_seed(1)]).columns


def test_page_of_several_seeds_lists_the_seeds_and_each_run() -> None:
    text = Reader(page([of_seed(1), of_seed(2)])).text
    assert "Means over the seeds 1 and 2." in text
    assert "banditron, seed 1" in text
    assert "banditron, seed 2: --seed 2" in text
    assert "Means over" not in page([of_seed(1)])


def test_page_of_runs_with_different_settings_lists_the_differences() -> None:
    slow, fast = (
        run_report(settings={"delay": delay, "loss": 0.1}, data=data, changed=("delay",))
        for delay, data in (("fixed:1m", "optdigits"), ("fixed:1s", "other"))
    )
    text = Reader(page([slow, fast])).text
    assert "run data delay banditron data=optdigits delay=fixed:1m optdigits fixed:1m" in text
    assert "banditron data=other delay=fixed:1s: 1,000 events of other" in text
    assert "What differs" not in page([slow, run_report("soba-diag", settings=slow.settings)])


def test_page_lists_changed_settings_before_defaults() -> None:
    text = Reader(page([run_report(settings={"rate": 5.0, "loss": 0.25, "window": "10s"}, changed=("loss",))])).text
    before, _, after = text.partition("Settings with default values")
    assert "setting value loss 0.25" in before
    assert "setting value rate 5 window 10s" in after


def test_charts_mark_the_first_feedback_and_the_most_frequent_class() -> None:
    marked = replace(of_seed(1), first_feedback=120, constant_error_rate=0.9)
    found = charts([marked, replace(marked, learner="soba-diag")])
    assert found["progressive"].marks == [Mark("first feedback", 120.0)], "one mark for both learners"
    assert found["progressive"].levels == [Level("most frequent class", 0.9)]
    assert found["regret"].levels == [Level("most frequent class", 0.9, is_slope=True)]
    later = replace(marked, learner="soba-diag", first_feedback=300)
    assert charts([marked, later])["regret"].marks == [Mark("first feedback", 120.0, 0), Mark("", 300.0, 1)]


def test_last_point_of_the_regret_chart_equals_the_number_of_mistakes() -> None:
    report = run_report()
    assert charts([report])["regret"].lines[0].y[-1] == report.errors.mistakes


def test_identical_lines_are_merged() -> None:
    delays = Sketch({151: 1, 156: 2, 161: 1})
    reports = [replace(of_seed(1, learner=name), delay_counts=delays) for name in ("banditron", "soba-diag")]
    (line,) = charts(reports)["delays"].lines
    assert (line.number, line.label) == (None, "all"), "no learner's line has this colour"
    other = replace(reports[1], delay_counts=Sketch({160: 1}))
    drawn = charts([reports[0], other])["delays"]
    assert [line.label for line in drawn.lines] == ["banditron", "soba-diag"]
    assert drawn.marks == [Mark("window", 10_000.0)]
    assert "soba-diag: median 1.5 s, 99th percentile 1.5 s." in drawn.alt.replace("\N{NO-BREAK SPACE}", " ")


def test_distribution_of_delays_is_cumulative() -> None:
    (line,) = charts([replace(of_seed(1), delay_counts=Sketch({151: 1, 156: 2, 161: 1}))])["delays"].lines
    assert list(line.y) == [0.0, 0.25, 0.75, 1.0]
    assert line.x == pytest.approx([10 ** (place / 10) for place in range(30, 34)])  # ms; bucket 151 ends below 10**3.1


def test_exploration_and_latency_have_charts_only_if_they_are_known() -> None:
    known = replace(
        of_seed(1),
        exploration=ShareCurve((50, 1000), (0.5, 0.0)),
        latency_counts=LatencyCounts("decision", Sketch({1: 3, 6: 1})),
    )
    found = charts([known])
    assert found["exploration"].lines[0][2:4] == ([50, 1000], [0.5, 0.0])
    assert "the broker's clock" in found["latency-decision"].caption
    assert not {"exploration", "latency-decision", "latency-step"} & charts([of_seed(1)]).keys()


def test_chart_data_has_few_digits_and_no_html_elements() -> None:
    lines = [Line(0, "<a>", [1, 2], [1 / 3, float("nan")]), Line(1, "b", [1, 2], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])]
    chart = Chart("key", "t", "c", "a", Axis("x", "count"), Axis("y", "share"), lines)
    text = chart_json([chart])
    assert "<" not in text
    (read,) = json.loads(text)
    assert read["xs"] == [[1, 2]]
    assert read["lines"] == [
        {"number": 0, "label": "<a>", "x": 0, "y": [0.33333, None], "low": [], "high": []},
        {"number": 1, "label": "b", "x": 0, "y": [1.0, 2.0], "low": [0.5, 1.5], "high": [1.5, 2.5]},
    ]


def test_every_chart_has_a_figure_element() -> None:
    content = page([replace(of_seed(1), delay_counts=Sketch({151: 1}), first_feedback=3)])
    (text,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', content)
    figures = [attributes.get("data-chart") for attributes in Reader(content).all("figure")]
    assert [chart["key"] for chart in json.loads(text)] == figures == ["progressive", "windowed", "regret", "delays"]


def test_ledger_flow_shows_only_nonzero_counts() -> None:
    ledger = Ledger(
        contexts=1_010, context_malformed=10, decided=1_000, matched=950, expired=50, feedback=955, late=5
    )  # fmt: skip
    assert flow_words(ledger) == (
        "Of 1,010 contexts, 1,000 were decided: 950 matched, 50 expired. Unmatched among 955 feedback records: 5 late."
    )
    wide, narrow = ledger_flow(ledger, "key")
    assert (wide.size, narrow.size) == ("wide", "narrow")
    for drawing in (wide, narrow):
        reported = re.findall(r'class="n">([\d,]+)</tspan> ([a-z ]+)</text>', drawing.svg)
        assert {name: number for number, name in reported} == {
            "contexts": "1,010", "decided": "1,000", "malformed": "10", "matched": "950", "expired": "50",
            "late": "5", "feedback": "955",
        }  # fmt: skip
    heights = [float(px) for px in re.findall(r'width="10" height="([\d.]+)"', wide.svg)]
    assert 2.0 in heights, "the smallest flow is drawn with a visible height"
    assert heights[0] == pytest.approx(150 * 1_000 / 1_010, abs=0.1)
    assert ledger_flow(Ledger(), "key") == []


def test_labels_of_a_narrow_ledger_flow_do_not_overlap() -> None:
    ledger = Ledger(
        contexts=9_234_567, decided=9_234_000, context_duplicates=500, context_malformed=67, feedback=9_220_300,
        matched=9_210_000, expired=24_000, late=1_500, feedback_duplicates=8_000, mismatched=300, orphans_dropped=400,
    )  # fmt: skip
    narrow = ledger_flow(ledger, "key")[1].svg
    boxes = []
    for x, y, anchor, number, name in re.findall(_LABEL, narrow):
        width = 7.5 * len(number) + 6.8 * (1 + len(name))
        left = float(x) - (width if anchor == "end" else 0)
        boxes.append((left, left + width, float(y)))
    assert len(boxes) == 11
    assert all(0 <= left < right <= 350 for left, right, _ in boxes)
    for (left, right, y), (other_left, other_right, other_y) in combinations(boxes, 2):
        assert abs(y - other_y) >= 13 or right <= other_left or other_right <= left


_LABEL = r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)"><tspan class="n">([\d,]+)</tspan> ([a-z ]+)</text>'
