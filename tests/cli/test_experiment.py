"""`onebit experiment`."""

import csv
from pathlib import Path

import pytest

from onebit.experiments.definition import shipped
from stream.errors import ExitCode
from tests.cli.conftest import Onebit

DEFINITION = """
title = "Mine"
about = "What a delay costs here."
[[sweeps]]
name = "one"
data = ["mine", "reuters4"]
conditions = { delay = [0, 10] }
[[sweeps.learners]]
learner = "banditron"
parameters = { gamma = { powers_of = 2, start = -2, stop = -1 } }
[[figures]]
name = "errors"
title = "Errors"
sweeps = ["one"]
x = "delay"
best = "gamma"
[[tables]]
name = "errors"
title = "Errors, in %"
sweeps = ["one"]
by = ["delay"]
best = "gamma"
[sets.mine]
file = "mine.svm"
n_features = 2
title = "my rows"
get = "it is mine"
"""


@pytest.mark.slow
def test_experiment_file_produces_figures_tables_and_a_page(onebit: Onebit) -> None:
    Path("mine.svm").write_text("0 1:1\n1 2:1\n" * 30)
    Path("mine.toml").write_text(DEFINITION)
    ended = onebit("experiment", "run", "mine.toml", "--data-dir", ".", "--jobs", "1")
    assert ended.code == ExitCode.OK
    assert "skipped: reuters4 (Reuters4" in ended.err
    folder = Path("reports") / "experiments" / "mine"
    names = {path.name for path in folder.iterdir()}
    assert names >= {"README.md", "index.html", "rows.jsonl.gz", "errors.svg", "errors.png", "errors.csv", "errors.md"}
    page = (folder / "README.md").read_text()
    assert "![Errors](errors.svg)" in page
    assert "*one*, my rows: 4 runs of up to 60 events" in page
    assert "Omitted because its file is missing: Reuters4" in page
    html = (folder / "index.html").read_text()
    assert '<figure data-chart="figure-0-0">' in html
    assert "<b>one</b>, my rows: 4 runs of up to 60 events" in html
    assert '"label":"banditron, gamma 0.' in html
    with (folder / "errors.csv").open() as file:
        assert [row["delay"] for row in csv.DictReader(file)] == ["0", "10"]


def test_without_matplotlib_only_the_html_page_has_figures(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onebit.experiments.report.can_draw", lambda: False)
    Path("mine.svm").write_text("0 1:1\n1 2:1\n" * 30)
    Path("mine.toml").write_text(DEFINITION)
    assert onebit("experiment", "run", "mine.toml", "--data-dir", ".", "--jobs", "1").code == ExitCode.OK
    folder = Path("reports") / "experiments" / "mine"
    assert {path.suffix for path in folder.iterdir()} == {".md", ".html", ".gz", ".csv", ".json"}
    assert "errors.svg" not in (folder / "README.md").read_text()
    assert '<figure data-chart="figure-0-0">' in (folder / "index.html").read_text()


@pytest.mark.slow
def test_report_is_regenerated_from_stored_rows(onebit: Onebit) -> None:
    Path("mine.svm").write_text("0 1:1\n1 2:1\n" * 30)
    Path("mine.toml").write_text(DEFINITION)
    onebit("experiment", "run", "mine.toml", "--data-dir", ".", "--jobs", "1", "--events", "20")
    page = Path("reports/experiments/mine/README.md")
    first = page.read_text()
    page.unlink()
    Path("mine.svm").unlink()
    assert onebit("experiment", "report", "mine").code == ExitCode.OK
    assert page.read_text().split("## What")[0] == first.split("## What")[0]


def test_all_shipped_experiments_are_listed(onebit: Onebit) -> None:
    listed = onebit("experiment", "list").out
    assert all(name in listed for name in shipped())


def test_unknown_experiment_is_rejected_with_a_suggestion(onebit: Onebit) -> None:
    ended = onebit("experiment", "run", "soba-fig")
    assert ended.code == ExitCode.USAGE
    assert "unknown experiment 'soba-fig'" in ended.err
    assert "soba-fig2" in ended.err


def test_report_without_results_is_rejected(onebit: Onebit) -> None:
    ended = onebit("experiment", "report", "delay")
    assert ended.code == ExitCode.USAGE
    assert "onebit experiment run delay" in ended.err


def test_unknown_sweep_is_rejected(onebit: Onebit) -> None:
    ended = onebit("experiment", "run", "delay", "--sweep", "tales")
    assert ended.code == ExitCode.USAGE
    assert "tails" in ended.err


def test_each_sweep_is_announced_and_limited_to_its_number_of_events(onebit: Onebit) -> None:
    Path("mine.svm").write_text("0 1:1\n1 2:1\n" * 30)
    short = """
[[sweeps]]
name = "short"
data = ["mine"]
events = 10
learners = [{ learner = "banditron" }]
[[figures]]
"""
    Path("mine.toml").write_text(DEFINITION.replace("[[figures]]", short, 1))
    ended = onebit("experiment", "run", "mine.toml", "--data-dir", ".", "--jobs", "1", "--events", "20")
    assert "mine one: 0 of 4 runs" in ended.err
    assert "mine short: 0 of 1 runs" in ended.err
    page = (Path("reports") / "experiments" / "mine" / "README.md").read_text()
    assert "*one*, my rows: 4 runs of up to 20 events" in page
    assert "*short*, my rows: 1 runs of up to 10 events" in page
    onebit("experiment", "run", "mine.toml", "--data-dir", ".", "--jobs", "1", "--sweep", "short", "--events", "20")
    assert "*short*, my rows: 1 runs of up to 20 events" in (Path("reports/experiments/mine") / "README.md").read_text()


def test_every_name_is_checked_before_the_first_experiment_runs(onebit: Onebit) -> None:
    ended = onebit("experiment", "run", "delay", "soba-fig", "--events", "10")
    assert ended.code == ExitCode.USAGE
    assert "unknown experiment 'soba-fig'" in ended.err
    assert not Path("reports").exists()
