"""VW contextual-bandit text with action features (`cb_adf`): a decision has a line for each action.

    shared |user major=engineering age:21
    |article topic=sport length:3
    0:-1:0.6 'world-cup |article topic=news length:9

An empty line ends a decision. The label `action:cost:probability` is on the line of the played action; its action
number is ignored, as in Vowpal Wabbit. The reward is the negated cost. Without a label, the decision has no outcome and
no played action. An action's id is the tag of its line, if all actions of the decision have different tags, and
otherwise a hash of its features. The context's features are those of the line with the label `shared`. A decision's id
consists of the file name and the decision's number.

Namespaces are as in `vw_text`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from producers.datasets.log import MISSING
from producers.datasets.logs.formats import vw_labels, vw_words
from producers.datasets.logs.offered import OfferedRows, ids_of, problems_of_decisions
from producers.datasets.logs.parsed import ParsedBatch, Problem, problem
from producers.datasets.logs.streams import CutOffError, Fault, Source, line_blocks
from producers.datasets.logs.vw_text import COST_EXPECTED, LINE_EXPECTED, Namespaces, cost_and_probability
from stream.parsing import parse_whole
from stream.text import is_utf8

NOTES = (
    "decisions are among actions, whose ids are their tags or hashes of their features",
    "the reward is the negated cost; each namespace is a categorical feature",
)

BATCH_LINES = 8_192
"""Minimum number of lines per batch, except in the last one."""

_EXPECTED = "nothing, or a label such as 0:-1:0.6 (action:cost:probability), on the line of an action"


class _Line(NamedTuple):
    """A line of a decision."""

    number: int
    text: str
    fault: Fault | None = None


def batches(source: Source) -> Iterator[ParsedBatch]:
    """Yield the decisions in a file."""
    first_row = 0
    decisions = _decisions(source)
    while True:
        held: list[list[_Line]] = []
        count = 0
        try:
            while count < BATCH_LINES and (decision := next(decisions, None)) is not None:
                held.append(decision)
                count += len(decision)
        except CutOffError:
            if held:
                yield _Decisions(held, first_row).parse()
            raise
        if not held:
            return
        yield _Decisions(held, first_row).parse()
        first_row += len(held)


def _decisions(source: Source) -> Iterator[list[_Line]]:
    """Yield the lines of each decision."""
    lines: list[_Line] = []
    for block in line_blocks(source.chunks()):
        if block.fault is not None:
            lines.append(_Line(block.first_line, "|", block.fault))
            continue
        text = block.data.decode("utf-8", "surrogateescape").removesuffix("\n")
        for number, line in enumerate(text.split("\n"), block.first_line):
            if line.strip():
                lines.append(_Line(number, line.removesuffix("\r")))
            elif lines:
                yield lines
                lines = []
    if lines:
        yield lines


class _Decisions:
    """Parses a batch of decisions and collects problems."""

    def __init__(self, decisions: list[list[_Line]], first_row: int) -> None:
        self._decisions = decisions
        self._first_row = first_row
        self._problems: list[Problem] = []
        self._of_actions: list[Problem] = []
        self._features = Namespaces(self._problems)
        self._action_features = Namespaces(self._of_actions)
        self._offered = OfferedRows()
        self._rewards: list[float] = []
        self._propensities: list[float] = []

    def parse(self) -> ParsedBatch:
        for row, lines in enumerate(self._decisions):
            self._add(row, lines)
        offered = self._offered.offered(self._action_features.columns())
        self._problems += problems_of_decisions(offered, self._of_actions)
        return ParsedBatch(
            n=len(self._decisions),
            first_row=self._first_row,
            propensities=np.array(self._propensities),
            rewards=0.0 - np.array(self._rewards),
            features=self._features.columns(),
            problems=tuple(self._problems),
            where=lambda row: f"line {self._decisions[row][0].number}",
            offered=offered,
        )

    def _add(self, row: int, lines: list[_Line]) -> None:
        played = MISSING
        cost = propensity = math.nan
        tags: list[str | None] = []
        contents: list[bytes] = []
        for line in lines:
            if line.fault is not None:
                self._problems.append(Problem(row, *line.fault))
            before, bar, features = line.text.partition("|")
            if not bar or not is_utf8(line.text):
                self._problems.append(problem(row, "line", LINE_EXPECTED, line.text))
            labels = vw_labels(before)
            if before.split()[:1] == ["shared"]:
                if tags:
                    self._problems.append(problem(row, "label", "shared on a decision's first line only", line.text))
                self._features.add(row, features)
                continue
            if labels:
                if not _is_label(labels) or played != MISSING:
                    self._problems.append(problem(row, "label", _EXPECTED, before))
                elif (read := cost_and_probability(labels[0])) is None:
                    self._problems.append(problem(row, "label", COST_EXPECTED, before))
                else:
                    played, (cost, propensity) = len(tags), read
            self._action_features.add(self._offered.count + len(tags), features)
            tags.append(_tag(before, labels))
            contents.append(features.strip().encode("utf-8", "replace"))
        self._offered.add(ids_of(tags, contents), played)
        self._rewards.append(cost)
        self._propensities.append(propensity)


def _is_label(labels: list[str]) -> bool:
    parts = labels[0].split(":")
    return len(labels) == 1 and len(parts) == 3 and parse_whole(parts[0]) is not None


def _tag(before: str, labels: list[str]) -> str | None:
    """Return the tag in the text before the bar: the last word, unless it is a label."""
    words = vw_words(before)
    return words[-1].removeprefix("'") or None if len(words) > len(labels) else None
