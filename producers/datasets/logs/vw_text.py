"""VW contextual-bandit text: `action:cost:probability | features`, one decision per line.

    2:-1:0.25 |user major=engineering age:21 |time hour=9

The reward is the negated cost. Actions without a cost are other actions that could have been played: if a line lists
any, the listed actions are the eligible ones. A line without action:cost:probability is a context without a decision.
A word that touches the bar is a tag. Tags are ignored, because they need not be unique. An id consists of the file name
and the row number.

Each namespace is a categorical feature, and the VW features in the namespace are its categories. The VW feature
`city:paris` becomes the category `city=paris`. Features without a namespace belong to `default`.
"""

import math
import re
from collections.abc import Iterator

import numpy as np

from producers.datasets.logs.formats import vw_labels, vw_words
from producers.datasets.logs.parsed import (
    ACTION_MAX,
    FeatureEntries,
    Lists,
    ParsedBatch,
    Problem,
    Texts,
    distinct_of,
    is_action,
    problem,
)
from producers.datasets.logs.streams import LineBlock, Source, line_blocks
from stream.parsing import parse_number, parse_whole
from stream.text import is_utf8
from stream.wire.named_features import Kind, text_of

NOTES = (
    "the reward is the negated cost; an action is identified by its number, starting at 1",
    "tags are ignored; each namespace is a categorical feature",
)

DEFAULT_NAMESPACE = "default"

_NOT_FINITE = re.compile(r"[+-]?(nan(\(.*\))?|inf|infinity|[0-9.]+(e[+-]?[0-9]+)?)", re.IGNORECASE)
"""Text that is read as a number by Vowpal Wabbit. If `parse_number` rejects it, the number is not finite."""

_EXPECTED = f"labels such as 2:0:0.25 (action:cost:probability) before the |, with actions from 1 to {ACTION_MAX}"


def batches(source: Source) -> Iterator[ParsedBatch]:
    """Yield the decisions in a file."""
    first_row = 0
    for block in line_blocks(source.chunks()):
        lines = _Lines(block, first_row)
        if lines.numbers:
            yield lines.parse()
            first_row += len(lines.numbers)


class _Lines:
    """Parses the lines in a block and collects problems."""

    def __init__(self, block: LineBlock, first_row: int) -> None:
        text = "|" if block.fault is not None else block.data.decode("utf-8", "surrogateescape")
        numbered = [(number, line) for number, line in enumerate(text.split("\n"), block.first_line) if line.strip()]
        self.numbers = [number for number, _ in numbered]
        self._lines = [line.removesuffix("\r") for _, line in numbered]
        self._first_row = first_row
        self._problems: list[Problem] = []
        if block.fault is not None:
            self._problems.append(Problem(0, *block.fault))
        self._actions: list[str | None] = []
        self._rewards: list[float] = []
        self._propensities: list[float] = []
        self._listed: list[tuple[str, ...] | None] = []
        self._features = Namespaces(self._problems)

    def parse(self) -> ParsedBatch:
        for row, line in enumerate(self._lines):
            label, bar, features = line.partition("|")
            if not bar or not is_utf8(line):
                self._problems.append(problem(row, "line", LINE_EXPECTED, line))
            self._add_label(row, label)
            self._features.add(row, features)
        return ParsedBatch(
            n=len(self._lines),
            first_row=self._first_row,
            actions=Texts.of(self._actions),
            propensities=np.array(self._propensities),
            rewards=0.0 - np.array(self._rewards),
            features=self._features.columns(),
            problems=tuple(self._problems),
            where=lambda row: f"line {self.numbers[row]}",
            eligible=Lists(*distinct_of(self._listed)),
        )

    def _add_label(self, row: int, label: str) -> None:
        tokens = vw_labels(label)
        action: str | None = None
        cost = propensity = math.nan
        listed: list[str] = []
        for token in tokens:
            parts = token.split(":")
            number = parse_whole(parts[0])
            if not is_action(number) or len(parts) not in (1, 3) or (len(parts) == 3 and action is not None):
                self._problems.append(problem(row, "label", _EXPECTED, token))
                break
            listed.append(str(number))
            if len(parts) == 3:
                action = str(number)
                read = cost_and_probability(token)
                if read is None:
                    self._problems.append(problem(row, "label", COST_EXPECTED, token))
                    break
                cost, propensity = read
        self._listed.append(tuple(listed) if len(listed) > 1 or (listed and action is None) else None)
        self._actions.append(action)
        self._rewards.append(cost)
        self._propensities.append(propensity)


class Namespaces:
    """The features of all rows, by namespace."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._entries: dict[str, tuple[list[int], list[float], list[str]]] = {}

    def add(self, row: int, features: str) -> None:
        """Add the text after the first bar of a line."""
        for text in features.split("|"):
            self._add_namespace(row, text)

    def columns(self) -> tuple[FeatureEntries, ...]:
        """Return the entries."""
        return tuple(
            FeatureEntries(name, Kind.CATEGORICAL, np.array(rows, np.int64), np.array(values), _texts(texts))
            for name, (rows, values, texts) in self._entries.items()
        )

    def _add_namespace(self, row: int, text: str) -> None:
        tokens = vw_words(text)
        name, weight = DEFAULT_NAMESPACE, 1.0
        if tokens and text[0] not in " \t":
            name, colon, given = tokens.pop(0).partition(":")
            number = parse_number(given) if colon else 1.0
            if number is None:
                self._problems.append(problem(row, f"namespace {name}", "a number after the colon", given))
            else:
                weight = number
        rows, values, texts = self._entries.setdefault(name, ([], [], []))
        for token in tokens:
            feature, colon, given = token.partition(":")
            if not feature:
                continue  # empty name
            number = parse_number(given) if colon else 1.0
            if number is None and _NOT_FINITE.fullmatch(given):
                self._problems.append(problem(row, f"{name}: {feature}", "a finite number after the colon", given))
            rows.append(row)
            values.append(weight * (1.0 if number is None else number))
            texts.append(f"{feature}={given}" if number is None else feature)


def cost_and_probability(token: str) -> tuple[float, float] | None:
    """Return the cost and the probability of a label action:cost:probability, or None if they are invalid."""
    cost, propensity = map(parse_number, token.split(":")[1:])
    return None if cost is None or propensity is None or not 0.0 < propensity <= 1.0 else (cost, propensity)


LINE_EXPECTED = "UTF-8 text with a | before the features"
COST_EXPECTED = "a cost, and a probability in (0, 1]"


def _texts(texts: list[str]) -> Texts:
    return Texts.of([text_of(text) or text for text in (one.encode("utf-8", "replace").decode() for one in texts)])
