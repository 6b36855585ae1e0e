import json
from pathlib import Path
from typing import Any

import pytest

from onebit.experiments.definition import Comparison, Figure
from onebit.experiments.measure import Row
from onebit.experiments.results import best_of, compare, field_of, panels_of, sentence, table_of
from stream.reporting.experiment_figures import Axis, Line, Panel, save_figure

VERSIONS = {"onebit": "0", "python": "3", "numpy": "2", "numba": "0", "machine": "x"}


def row(learner: str = "soba", error: float = 0.5, seed: int = 1, fold: int = 0, **given: Any) -> Row:
    parameters = {name: value for name, value in given.items() if name not in ("delay", "data", "late", "on_expiry")}
    conditions = {name: given[name] for name in ("delay", "late", "on_expiry") if name in given}
    return Row(
        key=f"{learner}{error}{seed}{fold}{given}", sweep="s", data=given.get("data", "digits"), learner=learner,
        title=learner, parameters=json.dumps(parameters), conditions=json.dumps(conditions), seed=seed, fold=fold,
        events=100, error=error, error_last_tenth=error, error_greedy=error, explored=0.1, updates=1, matched=100,
        expired=0, late=0, seconds=0.5, curve_events=[10, 100], curve_mistakes=[5, int(100 * error)],
        curve_explored=[1, 10], **VERSIONS,
    )  # fmt: skip


def figure(**given: Any) -> Figure:
    return Figure(**{"name": "f", "title": "F", "sweeps": ["s"], "x": "gamma", **given})


def comparison(**given: Any) -> Comparison:
    return Comparison(**{"name": "t", "title": "T", "sweeps": ["s"], **given})


def title(name: str) -> str:
    return name.upper()


def test_line_shows_means_over_seeds_and_is_constant_for_a_learner_without_the_parameter() -> None:
    rows = [row(error=e, seed=s, gamma=g) for s, e, g in ((1, 0.2, 0.1), (2, 0.4, 0.1), (1, 0.5, 1.0), (2, 0.5, 1.0))]
    (panel,) = panels_of(figure(), [*rows, row("arow", 0.1)], title)
    soba, arow = panel.lines
    assert panel.title == "DIGITS"
    assert (soba.x, soba.y) == ([0.1, 1.0], [pytest.approx(0.3), 0.5])
    assert soba.spread == [pytest.approx(0.2 / 2**0.5), 0.0]
    assert arow == Line("arow", None, [0.1], [0.0])


def test_learning_curve_uses_the_best_parameter() -> None:
    rows = [row(error=0.4, gamma=0.0078125), row(error=0.5, gamma=1.0)]
    (panel,) = panels_of(figure(x="examples", best="gamma"), rows, title)
    assert panel.lines == [Line("soba, gamma 2^-7", [10, 100], [0.5, 0.4], [0.0, 0.0])]


def test_panel_selects_rows_by_where_and_draws_one_line_per_value() -> None:
    rows = [row(drift=drift, delay=delay) for drift in ("off", "class") for delay in (0, 9)]
    (panel,) = panels_of(figure(x="delay", lines=["drift"], where={"delay": 9}), rows, title)
    assert [(line.label, line.x) for line in panel.lines] == [("soba, drift off", [9]), ("soba, drift class", [9])]


def test_filter_on_a_parameter_keeps_learners_without_this_parameter() -> None:
    rows = [row(margin="feedback"), row(margin="decision"), row("late-ucb")]
    (panel,) = panels_of(figure(x="delay", where={"margin": "decision"}), rows, title)
    assert [line.label for line in panel.lines] == ["soba", "late-ucb"]


def test_field_of_a_row_can_be_a_parameter_a_condition_or_a_policy() -> None:
    one = row(u_norm_sq="0.1 squared_norm", exploration="--softmax -l 1", delay=3, late="correct", on_expiry="negative")
    assert field_of(one, "exploration") == "--softmax -l 1"
    assert [field_of(one, name) for name in ("u_norm_sq", "delay", "loss", "policy", "eta", "seed")] == [
        0.1, 3, 0.0, "correct", None, 1,
    ]  # fmt: skip
    assert [field_of(each, "policy") for each in (row(), row(on_expiry="negative"))] == ["drop", "negative"]


def test_best_parameter_has_the_smallest_mean_error() -> None:
    rows = [row(error=e, gamma=g) for e, g in ((0.1, 0.5), (0.9, 0.5), (0.3, 0.25), (0.4, 0.25))]
    found, best = best_of(rows, "gamma")
    assert (best, [each.error for each in found]) == (0.25, [0.3, 0.4])


PAPER = [{"data": "digits", "learner": "soba", "value": 20.0, "because": "the moon was full"}]


def test_table_gives_reasons_for_differences_from_the_papers_results() -> None:
    table = comparison(paper=PAPER, paper_events=1_000)
    (line,) = compare(table, [row(error=0.3, seed=1), row(error=0.32, seed=2)])
    assert (line.ours, line.se, line.difference) == pytest.approx((31.0, 1.0, 11.0))
    why = "the moon was full; the paper used 1,000 events, this run 100"
    assert table_of(table, [line], lambda name: "").rows == (
        ("digits", "soba", "100", "2", "31.00 ± 1.00", "20", "+11.00", why),
    )
    assert sentence(line, table, "half of the rows") == "the moon was full; the data: half of the rows"


def test_no_reason_is_given_for_a_difference_within_tolerance_or_chance() -> None:
    near = compare(comparison(paper=PAPER), [row(error=0.21)])
    by_chance = compare(comparison(paper=PAPER), [row(error=0.1, seed=1), row(error=0.5, seed=2)])
    assert [sentence(line, comparison(paper=PAPER), "") for line in (*near, *by_chance)] == ["", ""]


def test_reason_for_an_unexplained_difference_is_unknown() -> None:
    table = comparison(paper=[{"data": "digits", "learner": "soba", "value": 20.0}])
    assert sentence(compare(table, [row(error=0.5)])[0], table, "") == "reason unknown"


def test_only_a_significantly_different_learner_is_marked() -> None:
    confidit = [0.2 + 0.007 * (fold % 4) for fold in range(10)]
    better = [error + 0.1 + 0.01 * (fold % 3) for fold, error in enumerate(confidit)]
    like_it = [error + 0.01 * (-1) ** fold for fold, error in enumerate(confidit)]
    errors = {"soba": better, "confidit": confidit, "arow": like_it}
    rows = [row(name, error, fold=fold) for name, of_name in errors.items() for fold, error in enumerate(of_name)]
    lines = compare(comparison(marks="confidit"), rows)
    assert {line.learner: line.mark for line in lines} == {"soba": "*", "confidit": "", "arow": ""}


def test_figures_are_reproducible_svg_and_png_with_a_text_description(tmp_path: Path) -> None:
    panels = [Panel("digits", [Line("soba", [1, 10], [0.5, 0.25], [0.1, 0.0]), Line("arow", None, [0.1], [0.0])])]
    axes = Axis("delay", "log"), Axis("error rate")
    svg, png = save_figure(tmp_path, "one", "A title", panels, *axes)
    assert png.read_bytes()[:4] == b"\x89PNG"
    text = svg.read_text()
    assert "error rate. digits: soba from 0.5 to 0.25; arow from 0.1 to 0.1." in text
    assert save_figure(tmp_path, "two", "A title", panels, *axes)[0].read_text() == text


def test_axis_can_have_text_values(tmp_path: Path) -> None:
    panels = [Panel("digits", [Line("soba", ["drop", "negative"], [0.5, 0.25], [0.0, 0.0])])]
    svg, _ = save_figure(tmp_path, "words", "Words", panels, Axis("policy"), Axis("error rate", "log"))
    assert "negative" in svg.read_text()
