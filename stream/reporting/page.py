"""One HTML page about runs side by side: what was run, the error curves, the ledger, and how to do it again.

The page is one file: no script, nothing fetched, figures as inline SVG. It follows the reader's light or dark mode: the
figures are drawn in stand-in colours, which become CSS variables (`_as_inline`). Each figure is drawn twice, wide and
narrow, and the style sheet shows the one that fits, because text in a scaled-down figure cannot be read on a phone.
The same reports give the same bytes.

This is the only file that imports the plotting library, and only when it draws: the import takes half a second.
"""

import io
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from stream.reporting.run_report import RunReport
from stream.reporting.tables import comparison, duration, labels, percent
from stream.wire.ledger import IDENTITIES, Identity, Ledger

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(path: str | os.PathLike[str], reports: Sequence[RunReport]) -> Path:
    """Write the page for runs over the same stream; a reader of `path` sees the old page or the new one, never a part.

    Raises:
        ValueError: there is no report to write about.
        OSError: the page cannot be written.
    """
    target = Path(path)
    content = page(reports)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(content, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def page(reports: Sequence[RunReport]) -> str:
    """The page as text."""
    if not reports:
        raise ValueError("writing a report: expected at least one run; got none")
    names = labels(reports)
    data = _shared(report.data for report in reports)
    return _PAGE.substitute(
        title=escape(f"{_shared(report.learner for report in reports)} on {data}"),
        summary=_summary(reports, data),
        verdict=_verdict(names, reports),
        style=_STYLE,
        comparison=_comparison(names, reports),
        figures="".join(_figure(figure, names, reports) for figure in _FIGURES),
        ledgers=_ledgers(names, reports),
        runs=_runs(names, reports),
        settings=_settings(names, reports),
        reproduce=_reproduce(names, reports),
        glossary=_glossary(),
    )


# What was run, in words.


def _summary(reports: Sequence[RunReport], data: str) -> str:
    first = reports[0]
    settings = first.settings
    stream = f"{first.events:,} events of {data} ({first.classes:,} classes, {first.features:,} features)"
    rate = settings.get("rate")
    if _is_number(rate):
        stream += f" at {_number(rate)} events/s"
    clauses = [stream, _delay_clause(first)]
    for key, words in (("loss", "of it lost"), ("duplicates", "sent twice")):
        share = settings.get(key)
        if _is_number(share):
            clauses.append(f"{100 * float(str(share)):.6g} % {words}" if share else f"none {words}")
    sentence = ", ".join(clauses) + "."
    if not math.isnan(first.constant_error_rate):
        sentence += f" Always answering the most frequent class would err {percent(first.constant_error_rate)}."
    return escape(_unbroken(sentence))


def _delay_clause(report: RunReport) -> str:
    delay = str(report.settings.get("delay", "")).strip()
    if delay == "none":
        return "feedback at once"
    drawn = [f"drawn from {delay}"] if delay else []
    if report.delays is None:
        return " ".join(["feedback after a delay", *drawn])
    median, most = (duration(value / 1000) for value in (report.delays.median_ms, report.delays.p99_ms))
    return f"feedback late by {median} ({'; '.join(['the median', f'99th percentile {most}', *drawn])})"


def _verdict(names: Sequence[str], reports: Sequence[RunReport]) -> str:
    """What to know before reading on: which learner erred least, and whether the books are in order."""
    best = []
    for told, whom in ((False, "of those that learn from one bit"), (True, "of those told the right class")):
        judged = sorted(
            (report.error_rate, name)
            for name, report in zip(names, reports, strict=True)
            if report.full_information == told and not math.isnan(report.error_rate)
        )
        if len(judged) > 1:
            best.append(f"<b>{escape(judged[0][1])}</b> erred least {whom}, {percent(judged[0][0])}")
        elif judged:
            knowing = ", told the right class," if told else ""
            best.append(f"<b>{escape(judged[0][1])}</b>{knowing} erred in {percent(judged[0][0])} of its decisions")
    lines = ["; ".join(best) + "." if best else "Nothing was decided."]
    wrong = [name for name, report in zip(names, reports, strict=True) if not report.ledger_ok]
    if wrong:
        lines.append(f"{_mark(False)} The ledger of {escape(_listed(wrong))} does not balance.")
    else:
        lines.append(f"{_mark(True)} Every record is accounted for.")
    return _unbroken(" ".join(lines))


# Tables.


def _comparison(names: Sequence[str], reports: Sequence[RunReport]) -> str:
    table = comparison(reports)
    told = [name for name, report in zip(names, reports, strict=True) if report.full_information]
    note = ""
    if told and len(told) < len(names):
        verb = "is" if len(told) == 1 else "are"
        note = (
            f'<p class="note">{escape(_listed(told))} {verb} told the right class, as a baseline; '
            "the others learn from one bit, right or wrong.</p>\n"
        )
    return _table("Results by learner", table.columns, table.rows, kind="numeric") + note


def _runs(names: Sequence[str], reports: Sequence[RunReport]) -> str:
    rows = []
    for name, report in zip(names, reports, strict=True):
        parameters = ", ".join(
            f"{key}\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{_value(value)}" for key, value in report.params.items()
        )
        rows.append(
            (
                name,
                parameters or "none",
                str(report.seed),
                f"{report.updates:,}",
                duration(report.virtual_s),
                _number(report.events_per_s),
                report.state_sha256,
            )
        )
    columns = ("learner", "parameters", "seed", "updates", "virtual time", "events/s", "SHA-256 of the final state")
    return _table("Parameters and work by learner", columns, rows, kind="runs")


def _settings(names: Sequence[str], reports: Sequence[RunReport]) -> str:
    keys = dict.fromkeys(key for report in reports for key in report.settings if key != "command")
    if not keys:
        return "<p>None were recorded.</p>"
    rows = [
        (key, _by_run(names, [_value(report.settings[key]) if key in report.settings else "–" for report in reports]))
        for key in keys
    ]
    return _table("Effective settings", ("setting", "value"), rows, kind="settings")


def _reproduce(names: Sequence[str], reports: Sequence[RunReport]) -> str:
    commands = [str(report.settings.get("command", "")) for report in reports]
    if not any(commands):
        return "<p>The command line was not recorded; the settings above say all that it said.</p>"
    blocks = []
    for command in dict.fromkeys(command for command in commands if command):
        of = [name for name, given in zip(names, commands, strict=True) if given == command]
        # A long command line is broken between its words and not after the hyphens of an option.
        words = " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))
        note = "" if len(of) == len(names) else f"<p>{escape(_listed(of))}:</p>"
        blocks.append(f"{note}<pre><code>{words}</code></pre>")
    note = "<p>The same version, data, settings and seed give the same SHA-256 of the final state.</p>"
    return "".join(blocks) + note


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in rows
    )
    # tabindex: a box that scrolls sideways must be reachable from the keyboard.
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table class="{kind}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n"
    )


# The ledger.

_WORDS = {
    "context_duplicates": "duplicate",
    "context_malformed": "malformed",
    "feedback_duplicates": "duplicate",
    "feedback_malformed": "malformed",
    "mismatched": "of another action",
    "orphans_waiting": "orphan, waiting",
    "orphans_dropped": "orphan, dropped",
}


def _ledgers(names: Sequence[str], reports: Sequence[RunReport]) -> str:
    """One account for each learner; learners with the same numbers share one."""
    blocks = []
    for ledger in dict.fromkeys(report.ledger for report in reports):
        of = [name for name, report in zip(names, reports, strict=True) if report.ledger == ledger]
        lines = "".join(f"<li>{_equation(identity, ledger)}</li>" for identity in IDENTITIES)
        note = ""
        if ledger.feedback_duplicates:
            note = (
                f"<p>Of the {ledger.feedback_duplicates:,} duplicate feedbacks, {ledger.conflicts:,} contradicted the "
                "first (conflicts).</p>"
            )
        heading = escape(_listed(of)) + (" <small>the same for each</small>" if len(of) > 1 else "")
        blocks.append(f'<section class="ledger"><h3>{heading}</h3><ul>{lines}</ul>{note}</section>\n')
    return "".join(blocks)


def _equation(identity: Identity, ledger: Ledger) -> str:
    total = getattr(ledger, identity.total)
    found = sum(getattr(ledger, part) for part in identity.parts)
    terms = [_term(part, ledger) for part in identity.parts]
    signs = ["=" if total == found else "≠"] + ["+"] * (len(terms) - 1)
    verdict = "adds up" if total == found else f"off by {total - found:+,}"
    return (
        _term(identity.total, ledger)
        + "".join(
            f' <span class="part"><span class="sign">{s}</span> {t}</span>' for s, t in zip(signs, terms, strict=True)
        )
        + f' <span class="verdict">{_mark(total == found)} {verdict}</span>'
    )


def _term(field: str, ledger: Ledger) -> str:
    count = getattr(ledger, field)
    kind = "term" if count else "term nothing"
    return f'<span class="{kind}"><b>{count:,}</b> {escape(_WORDS.get(field, field))}</span>'


def _mark(good: bool) -> str:
    """A tick or a cross; colour is never the only sign."""
    return f'<span class="{"good" if good else "bad"}" aria-hidden="true">{"✓" if good else "✗"}</span>'


# Figures.


_Line = list[tuple[int, float]]  # (decisions, error rate), in ascending order of decisions


class _Plot(NamedTuple):
    """One figure: what its axes show."""

    key: str
    title: str
    caption: Callable[[RunReport], str]
    rate: Callable[[RunReport], _Line]
    alt: str
    from_start: bool  # the first decisions are shown, which on logarithmic axes means a logarithmic abscissa too


def _progressive(report: RunReport) -> _Line:
    few = min(10, report.errors.events)  # the first decisions are all or nothing
    return [(point.events, point.error_rate) for point in report.errors.points if point.events >= few]


def _windowed(report: RunReport) -> _Line:
    points = report.errors.points
    return [(point.events, point.window_error_rate) for point in points if not math.isnan(point.window_error_rate)]


_FIGURES = (
    _Plot(
        "progressive",
        "Progressive error",
        lambda report: (
            "Share of wrong decisions among all decisions so far. Each is judged as it was made, "
            "before its feedback could teach anything."
        ),
        _progressive,
        "the progressive error after each number of decisions",
        from_start=True,
    ),
    _Plot(
        "windowed",
        "Recent error",
        lambda report: (
            f"Share of wrong decisions among the last {report.errors.window_events:,}: how good the learner is by "
            "then, whatever it did at first."
        ),
        _windowed,
        "the error over a sliding window of decisions",
        from_start=False,
    ),
)


class _Size(NamedTuple):
    """How large a figure is drawn: in CSS pixels, at which its text is as large as the page's small print."""

    key: str
    width_px: int
    height_px: int
    label_chars_max: int  # longer line labels would leave no room for the lines
    labels_with_rates: bool
    ticks: tuple[int, int]  # about so many along each axis


_SIZES = (
    _Size("wide", 860, 400, label_chars_max=40, labels_with_rates=True, ticks=(6, 6)),
    _Size("narrow", 350, 330, label_chars_max=20, labels_with_rates=False, ticks=(3, 5)),
)

# Stand-ins for what the style sheet decides: no real colour of the figures may be among them.
_MUTED, _GRID = "#010101", "#010102"
_SERIES = tuple(f"#0102{number:02x}" for number in range(6))
_DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("solid", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
_VARIABLES = {_MUTED: "muted", _GRID: "line"} | {c: f"series-{i}" for i, c in enumerate(_SERIES)}

_CSS_PX_PER_INCH = 72  # at which a point of the drawing is a pixel of the page
_FONT_PX = 12.5
_LOG_BELOW = 0.02  # a linear axis from 0 shows errors below this as a line on the floor


def _figure(plot: _Plot, names: Sequence[str], reports: Sequence[RunReport]) -> str:
    ends = [
        f"{name} {percent(points[-1][1])}"
        for name, points in zip(names, map(plot.rate, reports), strict=True)
        if points
    ]
    if not ends:
        return ""
    alt = f"Line chart of {plot.alt}. At the end: {'; '.join(ends)}."
    drawings = "".join(f'<div class="{size.key}">{_draw(plot, size, names, reports, alt)}</div>\n' for size in _SIZES)
    caption = f"<b>{escape(plot.title)}.</b> {escape(plot.caption(reports[0]))}"
    return f"<figure>\n<figcaption>{caption}</figcaption>\n{drawings}</figure>\n"


def _draw(plot: _Plot, size: _Size, names: Sequence[str], reports: Sequence[RunReport], alt: str) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's matplotlibrc says, the page looks the same
        mpl.rcParams.update(
            {
                "svg.fonttype": "none",  # text stays text
                "svg.hashsalt": "onebit",  # identifiers are the same each time
                "font.size": _FONT_PX,
                "text.parse_math": False,  # a dollar sign in a name is a dollar sign
                "axes.edgecolor": _GRID,
                "axes.labelcolor": _MUTED,
                "xtick.labelcolor": _MUTED,
                "ytick.labelcolor": _MUTED,
                "grid.color": _GRID,
            }
        )
        inches = (size.width_px / _CSS_PX_PER_INCH, size.height_px / _CSS_PX_PER_INCH)
        figure = Figure(figsize=inches, dpi=_CSS_PX_PER_INCH)
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        shown_names = [_cut(name, size.label_chars_max) for name in names]
        # Room on the right for the line labels, which are part of the figure and not a legend far from the lines.
        label_chars = max(map(len, shown_names)) + (len(" 99.99 %") if size.labels_with_rates else 0)
        left_px, right_px, bottom_px, top_px = 58, 14 + 0.68 * _FONT_PX * label_chars, 46, 10
        axes = figure.add_axes(
            (
                left_px / size.width_px,
                bottom_px / size.height_px,
                1 - (left_px + right_px) / size.width_px,
                1 - (bottom_px + top_px) / size.height_px,
            )
        )
        _plot_lines(axes, plot, size, shown_names, [plot.rate(report) for report in reports])
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _as_inline(out.getvalue(), f"{plot.key}-{size.key}", alt)


def _plot_lines(axes: "Axes", plot: _Plot, size: _Size, names: Sequence[str], lines: Sequence[_Line]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

    drawn = [(number, name, line) for number, (name, line) in enumerate(zip(names, lines, strict=True)) if line]
    top = max(rate for _, _, line in drawn for _, rate in line)
    logarithmic = min(line[-1][1] for _, _, line in drawn) < _LOG_BELOW < top
    events = max(line[-1][0] for _, _, line in drawn)
    floor = 0.0
    if logarithmic:
        floor = 10 ** math.floor(math.log10(min(rate for _, _, line in drawn for _, rate in line if rate > 0)))
        axes.set_yscale("log")
        axes.set_ylim(floor, min(1.0, top * 1.3))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:g} %"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, min(1.0, top * 1.05) or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(size.ticks[1], steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))
    if logarithmic and plot.from_start:
        axes.set_xscale("log")
        axes.set_xlim(min(line[0][0] for _, _, line in drawn), events)
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, events)
        axes.xaxis.set_major_locator(MaxNLocator(size.ticks[0], steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _compact(value)))
    axes.set_xlabel("decisions" + (", logarithmic scales" if logarithmic and plot.from_start else ""))
    axes.grid(True, axis="y", linewidth=0.8)
    axes.tick_params(length=0, pad=6)
    axes.tick_params(which="minor", length=0)
    axes.patch.set_visible(False)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    for number, _, line in drawn:
        # On a linear axis the noise of the first few decisions would be a spike as high as the figure.
        shown = (
            line if logarithmic or not plot.from_start else [point for point in line if point[0] >= line[-1][0] / 200]
        )
        axes.plot(
            [at for at, _ in shown],
            [max(rate, floor) for _, rate in shown],
            color=_SERIES[number % len(_SERIES)],
            linestyle=_DASHES[number // len(_SERIES) % len(_DASHES)],
            linewidth=2.0,
            solid_capstyle="round",
            clip_on=False,
        )
    _label_ends(axes, size, drawn, floor)


def _label_ends(axes: "Axes", size: _Size, drawn: Sequence[tuple[int, str, _Line]], floor: float) -> None:
    """Write each line's name beside its end, moved apart where they would overlap."""
    width_px, height_px = axes.get_position().width * size.width_px, axes.get_position().height * size.height_px
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((line[-1][0], max(line[-1][1], floor))) for _, _, line in drawn]
    # The lowest stays clear of the labels of the axis below.
    heights_px = _spread([y * height_px for _, y in ends], gap=1.3 * _FONT_PX, low=0.6 * _FONT_PX, high=height_px)
    for (number, name, line), (x, y), label_px in zip(drawn, ends, heights_px, strict=True):
        color = _SERIES[number % len(_SERIES)]
        label_y = label_px / height_px
        axes.plot(
            [x, 1 + 9 / width_px], [y, label_y], transform=axes.transAxes, color=color, linewidth=0.8, clip_on=False
        )
        axes.text(
            1 + 12 / width_px,
            label_y,
            f"{name} {percent(line[-1][1])}" if size.labels_with_rates else name,
            transform=axes.transAxes,
            color=color,
            va="center_baseline",
            fontweight="bold",
        )


def _spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart, and within [low, high] if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    # Blocks of touching labels, each centred on the mean of what its members want.
    blocks: list[list[int]] = []

    def bottom(block: list[int]) -> float:
        height = gap * (len(block) - 1)
        centred = sum(wanted[i] for i in block) / len(block) - height / 2
        return max(low, min(centred, high - height))

    for i in order:
        blocks.append([i])
        while len(blocks) > 1 and bottom(blocks[-2]) + gap * len(blocks[-2]) > bottom(blocks[-1]):
            last = blocks.pop()
            blocks[-1].extend(last)
    for block in blocks:
        for rank, i in enumerate(block):
            placed[i] = bottom(block) + gap * rank
    return placed


def _as_inline(svg: str, key: str, alt: str) -> str:
    """A drawing fit to stand inside a page with others: own identifiers, the page's colours, a description."""
    svg = svg[svg.index("<svg") :]
    opening = svg[: svg.index(">") + 1]
    view_box = re.search(r'viewBox="[^"]*"', opening)
    assert view_box is not None
    body = svg[len(opening) :]
    body = re.sub(r'\bid="([^"]*)"', rf'id="{key}-\1"', body)
    body = re.sub(r'xlink:href="#', f'href="#{key}-', body)
    body = re.sub(r"url\(#", f"url(#{key}-", body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var(--{variable})")
    return f'<svg {view_box.group()} role="img" aria-label="{escape(alt)}">' + body.strip()


# Words and numbers.


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _unbroken(text: str) -> str:
    """Keep a number and its unit on one line."""
    return re.sub(r"(\d) (?=(%|ms|s|min|h)\b|%)", "\\1\N{NO-BREAK SPACE}", text)


def _cut(name: str, chars_max: int) -> str:
    """A long name without its middle: what tells it from others is mostly at its end."""
    if len(name) <= chars_max:
        return name
    head = chars_max // 3
    return name[:head] + "…" + name[-(chars_max - head - 1) :]


def _shared(values: Iterable[str]) -> str:
    return _listed(list(dict.fromkeys(values)))


def _by_run(names: Sequence[str], values: Sequence[str]) -> str:
    if len(set(values)) == 1:
        return values[0]
    return "; ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_value(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "none"
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: object) -> str:
    if not isinstance(value, int | float) or math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _compact(value: float) -> str:
    """A count on an axis: 500, 20k, 1.5M."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"


# The page.

_GLOSSARY = (
    ("context", "What the learner is shown: an id and features. It must answer with one of the classes."),
    ("decision", "The learner's answer to a context: the class it played, and with which probability."),
    ("action, greedy", "The action is the class that was played. The greedy class is the one with the highest score."),
    ("feedback", "One bit that comes later: the action was right (1) or wrong (0). The right class stays unknown."),
    ("pending", "Decided, and waiting for feedback."),
    ("matched", "Feedback came within the window and was joined to its decision; the learner has learned from it."),
    ("expired", "The window passed without feedback."),
    ("late", "Feedback that came after its decision had expired."),
    ("duplicate", "A context or feedback that came again. The first one counts."),
    ("conflict", "Duplicate feedback that contradicts the first."),
    ("orphan", "Feedback whose context has not been seen. It waits a while, then it is dropped."),
    ("malformed", "A record that cannot be read. It goes to the dead-letter topic with the reason."),
    ("virtual time", "Time by the broker's clock. The embedded broker's clock jumps over the pauses between events."),
)


def _glossary() -> str:
    return "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>\n" for word, meaning in _GLOSSARY)


# Series colours: the palette of Okabe and Ito, which colour-blind readers tell apart, darkened (light mode) or
# lightened (dark mode) until text in them has a contrast of 4.5 against the background.
_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f6f7f9; --ink: #1a1f26; --muted: #59636e; --line: #d9dee4; --good: #1a7f37; --bad: #c1271b;
  --series-0: #0067a5; --series-1: #b84a00; --series-2: #007a58; --series-3: #a0447f; --series-4: #8a6100;
  --series-5: #3d444d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --card: #1b2128; --ink: #e8ecf0; --muted: #a3adb8; --line: #353d47; --good: #56d364;
    --bad: #ff8479;
    --series-0: #63b8f0; --series-1: #ff9a57; --series-2: #3fd0a0; --series-3: #e9a0cf; --series-4: #e5c54a;
    --series-5: #c3ccd6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
header { border-bottom: 1px solid var(--line); margin-bottom: 1.75rem; padding-bottom: 1.25rem; }
.brand { color: var(--muted); font-size: .875rem; margin: 0; }
h1 { font-size: clamp(1.4rem, 1.1rem + 1.6vw, 2rem); line-height: 1.2; margin: .15rem 0 .6rem; text-wrap: balance; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
h3 small { color: var(--muted); font-weight: normal; margin-left: .35rem; }
header p { margin: .35rem 0 0; max-width: 46rem; }
.lead, .note { color: var(--muted); }
.note { font-size: .875rem; margin: .6rem 0 0; }
.good { color: var(--good); font-weight: bold; }
.bad { color: var(--bad); font-weight: bold; }
.scroll { overflow-x: auto; }
:focus-visible { outline: 2px solid var(--series-0); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .9375rem; width: 100%; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { border-bottom: 1px solid var(--line); padding: .45rem .7rem; text-align: left; vertical-align: top; }
thead th { color: var(--muted); font-weight: 600; font-size: .8125rem; vertical-align: bottom; white-space: nowrap; }
tbody th { font-weight: 600; white-space: nowrap; }
th:first-child { padding-left: 0; position: sticky; left: 0; background: var(--paper); }
.runs td { white-space: nowrap; }
.runs td:last-child {
  font: .8125rem/1.5 ui-monospace, SFMono-Regular, Consolas, "DejaVu Sans Mono", monospace; min-width: 13rem;
  overflow-wrap: anywhere; white-space: normal;
}
.settings { width: auto; }
.settings td { overflow-wrap: anywhere; }
.numeric td, .numeric thead th:not(:first-child) { text-align: right; white-space: nowrap; }
.numeric td { font-variant-numeric: tabular-nums; }
figure { margin: 0 0 2rem; }
figcaption { color: var(--muted); margin-bottom: .5rem; max-width: 46rem; }
figcaption b { color: var(--ink); }
figure svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif !important; }
.narrow { display: none; }
@media (max-width: 40rem) {
  body { padding: 1.25rem 1rem 3rem; }
  .wide { display: none; }
  .narrow { display: block; }
}
.ledger { background: var(--card); border-radius: .6rem; margin-bottom: 1rem; padding: 1rem 1.1rem; }
.ledger ul { list-style: none; margin: 0; padding: 0; }
.ledger li {
  border-top: 1px solid var(--line); display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem .55rem;
  padding: .55rem 0;
}
.ledger p { border-top: 1px solid var(--line); color: var(--muted); font-size: .875rem; margin: 0; padding-top: .6rem; }
.term { display: inline-flex; flex-direction: column; font-size: .8125rem; line-height: 1.25; color: var(--muted); }
.term b { color: var(--ink); font-size: 1rem; font-variant-numeric: tabular-nums; }
.part { display: inline-flex; align-items: baseline; gap: .55rem; }
.nothing b { color: var(--muted); font-weight: normal; }
.sign { color: var(--muted); }
.verdict { margin-left: auto; white-space: nowrap; font-size: .875rem; }
pre {
  background: var(--card); border-radius: .6rem; font-size: .875rem; overflow-wrap: anywhere; padding: .8rem 1rem;
  white-space: pre-wrap;
}
pre span { display: inline-block; max-width: 100%; }
code { font-family: ui-monospace, SFMono-Regular, Consolas, "DejaVu Sans Mono", monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; margin: 0; }
dt { font-weight: 600; }
dd { margin: 0; color: var(--muted); }
@media (max-width: 40rem) {
  dl { display: block; }
  dd { margin-bottom: .5rem; }
}
@media print {
  .scroll { overflow: visible; }
  figure, .ledger { break-inside: avoid; }
}
"""

# The policy lets a browser load nothing, whatever the text of a data set or a setting may try.
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title – Onebit</title>
<style>$style</style>
</head>
<body>
<header>
<p class="brand">Onebit run report</p>
<h1>$title</h1>
<p>$verdict</p>
<p class="lead">$summary</p>
</header>
<main>
<section>
$comparison</section>
<section>
<h2>Error</h2>
$figures</section>
<section>
<h2>Ledger</h2>
$ledgers</section>
<section>
<h2>Parameters</h2>
$runs</section>
<section>
<h2>Settings</h2>
$settings</section>
<section>
<h2>Do it again</h2>
$reproduce</section>
<section>
<h2>Words</h2>
<dl>
$glossary</dl>
</section>
</main>
</body>
</html>
""")
