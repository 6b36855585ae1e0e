"""HTML page that compares runs: settings, error curves, ledger, and commands.

The page is one self-contained file with interactive charts, in light and dark mode. The same reports produce the same
bytes. This module contains the text; `templates/` contains the layout.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from stream.randomness.delays import parse_delay
from stream.reporting.charts import Chart, chart_json, script
from stream.reporting.ledger_flow import Drawing, ledger_flow
from stream.reporting.live_results import ARM_COLUMNS, CHALLENGER_COLUMNS, arm_cells, challenger_rows, counted
from stream.reporting.run_charts import error_charts, time_charts
from stream.reporting.runs import LearnerRun, packed_runs
from stream.reporting.tables import (
    SAID_ELSEWHERE,
    Series,
    Table,
    between,
    by_error,
    by_run,
    comparison,
    duration,
    is_number,
    labels,
    listed,
    number_text,
    percent,
    rate,
    series_of,
    shared,
    unbroken,
    value_text,
)
from stream.wire.ledger import IDENTITIES, MISPLACED_REMEDY, Ledger
from stream.wire.rewards import BITS

if TYPE_CHECKING:
    from jinja2 import Environment


def page(reports: Sequence[LearnerRun], entry: str = "") -> str:
    """Return the page, which also contains the runs in compressed form; see `packed_runs`.

    Args:
        reports: Runs over one or more streams.
        entry: Entry for the page index, stored in the page's head.

    Raises:
        ValueError: there are no reports.
    """
    if not reports:
        raise ValueError("writing a report: expected at least one run; got none")
    found = by_error(series_of(reports))
    names = labels([series.first for series in found])
    run_names, runs = zip(*_named_runs(names, found), strict=True)
    errors, times = error_charts(names, found), time_charts(names, found)
    changed, defaults = _settings(names, found)
    earned = _earned(run_names, runs)
    return (
        environment()
        .get_template("page.html")
        .render(
            entry=entry,
            title=title_of(reports),
            best=_best(names, found),
            unbalanced=listed([name for name, run in zip(run_names, runs, strict=True) if not run.ok]),
            streams=_streams(names, found),
            comparison=comparison(reports),
            seeds=_seeds(names, found),
            baseline=_baseline(names, found),
            differences=_differences(names, found),
            warnings=list(dict.fromkeys(warning for report in reports for warning in report.warnings)),
            errors=errors,
            charts_of="Error" if any(series.first.graded is None for series in found) else "Mean reward",
            times=times,
            earned=earned,
            holdout=_holdout(run_names, runs),
            challengers=_challengers(run_names, runs),
            accounts=_accounts(run_names, runs),
            runs=_runs(run_names, runs),
            changed=changed,
            defaults=defaults,
            commands=_commands(run_names, runs),
            versions=_versions(names, found),
            glossary=_GLOSSARY,
            script=script(),
            charts=chart_json([*errors, *times, *([] if earned is None else earned.charts)]),
            runs_packed=packed_runs(reports),
        )
    )


def _named_runs(names: Sequence[str], found: Sequence[Series]) -> list[tuple[str, LearnerRun]]:
    """Return each run with a name, which includes the seed if its series has several runs."""
    return [
        (f"{name}, seed {run.seed}" if len(series.runs) > 1 else name, run)
        for name, series in zip(names, found, strict=True)
        for run in series.runs
    ]


@cache
def environment() -> "Environment":
    """Return the template environment, with autoescaping. Pages have no script by default."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("stream.reporting"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    made.globals["script"] = None
    return made


def title_of(reports: Sequence[LearnerRun]) -> str:
    """Return the headline: learners, data and delay."""
    learners = list(dict.fromkeys(report.learner for report in reports))
    many = _NUMBERS[len(learners)] if len(learners) < len(_NUMBERS) else str(len(learners))
    names = f"{many} learners" if len(learners) > 2 else listed(learners)
    late = list(dict.fromkeys(map(_lateness, reports)))
    title = f"{names} on {shared(report.data for report in reports)}"
    return f"{title}, bits {late[0]}" if len(late) == 1 and late[0] else title


_NUMBERS = ("", "", "", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


def _lateness(report: LearnerRun) -> str:
    """Describe the median feedback delay: the distribution's median or, for a log, the measured one."""
    law = str(report.settings.get("delay", "")).strip()
    if law == "none":
        return "without delay"
    try:
        median_ms: float = parse_delay(law).quantile_ms(0.5)
    except (OSError, ValueError):
        if report.delays is None:
            return ""
        median_ms = report.delays.median_ms
    return f"{duration(median_ms / 1000).replace('.0 s', ' s')} late"


# Descriptions of the runs.


class _Stream(NamedTuple):
    """A description of events and feedback. `of` lists the described runs, and is empty if all runs are described."""

    of: str
    words: str


def _streams(names: Sequence[str], found: Sequence[Series]) -> list[_Stream]:
    """Return a description for each group of runs with the same events and feedback."""
    of: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for name, series in zip(names, found, strict=True):
        run = series.first
        key = str(
            (
                run.data,
                run.events,
                *(run.settings.get(each) for each in ("rate", "speed", "delay", "loss", "duplicates")),
            )
        )
        of.setdefault(key, []).append(name)
        words.setdefault(key, _summary(run))
    return [_Stream(listed(of[key]) if len(of) > 1 else "", words[key]) for key in of]


def _summary(report: LearnerRun) -> str:
    settings = report.settings
    choices = f"{report.classes:,} {'actions' if report.has_actions else 'classes'}"
    stream = f"{report.events:,} events of {report.data} ({choices}, {report.features:,} features)"
    rate, speed = settings.get("rate"), settings.get("speed")
    if isinstance(speed, str):  # replaces the rate
        stream += " sent all at once" if speed == "max" else f" at {speed} the recorded pace"
    elif is_number(rate):
        stream += f" at {number_text(rate)} events/s"
    clauses = [stream, _delay_clause(report)]
    for key, words in (("loss", "lost"), ("duplicates", "sent twice")):
        share = settings.get(key)
        if is_number(share):
            clauses.append(f"{100 * float(str(share)):.6g}% {words}" if share else f"none {words}")
    sentence = ", ".join(clauses) + "."
    if not math.isnan(report.constant_error_rate):
        sentence += (
            f" Always choosing the most frequent class would give an error of {percent(report.constant_error_rate)}."
            if report.graded is None
            else " Always choosing the best single class would give a mean reward of "
            f"{number_text(report.reward_of(report.constant_error_rate))}."
        )
    return unbroken(sentence)


def _delay_clause(report: LearnerRun) -> str:
    delay = str(report.settings.get("delay", "")).strip()
    if delay == "none":
        return "immediate feedback"
    drawn = [f"drawn from {delay}"] if delay else []
    if report.delays is None:
        return " ".join(["feedback after a delay", *drawn])
    median, most = (duration(value / 1000) for value in (report.delays.median_ms, report.delays.p99_ms))
    return f"feedback after {median} ({'; '.join(['median', f'99th percentile {most}', *drawn])})"


def _best(names: Sequence[str], found: Sequence[Series]) -> list[tuple[str, str]]:
    """Name the learner with the smallest error or highest mean reward, separately for one-bit and full feedback.

    If the learners play a log's actions, their errors are the log's and say nothing about them.
    """
    if any(series.first.settings.get("play") == "logged" for series in found):
        figures = (_figure(series) for series in found)
        known = next(filter(None, figures), "")
        of_log = f"'s actions have {known}" if known else "'s actions were played"
        return [("The log", unbroken(f"{of_log}. Every learner plays them, so compare estimates or greedy errors"))]
    best = []
    for full, whom in ((False, "of the learners with one-bit feedback"), (True, "of the learners with full feedback")):
        judged = sorted(
            (error, name)
            for name, series in zip(names, found, strict=True)
            if series.first.full_information == full
            and not math.isnan(error := series.mean(lambda run: run.errors.error_rate))
        )
        if not judged:
            continue
        first = found[list(names).index(judged[0][1])]
        if len(judged) > 1:
            most = "the smallest error" if first.first.graded is None else "the highest mean reward"
            best.append((judged[0][1], f" has {most} {whom}, {_figure(first).rpartition(' ')[2]}"))
        else:
            knowing = ", which learns from the true class," if full else ""
            best.append((judged[0][1], f"{knowing} has {_figure(first)}"))
    return [(name, unbroken(words)) for name, words in best]


def _figure(series: Series) -> str:
    """Return the mean error or the mean reward of a series, in words; empty if it is unknown."""
    error, run = series.mean(lambda run: run.errors.error_rate), series.first
    if math.isnan(error):
        return ""
    if run.graded is None:
        return f"an error of {percent(error)}"
    return f"a mean reward of {number_text(run.reward_of(error))}"


def _baseline(names: Sequence[str], found: Sequence[Series]) -> str:
    baselines = [name for name, series in zip(names, found, strict=True) if series.first.full_information]
    if not baselines or len(baselines) == len(names):
        return ""
    return f"{listed(baselines)} {'learns' if len(baselines) == 1 else 'learn'}"


def _seeds(names: Sequence[str], found: Sequence[Series]) -> str:
    """List the seeds over which the means are computed. Return an empty string if every series has one run."""
    of: dict[str, list[str]] = {}
    for name, series in zip(names, found, strict=True):
        if len(series.runs) > 1:
            of.setdefault(listed([str(run.seed) for run in series.runs]), []).append(name)
    if not of:
        return ""
    seeds_text = "; ".join(f"{listed(those)}: {seeds}" if len(of) > 1 else seeds for seeds, those in of.items())
    return f"Means over the seeds {seeds_text}. The bands in the charts are 95% intervals, as in the table."


def _differences(names: Sequence[str], found: Sequence[Series]) -> Table | None:
    """Return a table of the runs' differences other than in learners and parameters, or None if there are none."""
    traits = [
        {"data": series.first.data, "events": f"{series.first.events:,}"}
        | {"seeds": listed([str(run.seed) for run in series.runs])}
        | {name: value_text(value) for name, value in series.first.settings.items() if name not in SAID_ELSEWHERE}
        | dict(series.first.versions)
        for series in found
    ]
    keys = dict.fromkeys(key for each in traits for key in each)
    differing = [key for key in keys if len({each.get(key) for each in traits}) > 1]
    rows = tuple(
        (name, *(each.get(key, "–") for key in differing)) for name, each in zip(names, traits, strict=True)
    )  # fmt: skip
    return Table(("run", *differing), rows) if differing else None


def _versions(names: Sequence[str], found: Sequence[Series]) -> str:
    """Describe the software versions used for the runs."""
    versions = [", ".join(f"{name} {value}" for name, value in series.first.versions.items()) for series in found]
    return f"Made with {by_run(names, versions)}." if any(versions) else ""


# Tables.


class _Runs(NamedTuple):
    """A table of runs. A cell may be a list of parts, each of which is kept on one line."""

    columns: tuple[str, ...]
    rows: list[tuple[str | list[str], ...]]


def _runs(names: Sequence[str], reports: Sequence[LearnerRun]) -> _Runs:
    rows: list[tuple[str | list[str], ...]] = []
    for name, report in zip(names, reports, strict=True):
        parameters = [f"{key} = {value_text(value)}" for key, value in report.parameters.items()]
        parameters[:-1] = [f"{parameter}," for parameter in parameters[:-1]]
        rows.append(
            (
                name,
                parameters or "none",
                str(report.seed),
                f"{report.updates:,}",
                f"{report.drift_alarms:,}",
                duration(report.virtual_s),
                number_text(report.events_per_s),
                report.state_sha256,
            )
        )
    columns = (
        "learner", "parameters", "seed", "updates", "drift alarms", "virtual time", "events/s",
        "SHA-256 of the final state",
    )  # fmt: skip
    return _Runs(columns, rows)


def _settings(names: Sequence[str], found: Sequence[Series]) -> tuple[Table, Table]:
    """Return tables of the settings that differ from the defaults in at least one run, and of all other settings."""
    shown = [
        {name: value_text(value) for name, value in series.first.settings.items() if name != "command"}
        | ({"seed": listed([str(run.seed) for run in series.runs])} if len(series.runs) > 1 else {})
        for series in found
    ]
    changed = {name for series in found for run in series.runs for name in run.changed}
    rows = [
        (name, by_run(names, [settings.get(name, "–") for settings in shown]))
        for name in dict.fromkeys(name for settings in shown for name in settings)
    ]
    columns = ("setting", "value")
    return (
        Table(columns, tuple(row for row in rows if row[0] in changed)),
        Table(columns, tuple(row for row in rows if row[0] not in changed)),
    )


class _Earned(NamedTuple):
    """Estimates, from the replay of a log, of the rewards that the learners' own policies would have earned."""

    charts: list[Chart]
    table: Table
    notes: list[str]
    flags: list[tuple[str, str]]


def _earned(names: Sequence[str], reports: Sequence[LearnerRun]) -> _Earned | None:
    """Return the estimates, or None if they were not requested."""
    asked = {name: report.estimate for name, report in zip(names, reports, strict=True) if report.estimate is not None}
    if not asked:
        return None
    from stream.reporting.estimate_charts import form_of, live_charts

    ranges = {report.graded or BITS for report in reports}
    form = form_of(ranges.pop()) if len(ranges) == 1 else "number"
    columns = ("learner", "estimator", "n", "value", "95\N{NO-BREAK SPACE}% normal", "95\N{NO-BREAK SPACE}% anytime")
    rows = tuple(
        (name, one.estimator, f"{found.n:,}", rate(one.value), between(one.normal), between(one.anytime))
        for name, found in asked.items()
        for one in found.estimates
    )
    return _Earned(
        charts=live_charts({names.index(name): (name, found) for name, found in asked.items()}, form),
        table=Table(columns, rows),
        notes=[
            f"{name}: effective sample size {found.ess:,.0f}, largest weight {found.weight_max:,.4g}. In the same "
            f"decisions, the mean reward of the logged actions is {rate(found.logged)}."
            for name, found in asked.items()
        ],
        flags=[
            (f"{flag.name}, {listed([name for name, found in asked.items() if flag in found.flags])}", flag.text)
            for flag in dict.fromkeys(flag for found in asked.values() for flag in found.flags)
        ],
    )


class _Holdout(NamedTuple):
    """Comparisons of the learners with their holdouts."""

    table: Table
    flags: list[tuple[str, str]]


def _holdout(names: Sequence[str], reports: Sequence[LearnerRun]) -> _Holdout | None:
    """Return the comparisons, or None if no run has a holdout."""
    compared = {name: report.holdout for name, report in zip(names, reports, strict=True) if report.holdout is not None}
    if not compared:
        return None
    rows = tuple((name, *arm_cells(found)) for name, found in compared.items())
    notes = [
        f"{name}: {lost:,} decisions expired without an outcome, and {found.waiting:,} are pending or follow a "
        "pending decision."
        for name, found in compared.items()
        if (lost := found.learner.without_reward + found.holdout.without_reward) or found.waiting
    ]
    flags = [(f"holdout, {name}", found.mismatch) for name, found in compared.items() if found.shares_differ]
    return _Holdout(Table(("learner", *ARM_COLUMNS), rows, tuple(notes)), flags)


def _challengers(names: Sequence[str], reports: Sequence[LearnerRun]) -> Table | None:
    """Return the challengers' estimates, or None if no run has challengers."""
    compared = {name: run.challengers for name, run in zip(names, reports, strict=True) if run.challengers is not None}
    if not compared:
        return None
    rows = tuple(row for found in compared.values() for row in challenger_rows(found))
    notes = tuple(
        f"{name}: {counted(found)}, and {found.waiting:,} are pending or follow a pending decision."
        for name, found in compared.items()
    )
    return Table(CHALLENGER_COLUMNS, rows, notes)


class _Command(NamedTuple):
    """A command line. `of` lists the runs that it produced, and is empty if it produced all runs."""

    of: str
    words: list[str]


def _commands(names: Sequence[str], reports: Sequence[LearnerRun]) -> list[_Command]:
    lines = [str(report.settings.get("command", "")) for report in reports]
    commands = []
    for line in dict.fromkeys(filter(None, lines)):
        of = [name for name, given in zip(names, lines, strict=True) if given == line]
        commands.append(_Command("" if len(of) == len(names) else listed(of), line.split(" ")))
    return commands


# The ledger.

_WORDS = {
    "context_duplicates": "duplicate",
    "context_malformed": "malformed",
    "feedback_duplicates": "duplicate",
    "feedback_malformed": "malformed",
    "orphans_waiting": "orphan, waiting",
    "orphans_dropped": "orphan, dropped",
    "feedback_unmatched": "unmatched",
    "feedback_excess": "excess",
}


_OMITTED_IF_ZERO = (
    "unmatched", "feedback_unmatched", "deferred", "unshown", "shown", "answered", "combined", "feedback_excess",
)  # fmt: skip
"""Counts that can be nonzero only in a replay of a log, with deferred decisions, or with several rewards."""


class _Count(NamedTuple):
    """A ledger count with its display name."""

    name: str
    number: int


class _Line(NamedTuple):
    """An equation in the ledger: the total, the signed parts, and the difference between the two sides."""

    total: _Count
    parts: list[tuple[str, _Count]]
    off: int


class _Account(NamedTuple):
    """The ledger for one or more learners."""

    of: str
    shared: bool  # True if several learners have this ledger
    lines: list[_Line]
    notes: list[str]
    flow: list[Drawing]


FLOWS_MAX = 6
"""Maximum number of ledger diagrams on a page."""


def _accounts(names: Sequence[str], reports: Sequence[LearnerRun]) -> list[_Account]:
    """Return the ledgers. Learners with equal counts share a ledger."""
    accounts = []
    for number, ledger in enumerate(dict.fromkeys(report.ledger for report in reports)):
        of = [name for name, report in zip(names, reports, strict=True) if report.ledger == ledger]
        notes = []
        if ledger.feedback_duplicates:
            notes.append(
                f"Of the {ledger.feedback_duplicates:,} duplicate feedback records, {ledger.conflicts:,} contradicted "
                "the first one (conflicts)."
            )
        if found := ledger.contexts_misplaced + ledger.feedback_misplaced:
            notes.append(f"{found:,} {MISPLACED_REMEDY}.")
        lines = [_line(total, parts, ledger) for total, parts in IDENTITIES.items()]
        flow = ledger_flow(ledger, f"ledger-{number}") if number < FLOWS_MAX else []
        accounts.append(_Account(listed(of), len(of) > 1, lines, notes, flow))
    return accounts


def _line(field: str, parts: Sequence[str], ledger: Ledger) -> _Line:
    total = _count(field, ledger)
    counts = [_count(part, ledger) for part in parts if part not in _OMITTED_IF_ZERO or getattr(ledger, part)]
    off = total.number - sum(count.number for count in counts)
    signs = ["≠" if off else "=", *"+" * (len(counts) - 1)]
    return _Line(total, list(zip(signs, counts, strict=True)), off)


def _count(field: str, ledger: Ledger) -> _Count:
    return _Count(_WORDS.get(field, field), getattr(ledger, field))


# Phrases.

_GLOSSARY = (
    ("context", "The input to a decision: an id and features, and optionally a list of actions with features."),
    ("decision", "The learner's answer to a context: the played class or action, and its probability."),
    (
        "action, greedy",
        "The action is what was played: a class, or an action in the context's list. The greedy action "
        "has the highest score.",
    ),
    ("feedback", "One late bit: the action was right (1) or wrong (0). The right action remains unknown."),
    ("pending", "A decision that is waiting for feedback."),
    ("answered", "A pending decision with feedback that other feedback can follow."),
    ("combined", "Feedback that was combined with earlier feedback for its decision."),
    ("excess", "Feedback with more parts than a decision can have. It is written to the dead-letter topic."),
    ("matched", "Feedback arrived within the window and was joined to its decision; the learner has learned from it."),
    ("expired", "The window passed without feedback."),
    ("unmatched", "A decision whose action differs from the logged action. The log has no feedback for it."),
    ("deferred", "A decision that has not yet been reported as shown."),
    ("shown", "The record that reports that a deferred decision was shown. It starts the decision's window."),
    ("unshown", "A deferred decision that was not shown in time. The learner does not learn from it."),
    ("champion", "The learner that decides, in a pipeline with challengers."),
    ("challenger", "A learner that learns from the champion's decisions, and decides only as the champion."),
    ("holdout", "A random subset of the events, for which a fixed policy decides instead of the learner."),
    ("late", "Feedback that arrived after its decision had expired, or too late to change its reward."),
    ("duplicate", "A repeated context or feedback record. Only the first one is used."),
    ("conflict", "Duplicate feedback whose reward differs from the first reward."),
    ("orphan", "Feedback whose context has not arrived. It is dropped after the orphan window."),
    ("mismatched", "Feedback for an action other than the decision's. It is written to the dead-letter topic."),
    ("malformed", "An unreadable record. It is written to the dead-letter topic with the reason."),
    ("drift alarm", "A detected drop in the reward rate, after which the learner or one of its classes is reset."),
    ("virtual time", "Time according to the broker's clock. The embedded broker's clock skips pauses between events."),
)
