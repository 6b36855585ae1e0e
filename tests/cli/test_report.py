"""`onebit run --seeds`, and `onebit report` with saved run pages."""

from pathlib import Path

import orjson
import pytest

from stream.errors import ExitCode
from stream.reporting.runs import read_runs
from tests.cli.conftest import Onebit

RUN = ("run", "--learner", "banditron", "--events", "60", "--delay", "fixed:100ms")


@pytest.mark.slow
def test_parallel_seeds_equal_single_runs(onebit: Onebit) -> None:
    run = (*RUN, "--learner", "perceptron", "--data", "synsep", "--json", "--no-report")
    together = orjson.loads(onebit(*run, "--seed", "3", "--seeds", "2", "--jobs", "2").out)["runs"]
    alone = [orjson.loads(onebit(*run, "--seed", seed).out)["runs"] for seed in ("3", "4")]
    in_order = [alone[0][0], alone[1][0], alone[0][1], alone[1][1]]
    assert [(run["learner"], run["seed"]) for run in together] == [
        ("banditron", 3), ("banditron", 4), ("perceptron", 3), ("perceptron", 4)
    ]  # fmt: skip
    for report in (*together, *in_order):
        del report["wall_s"], report["events_per_s"], report["settings"]["command"]
    assert together == in_order
    assert together[0]["state_sha256"] != together[1]["state_sha256"], "rows and draws depend on the seed"


def test_seeds_on_kafka_are_rejected(onebit: Onebit) -> None:
    ended = onebit(*RUN, "--kafka", "--seeds", "2")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert "--seeds 2 " in ended.err
    assert "--kafka" in ended.err


def test_report_compares_saved_runs(onebit: Onebit) -> None:
    onebit(*RUN, "--report", "slow.html")
    onebit(*RUN, "--report", "fast.html", "--delay", "none", "--seeds", "2")
    Path("fast.json").write_text(onebit("report", "fast.html", "--json").out)
    ended = onebit("report", "slow.html", "fast.json")
    assert ended.code == ExitCode.OK
    assert {"banditron", "delay=none"} <= set(ended.out.split()), "long names are wrapped"
    (page,) = (path for path in Path("reports").glob("*.html") if path.name != "index.html")
    assert str(page) in ended.out.replace("\n", "")
    reports = read_runs(page)
    assert reports == [*read_runs(Path("slow.html")), *read_runs(Path("fast.html"))]
    assert [report.settings["delay"] for report in reports] == ["fixed:100ms", "none", "none"]
    content = page.read_text(encoding="utf-8")
    assert '<th scope="row">banditron delay=fixed:100ms</th><td>0</td><td>fixed:100ms</td>' in content
    assert page.name in (page.parent / "index.html").read_text(encoding="utf-8")


def test_saved_run_has_versions_and_changed_settings(onebit: Onebit) -> None:
    onebit(*RUN, "--report", "page.html")
    (report,) = read_runs(Path("page.html"))
    assert set(report.changed) == {"events", "learner", "delay"}
    assert report.versions.keys() == {"onebit", "python", "numpy", "numba", "machine"}
    assert report.first_feedback == 11, "one event per 10 ms, and a delay of 100 ms"
    assert report.delay_counts is not None
    assert report.delay_counts.size == report.ledger.matched == 60
    assert report.latency_counts is not None
    assert report.latency_counts.of == "step"
    assert report.exploration.decided[-1] == 60


def test_file_without_runs_is_rejected(onebit: Onebit) -> None:
    Path("other.html").write_text("<p>no run</p>")
    ended = onebit("report", "other.html")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert "other.html: expected a run's page or its JSON file" in ended.err


def test_report_and_no_report_flags_are_rejected_together(onebit: Onebit) -> None:
    assert onebit(*RUN, "--report", "x.html", "--no-report").code == ExitCode.USAGE
