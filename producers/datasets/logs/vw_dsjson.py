"""VW dsjson, the log format of decision services that use Vowpal Wabbit. Each line contains one decision.

    {"_label_cost": -1, "Timestamp": "2021-02-04T16:31:29.246Z", "EventId": "13118d", "a": [4, 2, 1, 3],
     "c": {"user": {"major": "engineering", "age": 21}, "_multi": [...]}, "p": [0.25, 0.25, 0.25, 0.25], ...}

The field `a` contains the numbers of the eligible actions, starting at 1. The logged action is a[0], with probability
p[0]. In lines without `a` and `p`, `_labelIndex` (from 0) and `_label_probability` are used. The reward is the negated
cost. A line without a cost is a decision without an outcome.

If an action in the first lines has features in `_multi`, all decisions are among actions with features; see
`formats`. Otherwise, the numbers of the actions are classes. `_slots` is ignored.

Lines with an outcome but no decision, and decisions that were never shown, are skipped and counted. A decision was not
shown if `_skipLearn` is true, or if it has a deferred action and no activation: it has a default cost, which says
nothing about the action.

`pdrop` is the probability that a decision was dropped when it was logged. If it is the same for all decisions, the rest
is a random sample of them. Otherwise, every mean over the log would be wrong, so the log is rejected.

The features' names are those of `ObjectEntries`, such as `user.age`. In the logs of Azure Personalizer, the context's
features are in `FromUrl`, and those of an action in `j`; `i` repeats its id. These features have the names that they
have in Personalizer's requests, so that a model fits a pipeline with Personalizer's interface.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from producers.datasets.base import DatasetError
from producers.datasets.log import MISSING
from producers.datasets.logs.columns import numbers, texts, times_ms
from producers.datasets.logs.json_lines import Objects, objects_of
from producers.datasets.logs.objects import ObjectEntries
from producers.datasets.logs.offered import OfferedRows, ids_of, problems_of_decisions
from producers.datasets.logs.parsed import (
    ACTION_MAX,
    FeatureEntries,
    Lists,
    Offered,
    ParsedBatch,
    Problem,
    Texts,
    distinct_of,
    is_action,
    problem,
)
from producers.datasets.logs.streams import Source
from producers.personalizer_features import flat_features
from stream.wire.codec import MalformedError
from stream.wire.records import FloatArray

NOTES = (
    "actions have no features in _multi; only context features are used",
    "the reward is the negated cost; an action is identified by its number in `a`, starting at 1",
)

NOTES_ON_ACTIONS = (
    "decisions are among the actions in _multi, whose ids are their tags or hashes of their features",
    "the reward is the negated cost; the baseline is the first action",
)


def batches(source: Source, *, has_actions: bool = False) -> Iterator[ParsedBatch]:
    """Yield the decisions in a file.

    Args:
        source: The file.
        has_actions: Whether the decisions are among the actions in `_multi`. Otherwise, their numbers are classes.

    Raises:
        DatasetError: decisions were dropped with different probabilities.
    """
    first_row = 0
    pdrop: float | None = None
    for objects in objects_of(source):
        lines = _Lines(objects, first_row, has_actions=has_actions)
        batch = lines.parse()
        pdrop = _same_pdrop(source, lines, batch, pdrop)
        yield batch
        first_row += len(objects.rows)


def _same_pdrop(source: Source, lines: "_Lines", batch: ParsedBatch, pdrop: float | None) -> float | None:
    """Return the value of `pdrop`, which is the same in all decisions so far."""
    unusable = {one.row for one in (*batch.left_out, *batch.problems)}
    for row, one in enumerate(lines.pdrops):
        if row in unusable or one == pdrop:
            continue
        if pdrop is not None:
            raise DatasetError(
                f"{source.name}, {batch.where(row)}, pdrop: expected {pdrop:g}, as in the lines before; got {one:g}. "
                "The logged decisions are not a random sample of all decisions, and rows have no weights. With q "
                "the largest pdrop, keep each line with probability (1 - q) / (1 - pdrop), and set pdrop to q"
            )
        pdrop = one
    return pdrop


class _Lines:
    """Parses the lines in a block and collects problems."""

    def __init__(self, objects: Objects, first_row: int, *, has_actions: bool) -> None:
        self._objects = objects
        self._has_actions = has_actions
        self._rows = objects.rows
        self._first_row = first_row
        self._problems = list(objects.problems)

    def parse(self) -> ParsedBatch:
        left_out = tuple(
            Problem(row, reason, "")
            for row, fields in enumerate(self._rows)
            if (reason := _reason_to_leave_out(fields)) is not None
        )
        ids = texts(self._column("EventId"), "EventId", self._problems)
        self._need("EventId", "the decision's id", ids.missing())
        times = times_ms(self._column("Timestamp"), "Timestamp", None, self._problems)
        actions, propensities = self._played()
        offered = self._offered(actions) if self._has_actions else None
        return ParsedBatch(
            n=len(self._rows),
            first_row=self._first_row,
            ids=ids,
            decided_at_ms=times,
            actions=None if self._has_actions else actions,
            propensities=propensities,
            rewards=self._rewards(),
            features=self._features(),
            problems=tuple(self._problems),
            where=self._objects.where,
            left_out=left_out,
            eligible=None if self._has_actions else self._eligible(),
            offered=offered,
        )

    def _played(self) -> tuple[Texts, FloatArray]:
        actions: list[str | None] = []
        propensities = np.full(len(self._rows), np.nan)
        for row, fields in enumerate(self._rows):
            action, propensity = _played(fields)
            if not is_action(action):
                self._problems.append(problem(row, "a", f"a list of actions from 1 to {ACTION_MAX}", fields.get("a")))
                action = None
            elif not _is_pdrop(fields.get("pdrop", 0)):
                self._problems.append(problem(row, "pdrop", "a probability in [0, 1)", fields["pdrop"]))
            elif type(propensity) not in (int, float) or not 0.0 < propensity <= 1.0:
                expected = "one probability per action, the first in (0, 1]"
                self._problems.append(problem(row, "p", expected, fields.get("p", fields.get("_label_probability"))))
            else:
                propensities[row] = propensity
            actions.append(None if action is None else str(action))
        return Texts.of(actions), propensities

    def _rewards(self) -> FloatArray:
        costs = numbers(self._column("_label_cost"), "_label_cost", "a number", self._problems)
        return 0.0 - costs  # avoids -0

    def _eligible(self) -> Lists:
        listed = [
            tuple(map(str, actions))
            if type(actions := fields.get("a")) is list and all(map(is_action, actions))
            else None
            for fields in self._rows
        ]
        return Lists(*distinct_of(listed))

    @property
    def pdrops(self) -> list[float]:
        """The probability that each decision was dropped. Decisions with an invalid value have a problem."""
        return [float(value) if _is_pdrop(value := fields.get("pdrop", 0)) else 0.0 for fields in self._rows]

    def _features(self) -> tuple[FeatureEntries, ...]:
        found = ObjectEntries(self._problems)
        for row, fields in enumerate(self._rows):
            context = fields.get("c")
            if type(context) is not dict:
                self._problems.append(problem(row, "c", "an object with the context", context))
                continue
            x = _without_namespace(context, "FromUrl") if _is_personalizer(context) else context
            self._add(found, row, row, x)
        return found.columns()

    def _offered(self, played: Texts) -> Offered:
        """Return the actions in `_multi`. The played and the eligible actions are numbers, starting at 1."""
        rows, of_actions = OfferedRows(), list[Problem]()
        found = ObjectEntries(of_actions)
        for row, fields in enumerate(self._rows):
            context = fields["c"] if type(fields.get("c")) is dict else {}
            actions = context.get("_multi")
            if type(actions) is not list or not actions or not all(type(action) is dict for action in actions):
                self._problems.append(problem(row, "c._multi", "a list of objects, one for each action", actions))
                rows.add(())
                continue
            is_from_personalizer = _is_personalizer(context)
            for place, action in enumerate(actions):
                x = _without_namespace({"j": action.get("j")}, "j") if is_from_personalizer else action
                self._add(found, rows.count + place, row, x)
            numbers = given if type(given := fields.get("a")) is list and given else range(1, len(actions) + 1)
            listed = sorted(number - 1 for number in numbers) if all(map(is_action, numbers)) else [0]
            if listed[-1] >= len(actions) or len(set(listed)) < len(listed):
                self._problems.append(problem(row, "a", f"distinct numbers from 1 to {len(actions)}", numbers))
            try:
                ids = _ids(actions)
            except orjson.JSONEncodeError:
                self._problems.append(_too_deep(row))
                ids = list(map(str, range(len(actions))))
            rows.add(
                ids,
                int(played[row] or 0) - 1,
                0 if listed[0] == 0 else MISSING,
                listed,
            )
        offered = rows.offered(found.columns())
        self._problems += problems_of_decisions(offered, of_actions)
        return offered

    def _add(self, found: ObjectEntries, number: int, row: int, x: dict[str, Any] | MalformedError) -> None:
        """Add the features of a context or an action."""
        if isinstance(x, MalformedError):
            self._problems.append(Problem(row, "c: expected features as in requests", str(x)))
        else:
            try:
                found.add_object(number, "", x)
            except RecursionError:
                self._problems.append(_too_deep(row))

    def _column(self, name: str) -> list[Any]:
        return [fields.get(name) for fields in self._rows]

    def _need(self, field: str, expected: str, nulls: "np.ndarray[Any, np.dtype[np.bool_]]") -> None:
        self._problems.extend(problem(row, field, expected, None) for row in np.flatnonzero(nulls).tolist())


def _is_personalizer(context: dict[str, Any]) -> bool:
    """Return whether a context has the form of Azure Personalizer's logs."""
    actions = context.get("_multi")
    return type(actions) is list and all(
        type(action) is dict
        and action.keys() <= {"_tag", "i", "j"}
        and type(action.get("i")) is dict
        and action["i"].get("id") == action.get("_tag")
        for action in actions
    )


def _without_namespace(fields: dict[str, Any], namespace: str) -> dict[str, Any] | MalformedError:
    """Return fields with the features of a namespace by their own names, or the reason why they are invalid."""
    given = fields.get(namespace)
    try:
        own = flat_features(namespace, [given] if type(given) is dict else given)
    except MalformedError as error:
        return error
    return own | {name: value for name, value in fields.items() if name != namespace}


def _too_deep(row: int) -> Problem:
    return Problem(row, "c: expected fewer than 100 levels of nesting", "more levels")


def _ids(actions: list[dict[str, Any]]) -> list[str]:
    tags = [tag if type(tag := action.get("_tag")) is str else None for action in actions]
    contents = (
        orjson.dumps({name: value for name, value in action.items() if name != "_tag"}, option=orjson.OPT_SORT_KEYS)
        for action in actions
    )
    return ids_of(tags, contents)


def _reason_to_leave_out(fields: dict[str, Any]) -> str | None:
    if "c" not in fields and ("RewardValue" in fields or "Observations" in fields):
        return "an outcome without a decision"
    skips = fields.get("_skipLearn")
    if skips is None and fields.get("DeferredAction") is True:
        observations = fields.get("o")
        listed = observations if type(observations) is list else []
        skips = not any(type(one) is dict and one.get("ActionTaken") is True for one in listed)
    return "a decision that was not shown (_skipLearn, or DeferredAction without activation)" if skips else None


def _is_pdrop(value: object) -> bool:
    return type(value) in (int, float) and 0.0 <= value < 1.0  # type: ignore[operator]


def _played(fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return the number and the probability of the played action, without checks."""
    actions, probabilities = fields.get("a"), fields.get("p")
    if actions is None and probabilities is None:
        index = fields.get("_labelIndex")
        return (index + 1 if type(index) is int else None), fields.get("_label_probability")
    if type(actions) is not list or not actions or not all(map(is_action, actions)):
        return None, None
    if type(probabilities) is not list or len(probabilities) != len(actions):
        return actions[0], None
    return actions[0], probabilities[0]
