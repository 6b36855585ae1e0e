"""Flow diagram of a ledger, written as SVG.

Contexts enter from the left and feedback from the right. Matched contexts and feedback meet in the middle. The width of
a band is proportional to its count, but never too small to see.
"""

from html import escape
from typing import NamedTuple

from stream.wire.ledger import Ledger


class Drawing(NamedTuple):
    """A drawing of the diagram for one page width."""

    size: str  # CSS class: wide or narrow
    svg: str  # <svg> element with escaped text


class _Node(NamedTuple):
    """An outcome for contexts, for feedback, or for both."""

    name: str
    number: int
    from_contexts: bool
    from_feedback: bool


class _Size(NamedTuple):
    """Positions in the diagram, in pixels."""

    key: str
    width: int
    decided_at: int  # left edges of the bars
    settled_at: int
    raised: int  # offset of labels in the first row, to avoid an overlap


_SIZES = (_Size("wide", 860, 250, 520, 0), _Size("narrow", 350, 112, 214, 16))

_BAR, _GAP, _FULL, _TOP = 10, 26, 150, 54
_THIN = 2.0
"""Minimum height of a band."""


def ledger_flow(ledger: Ledger, key: str) -> list[Drawing]:
    """Return the diagram in two sizes; the list is empty if the ledger is empty.

    Args:
        ledger: The counts.
        key: Unique id on the page.
    """
    if not ledger.contexts or not ledger.decided:
        return []
    return [Drawing(size.key, _drawn(ledger, size, f"{key}-{size.key}")) for size in _SIZES]


def flow_words(ledger: Ledger) -> str:
    """Return the text alternative for the diagram."""
    outcomes = ", ".join(f"{node.number:,} {node.name}" for node in _settled(ledger) if node.from_contexts)
    aside = ", ".join(f"{node.number:,} {node.name}" for node in _settled(ledger) if not node.from_contexts)
    words = f"Of {ledger.contexts:,} contexts, {ledger.decided:,} were decided: {outcomes}."
    return f"{words} Unmatched among {ledger.feedback:,} feedback records: {aside}." if aside else words


def _settled(ledger: Ledger) -> list[_Node]:
    nodes = [
        _Node("matched", ledger.matched, True, True),
        _Node("answered", ledger.answered, True, True),
        _Node("pending", ledger.pending - ledger.answered, True, False),
        _Node("deferred", ledger.deferred, True, False),
        _Node("expired", ledger.expired, True, False),
        _Node("unshown", ledger.unshown, True, False),
        _Node("unmatched", ledger.unmatched, True, False),
        _Node("shown", ledger.shown, False, True),
        _Node("late", ledger.late, False, True),
        _Node("duplicate", ledger.feedback_duplicates, False, True),
        _Node("combined", ledger.combined, False, True),
        _Node("mismatched", ledger.mismatched, False, True),
        _Node("excess", ledger.feedback_excess, False, True),
        _Node("orphans", ledger.orphans_waiting + ledger.orphans_dropped, False, True),
        _Node("unmatched feedback", ledger.feedback_unmatched, False, True),
        _Node("malformed", ledger.feedback_malformed, False, True),
    ]
    return [node for node in nodes if node.number]


def _drawn(ledger: Ledger, size: _Size, key: str) -> str:
    scale = _FULL / max(ledger.contexts, ledger.feedback, 1)

    def height(number: int) -> float:
        return max(_THIN, number * scale)

    parts: list[str] = []
    labels: list[str] = []  # drawn last, above all bands
    contexts = _Node("contexts", ledger.contexts, True, False)
    aside = [
        _Node("duplicate", ledger.context_duplicates, True, False),
        _Node("malformed", ledger.context_malformed, True, False),
    ]
    entries = [_Node("decided", ledger.decided, True, False), *(node for node in aside if node.number)]
    settled = _settled(ledger)
    right = size.width - _BAR
    # The next free position of each bar; bands are stacked downwards.
    leaves_contexts = leaves_decided = leaves_feedback = float(_TOP)
    y = float(_TOP)
    for node in entries:
        parts.append(_band(_BAR, leaves_contexts, size.decided_at, y, height(node.number), "contexts", node))
        parts.append(_bar(size.decided_at, y, height(node.number), "contexts"))
        labels.append(_label(size.decided_at, y - (size.raised if y == _TOP else 0), node))
        leaves_contexts += height(node.number)
        y += height(node.number) + _GAP
    bottom = y
    y = float(_TOP)
    for node in settled:
        tall = height(node.number)
        side = "both" if node.from_contexts and node.from_feedback else "contexts" if node.from_contexts else "feedback"
        if node.from_contexts:
            parts.append(_band(size.decided_at + _BAR, leaves_decided, size.settled_at, y, tall, "contexts", node))
            leaves_decided += tall
        if node.from_feedback:
            parts.append(_band(size.settled_at + _BAR, y, right, leaves_feedback, tall, "feedback", node))
            leaves_feedback += tall
        parts.append(_bar(size.settled_at, y, tall, side))
        labels.append(_label(size.settled_at, y, node))
        y += tall + _GAP
    feedback = _Node("feedback", ledger.feedback, False, True)
    parts.append(_bar(0, _TOP, height(contexts.number), "contexts"))
    labels.append(_label(0, _TOP, contexts))
    if feedback.number:
        tall = max(height(feedback.number), leaves_feedback - _TOP)
        parts.append(_bar(right, _TOP, tall, "feedback"))
        labels.append(_label(size.width, _TOP - 2 * size.raised, feedback, "end"))
    bottom = max(bottom, y, _TOP + _FULL + _GAP) - _GAP + 4
    words = escape(flow_words(ledger))
    return (
        f'<svg viewBox="0 0 {size.width} {bottom:.0f}" role="img" aria-label="{words}" class="flow" id="{key}">'
        + "".join(parts + labels)
        + "</svg>"
    )


def _band(x0: float, y0: float, x1: float, y1: float, height: float, side: str, node: _Node) -> str:
    middle = (x0 + x1) / 2
    return (
        f'<path class="{side}" d="M{x0:g},{y0:.1f}C{middle:g},{y0:.1f} {middle:g},{y1:.1f} {x1:g},{y1:.1f}'
        f'V{y1 + height:.1f}C{middle:g},{y1 + height:.1f} {middle:g},{y0 + height:.1f} {x0:g},{y0 + height:.1f}Z">'
        f"<title>{escape(node.name)}: {node.number:,}</title></path>"
    )


def _bar(x: float, y: float, height: float, side: str) -> str:
    return f'<rect class="{side}" x="{x:g}" y="{y:.1f}" width="{_BAR}" height="{height:.1f}"/>'


def _label(x: float, y: float, node: _Node, anchor: str = "start") -> str:
    at = f'x="{x:g}" y="{y - 6:.1f}" text-anchor="{anchor}"'
    return f'<text {at}><tspan class="n">{node.number:,}</tspan> {escape(node.name)}</text>'
