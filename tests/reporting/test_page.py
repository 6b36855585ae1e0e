"""The HTML run report is complete, self-contained, reproducible and accessible."""

import base64
import hashlib
import math
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from stream.estimating.intervals import Interval
from stream.estimating.live_results import (
    ArmComparison,
    ArmCount,
    Bounds,
    ChallengerComparison,
    ChallengerEstimate,
    Flag,
    LiveEstimate,
    LiveEstimates,
    LivePoint,
)
from stream.measures.errors import ErrorCurve
from stream.measures.latencies import Delays
from stream.reporting import tables
from stream.reporting.page import page, title_of
from stream.reporting.pages import INDEX, add_page, write_page
from stream.reporting.runs import LearnerRun
from stream.wire.ledger import Ledger

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Collects a page's elements and text, and checks that the page closes every element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        """The page's text, with a space between elements."""
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]


def run_report(learner: str = "banditron", errors: tuple[float, float] = (0.9, 0.1), **changes: Any) -> LearnerRun:
    events = changes.get("events", 1000)
    rates = np.linspace(*errors, events)
    wrong = np.random.default_rng(len(learner)).random(events) < rates
    curve = ErrorCurve()
    for mistake in wrong.tolist():
        curve.add(mistake, mistake)
    fields: dict[str, Any] = {
        "data": "optdigits",
        "learner": learner,
        "parameters": {"gamma": 0.05},
        "seed": 1,
        "events": events,
        "classes": 10,
        "features": 64,
        "ledger": Ledger(
            contexts=events,
            decided=events,
            feedback=events + 3,
            matched=events - 20,
            expired=20,
            late=11,
            feedback_duplicates=12,
            conflicts=2,
        ),
        "errors": curve.summary(),
        "updates": 80,
        "state_sha256": "ab" * 32,
        "virtual_s": 60.0,
        "wall_s": 0.5,
        "settings": {
            "rate": 1000.0,
            "delay": "lognormal:10s,1.0",
            "loss": 0.02,
            "duplicates": 0.01,
            "command": "onebit run --seed 1",
        },
        "delays": Delays(9_900.0, 36_000.0, 103_000.0, 250_000.0),
    }
    return LearnerRun(**(fields | changes))


THREE_REPORTS = [run_report("perceptron", (0.3, 0.05), full_information=True), run_report(), run_report("soba-diag")]


def test_page_summarizes_the_run_in_one_sentence() -> None:
    assert (
        "1,000 events of optdigits (10 classes, 64 features) at 1,000 events/s, feedback after 9.9 s (median; "
        "99th percentile 1 min 43 s; drawn from lognormal:10s,1.0), 2% lost, 1% sent twice."
    ) in Reader(page(THREE_REPORTS)).text


def test_page_of_a_learner_for_actions_counts_actions() -> None:
    of_actions = run_report("joint-ucb", parameters={"context": 10}, classes=15, features=325)
    assert "1,000 events of optdigits (15 actions, 325 features)" in Reader(page([of_actions])).text


@pytest.mark.parametrize(
    ("reports", "title"),
    [
        (THREE_REPORTS, "Three learners on optdigits, bits 10 s late"),
        ([run_report("soba", settings={"delay": "none"})], "soba on optdigits, bits without delay"),
        ([run_report("soba", settings={})], "soba on optdigits, bits 9.9 s late"),
        ([run_report("a"), run_report("b", settings={"delay": "none"})], "a and b on optdigits"),
    ],
)
def test_title_names_data_set_and_delay(reports: list[LearnerRun], title: str) -> None:
    assert title_of(reports) == title


def test_page_describes_runs_without_delay_and_with_unknown_delay() -> None:
    assert "immediate feedback" in page([run_report(settings={"delay": "none"})])
    assert "feedback after a delay drawn from fixed:1s" in page(
        [run_report(settings={"delay": "fixed:1s"}, delays=None)]
    )
    assert "feedback after a delay." in page([run_report(settings={}, delays=None)])


@pytest.mark.parametrize(("speed", "words"), [("60x", " at 60x the recorded pace"), ("max", " sent all at once")])
def test_page_of_a_replay_at_the_recorded_pace_shows_no_rate(speed: str, words: str) -> None:
    text = Reader(page([run_report(settings={"rate": 100.0, "speed": speed})])).text.replace("\u00a0", " ")
    assert words in text
    assert "at 100 events/s" not in text
    assert "at 100 events/s" in Reader(page([run_report(settings={"rate": 100.0, "speed": None})])).text.replace(
        "\u00a0", " "
    )


def test_page_does_not_rank_learners_that_play_the_actions_of_a_log() -> None:
    text = Reader(page([run_report(settings={"play": "logged"}), run_report("banditron")])).text
    assert "smallest error" not in text
    assert "The log" in text


def test_page_names_the_best_learner_among_those_with_one_bit_feedback() -> None:
    text = Reader(page(THREE_REPORTS)).text
    assert "has the smallest error of the learners with one-bit feedback" in text
    assert "perceptron , which learns from the true class, has an error of" in text
    assert "perceptron learns from the true class, as a baseline" in text


def test_page_shows_the_results_settings_parameters_and_command() -> None:
    text = Reader(page(THREE_REPORTS)).text
    for expected in ("last fifth", "soba-diag", "980", "ab" * 32, "onebit run --seed 1", "gamma = 0.05", "loss 0.02"):
        assert expected in text


def test_page_and_json_show_the_number_of_drift_alarms() -> None:
    alarmed = run_report("stack-igw", drift_alarms=1_207)
    assert "1,207" in Reader(page([alarmed])).text
    assert "1,207" not in Reader(page([run_report("stack-igw")])).text
    assert [report.to_dict()["drift_alarms"] for report in (alarmed, run_report())] == [1_207, 0]


def test_page_loads_no_resources_and_runs_only_its_own_script() -> None:
    content = page(THREE_REPORTS)
    found = Reader(content)
    assert not {tag for tag, _ in found.elements} & {"link", "iframe", "img", "object", "embed", "base"}
    assert [attributes.get("type") for attributes in found.all("script")] == [
        "application/json",
        "application/gzip",
        None,
    ]
    assert not any({"src", "onload", "onclick"} & attributes.keys() for _, attributes in found.elements)
    markup = re.sub(r"<script.*?</script>", "", content, flags=re.DOTALL)
    assert "//" not in markup
    assert "@import" not in markup
    assert all(match.startswith("#") for match in re.findall(r"url\(([^)]*)\)", markup))
    assert all(str(a["href"]).startswith("#") for _, a in found.elements if "href" in a)


def test_content_security_policy_allows_only_the_pages_script() -> None:
    content = page(THREE_REPORTS)
    policy = Reader(content).all("meta")[2]["content"]
    (run,) = re.findall(r"<script>(.*?)</script>", content, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(run.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert "Copyright (c) 2022 Leon Sorokin" in run


def test_element_ids_are_unique_and_every_reference_has_a_target() -> None:
    content = page(THREE_REPORTS)
    identifiers = re.findall(r'\bid="([^"]*)"', content)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]*)"', content) + re.findall(r"url\(#([^)]*)\)", content)) <= set(identifiers)


def test_page_is_reproducible() -> None:
    assert page(THREE_REPORTS) == page(THREE_REPORTS)


def test_external_text_is_escaped_everywhere() -> None:
    hostile = "<script>alert('x')</script>&\"$y $"
    content = page(
        [
            run_report(
                hostile,
                data=hostile,
                parameters={hostile: hostile},
                settings={hostile: {hostile: [hostile]}, "delay": hostile, "command": hostile},
                state_sha256=hostile,
            ),
            run_report(hostile, parameters={hostile: 1}, settings={"command": "other"}),
        ]
    )
    assert len(Reader(content).all("script")) == 3
    assert "alert('x')</script>" not in content


def test_every_figure_has_a_text_description_with_final_values() -> None:
    content = page(THREE_REPORTS)
    reported = re.findall(r'<p class="alt">(.*?)</p>', content)
    assert len(reported) == len(Reader(content).all("figure")) == 3
    for label in reported[:2]:
        assert re.search(r"perceptron [\d.]+%; banditron [\d.]+%; soba-diag [\d.]+%", label)
    assert re.search(r"perceptron \d+; banditron \d+; soba-diag \d+\.$", reported[2])
    ledgers = [attributes["aria-label"] for attributes in Reader(content).all("svg")]
    assert ledgers == 2 * [
        "Of 1,000 contexts, 1,000 were decided: 980 matched, 20 expired. Unmatched among 1,003 feedback records: "
        "11 late, 12 duplicate."
    ]


def test_every_table_has_a_caption_and_headers_with_a_scope() -> None:
    found = Reader(page(THREE_REPORTS))
    assert len(found.all("caption")) == len(found.all("table")) == 3
    assert {attributes.get("scope") for attributes in found.all("th")} == {"col", "row"}


def test_page_supports_small_screens_and_a_dark_theme() -> None:
    content = page(THREE_REPORTS)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in content
    assert "@media screen and (prefers-color-scheme: dark)" in content
    assert '<html lang="en">' in content


def palettes(content: str) -> list[dict[str, str]]:
    """The colours in the light theme and in the dark theme."""
    blocks = re.findall(r":root(?::not\(\.print\))? \{(.*?)\}", content, flags=re.DOTALL)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks]


def contrast(one: str, other: str) -> float:
    """The contrast ratio between two colours according to WCAG 2, from 1 to 21."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_has_sufficient_contrast_in_both_themes() -> None:
    light, dark = palettes(page(THREE_REPORTS))
    assert light.keys() == dark.keys()
    for palette in (light, dark):
        for name in palette.keys() - {"paper", "card", "line"}:
            assert contrast(palette[name], palette["paper"]) >= 4.5, name
            assert contrast(palette[name], palette["card"]) >= 4.5 or name.startswith("series"), name


def test_balanced_ledger_is_shown_as_equations_with_check_marks() -> None:
    text = Reader(page([run_report()])).text
    assert "1,000 decided = 0 pending + 980 matched + 20 expired ✓ adds up" in text
    assert "Of the 12 duplicate feedback records, 2 contradicted the first" in text
    assert "✗" not in text


def test_unbalanced_ledger_is_marked_with_the_difference() -> None:
    wrong = run_report()
    wrong = run_report(ledger=wrong.ledger._replace(late=12))
    text = Reader(page([wrong, run_report("soba-diag")])).text
    assert "✗ off by -1" in text
    assert "The ledger of banditron does not balance." in text


def test_page_shows_misplaced_records_and_warnings() -> None:
    misplaced = run_report().ledger._replace(contexts_misplaced=3, feedback_misplaced=4)
    text = Reader(page([run_report(ledger=misplaced, warnings=("too <late>",))])).text
    assert "7 records whose key belongs to a different partition" in text
    assert "Note: too <late>." in text
    assert "Note:" not in page(THREE_REPORTS)


def test_page_has_one_ledger_table_for_learners_with_equal_ledgers() -> None:
    assert page(THREE_REPORTS).count('class="ledger"') == 1


def test_different_settings_are_listed_per_run() -> None:
    reports = [run_report("a", settings={"window": 1, "command": "one"}), run_report("b", settings={"command": "two"})]
    text = Reader(page(reports)).text
    assert "a: 1; b: –" in text
    assert "a: one b: two" in text


@pytest.mark.parametrize("events", [1, 2, 10, 11])
@pytest.mark.parametrize("errors", [(0.0, 0.0), (1.0, 1.0)])
def test_page_of_a_short_run_has_all_figures(events: int, errors: tuple[float, float]) -> None:
    assert len(Reader(page([run_report(events=events, errors=errors)])).all("figure")) == 3


def test_page_of_a_run_without_decisions_has_no_figures() -> None:
    content = page([run_report(ledger=Ledger(), events=0, wall_s=0.0, delays=None)])
    assert "Nothing was decided." in content
    assert Reader(content).all("figure") == []


def test_small_errors_are_drawn_on_logarithmic_axes() -> None:
    drawn = page([run_report("good", (0.5, 0.0), events=20_000), run_report("perfect", (0.0, 0.0), events=20_000)])
    assert '"scale":"log"' in drawn
    assert '"scale":"log"' not in page(THREE_REPORTS)


def test_page_without_reports_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one run; got none"):
        page([])


AT = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)


def test_written_page_replaces_the_old_one_and_leaves_no_other_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.html"
    assert write_page(path, THREE_REPORTS, AT) == path
    assert write_page(path, THREE_REPORTS[:1], AT) == path
    assert Reader(path.read_text(encoding="utf-8")).text == Reader(page(THREE_REPORTS[:1])).text
    assert list(path.parent.iterdir()) == [path]


def test_old_page_remains_if_writing_the_new_page_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.html"
    path.write_text("old", encoding="utf-8")

    def full(self: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_page(path, THREE_REPORTS, AT)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text(encoding="utf-8") == "old"


def test_each_run_has_a_page_and_the_index_lists_the_newest_page_first(tmp_path: Path) -> None:
    hostile = run_report("<b>&\"'", data="dir/<i>.svm", ledger=Ledger(contexts=1))
    paths = [
        add_page(tmp_path, THREE_REPORTS, AT),
        add_page(tmp_path, THREE_REPORTS, AT),
        add_page(tmp_path, [hostile], AT + timedelta(seconds=1)),
    ]
    assert [path.name for path in paths] == [
        "20260301-123005-optdigits-3-learners.html",
        "20260301-123005-optdigits-3-learners-2.html",
        "20260301-123006-i-svm-b.html",
    ]
    index = Reader((tmp_path / INDEX).read_text(encoding="utf-8"))
    assert [link["href"] for link in index.all("a")] == [paths[2].name, paths[0].name, paths[1].name]
    assert "<b>&\"' " in index.text
    assert "✗ does not add up" in index.text
    assert index.text.count("✓ adds up") == 2
    paths[0].unlink()
    add_page(tmp_path, THREE_REPORTS, AT + timedelta(seconds=2))
    assert paths[0].name not in (tmp_path / INDEX).read_text(encoding="utf-8")


def test_other_files_in_the_folder_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_bytes(b"<p>\xff something else</p>")
    (tmp_path / "notes.txt").write_text("kept", encoding="utf-8")
    path = add_page(tmp_path, THREE_REPORTS, AT)
    assert [link["href"] for link in Reader((tmp_path / INDEX).read_text(encoding="utf-8")).all("a")] == [path.name]
    assert (tmp_path / "other.html").read_bytes() == b"<p>\xff something else</p>"


def test_line_breaks_are_possible_between_parameters() -> None:
    many = {f"parameter_{number}": "theory" for number in range(12)}
    content = page([run_report(parameters=many)])
    assert "<span>parameter_0 = theory,</span> <span>parameter_1 = theory,</span>" in content
    assert "<span>parameter_11 = theory</span></td>" in content


def test_unknown_numbers_are_shown_as_dashes() -> None:
    assert tables.number_text(math.nan) == "–"


def test_ledger_of_a_replayed_log_includes_unmatched_decisions() -> None:
    ledger = run_report().ledger
    of_log = ledger._replace(unmatched=7, contexts=ledger.contexts + 7, decided=ledger.decided + 7)
    text = Reader(page([run_report(ledger=of_log)])).text
    assert "1,007 decided = 0 pending + 980 matched + 20 expired + 7 unmatched ✓ adds up" in text


def test_page_shows_requested_policy_estimates() -> None:
    one = LiveEstimate("ips", 0.25, Interval(0.125, 0.375), Interval(0.0625, 0.5))
    path = (LivePoint(500, 0.2, 0.0, 0.75, 0.15), LivePoint(1000, 0.25, 0.0625, 0.5, 0.1))
    flag = Flag("outcome-missing", "5 of 1,005 settled decisions have no outcome")
    found = LiveEstimates(1000, 5, 0, 200.0, 10.0, 0.1, (flag,), (one, LiveEstimate("snips", None, None, None)), path)
    content = page([run_report("late-ucb", estimate=found), run_report("soba", estimate=found), run_report()])
    text = Reader(content).text
    assert "late-ucb ips 1,000 0.25000 0.12500 to 0.37500 0.06250 to 0.50000" in text
    assert "soba snips 1,000 – – –" in text
    assert "outcome-missing, soba and late-ucb: 5 of 1,005 settled decisions have no outcome." in text
    at_the_end = "At the end: soba 25.0%; late-ucb 25.0%; logged 10.0%."
    assert content.count(at_the_end) == 2, "once in the text and once in the script's data"
    assert "would have earned" not in page([run_report()])


def test_estimate_without_settled_decisions_has_no_figure() -> None:
    nothing = LiveEstimates(0, 0, 7, 0.0, 0.0, math.nan, (), (), ())
    assert "The estimate over the decisions" not in page([run_report(estimate=nothing)])


COMPARED = ArmComparison(
    0.05, ArmCount(950, 570, 12), ArmCount(50, 20, 3), Bounds(0.0625, 0.375), shares_differ=False, waiting=7
)


def test_page_compares_each_learner_with_its_holdout() -> None:
    begun = replace(COMPARED, learner=ArmCount(0, 0, 0), holdout=ArmCount(0, 0, 0), waiting=3)
    text = Reader(page([run_report("soba", holdout=COMPARED), run_report("late-ucb", holdout=begun)])).text
    assert "soba +0.200 +0.062 to +0.375 570 of 950 = 0.600 20 of 50 = 0.400" in text
    assert "late-ucb – – – –" in text
    assert "Learner and holdout" not in Reader(page(THREE_REPORTS)).text


CHALLENGED = ChallengerComparison(
    "banditron", 1_000, 0.5, 3, 7,
    (ChallengerEstimate("late-ucb", 0.75, 0.7, Bounds(0.5, 0.875), Bounds(-0.125, 0.25)),),
)  # fmt: skip


def test_page_shows_the_estimates_of_the_challengers() -> None:
    text = Reader(page([run_report("banditron", challengers=CHALLENGED)])).text
    assert "late-ucb -0.125 to +0.250 0.750 0.500 to 0.875 banditron 0.500" in text
    assert "Champion and challengers" not in Reader(page(THREE_REPORTS)).text


@pytest.mark.parametrize("shares_differ", [False, True])
def test_page_warns_if_the_holdout_share_differs_from_the_setting(shares_differ: bool) -> None:
    reader = Reader(page([run_report("soba", holdout=replace(COMPARED, shares_differ=shares_differ))]))
    warnings = [element for element in reader.all("p") if element.get("class") == "warning"]
    assert len(warnings) == shares_differ
