"""Guess a mapping from a table's column names and first values, and format the mapping as TOML."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from producers.datasets.log import MISSING
from producers.datasets.logs.columns import Column, delays_ms, numbers, texts, times_ms
from producers.datasets.logs.mapping import unit_of_name, words_of_name
from producers.datasets.logs.offered import lists_of_actions
from producers.datasets.logs.parsed import Problem, Texts
from producers.datasets.logs.survey import DECIMAL_COMMA, NUMBER, ODD_SHARE_MAX
from producers.datasets.logs.tables import Table
from stream.wire.named_features import Kind, words_of
from stream.wire.records import FloatArray

ROLE_NAMES: dict[str, tuple[str, ...]] = {
    "actions": ("actions", "candidates", "offered", "options"),
    "timestamp": (
        "timestamp", "decided_at", "decided_at_ms", "event_time", "time", "ts", "datetime", "created_at", "date",
        "when",
    ),
    "propensity": (
        "propensity", "propensity_score", "pscore", "logging_probability", "action_probability", "action_prob",
        "probability", "prob", "p",
    ),
    "action": (
        "action", "action_id", "chosen_action", "chosen", "picked", "arm", "item_id", "item", "variant", "decision",
        "a",
    ),
    "reward": (
        "reward", "click", "clicked", "converted", "conversion", "bought", "purchased", "success", "outcome", "r",
    ),
    "label": ("label", "true_label", "y", "class", "target"),
    "feedback_time": ("feedback_time", "feedback_at", "feedback_at_ms", "reward_time", "outcome_time", "click_time"),
    "delay": (
        "delay", "delay_ms", "delay_s", "delay_seconds", "feedback_delay", "feedback_delay_ms", "feedback_delay_s",
    ),
    "id": ("id", "event_id", "eventid", "impression_id", "request_id", "uuid"),
}  # fmt: skip
"""Common column names by role, most likely first."""

KNOWN_LATER = ("reward", "feedback_time", "delay")
"""Roles of values that are known only after the decision. If a column with such a role were a feature, it would leak
the outcome."""

DELAY_WORDS = frozenset(("delay", "latency", "wait", "lag", "to", "until"))
"""A column is a delay if its name has one of these words and a unit, such as minutes_to_buy or click_latency_ms."""

CATEGORIES_MAX = 20
"""Maximum number of distinct integers in a categorical column. Each of these integers must be frequent."""

WORDS_MIN = 4.0
"""Minimum mean number of words in a text column."""


class Guess(NamedTuple):
    """A guessed mapping."""

    fields: dict[str, Any]  # the mapping, with the keys of a mapping file
    remarks: tuple[str, ...]  # omitted columns, and points for the user to check


def guess(table: Table) -> Guess:
    """Guess a mapping from the first rows of a table."""
    columns = dict(table.columns)
    fields: dict[str, Any] = {}
    remarks = _on_how_it_is_written(table.columns)
    for role, names in ROLE_NAMES.items():
        named = [column for name in names for column in columns if _plain(column) == name]
        if role == "delay":
            named += filter(_is_delay, columns)
        found = next((column for column in named if _can_be(role, columns[column])), None)
        if found is not None:
            if (role == "delay" and "feedback_time" in fields) or (
                role == "feedback_time" and "timestamp" not in fields
            ):
                continue
            fields[role] = found
            del columns[found]
    if "actions" in fields and (name := fields.pop("label", None)) is not None:
        remarks.append(f"{name!r} is omitted: decisions among actions have no label")
    for role in ("timestamp", "feedback_time", "id"):
        if role not in fields and (name := _by_values(role, fields, columns)) is not None:
            fields[role] = name
            del columns[name]
    remarks += _on_roles(fields, table.columns)
    for name in [name for name in columns if _is_known_later(name)]:
        del columns[name]
        remarks.append(
            f"{name!r} is omitted: its name suggests a value known only after the decision; "
            "if that is wrong, list it as a feature"
        )
    features: dict[str, list[str]] = {str(kind): [] for kind in (Kind.NUMERIC, Kind.CATEGORICAL, Kind.TEXT)}
    for name, column in columns.items():
        kind = _kind_of(name, column)
        if isinstance(kind, Kind):
            features[str(kind)].append(name)
        else:
            remarks.append(f"{name!r} is omitted: {kind}")
    fields["features"] = {kind: names for kind, names in features.items() if names}
    return Guess(fields, tuple(remarks))


def to_toml(guessed: Guess) -> str:
    """Return a guess as a mapping file, with remarks as comments."""
    lines = [f"# {remark}" for remark in guessed.remarks]
    lines += [f"{key} = {_text(value)}" for key, value in guessed.fields.items() if key != "features"]
    lines += ["", "# do not list values that are known only after the decision", "[features]"]
    for kind, names in guessed.fields["features"].items():
        listed = ", ".join(map(_text, names))
        lines += (
            [f"{kind} = [{listed}]"]
            if len(listed) < 100
            else [f"{kind} = [", *(f"  {_text(one)}," for one in names), "]"]
        )
    return "\n".join(lines) + "\n"


def _can_be(role: str, column: Column) -> bool:
    """Return whether a column's values are valid for a role."""
    if role in ("timestamp", "feedback_time"):
        problems: list[Problem] = []
        found = times_ms(column, "", None, problems)
        return _are_few(problems, int(np.count_nonzero(found != MISSING))) and bool((found != MISSING).any())
    if role == "delay":
        problems = []
        delays = delays_ms(column, "", "s", problems)
        return _are_few(problems, int(np.count_nonzero(delays != MISSING))) and bool((delays != MISSING).any())
    if role == "actions":
        problems = []
        return any(lists_of_actions(column, "", problems)) and not problems
    if role in ("reward", "propensity"):
        values = _numbers(column)
        return values is not None and bool(np.isfinite(values).any())
    if role in ("action", "label"):
        values = _numbers(column)
        return values is None or bool(np.all(np.floor(values) == values, where=np.isfinite(values)))
    return True


def _by_values(role: str, fields: dict[str, Any], columns: Mapping[str, Column]) -> str | None:
    """Return a column whose role can be identified from its values alone, such as times or unique strings."""
    if role == "feedback_time" and ("timestamp" not in fields or "delay" in fields):
        return None
    for name, column in columns.items():
        if _numbers(column) is not None:
            continue
        if role == "id":
            if _are_ids(column):
                return name
        elif _can_be(role, column):
            return name
    return None


def _are_ids(column: Column) -> bool:
    """Return whether all values are short, distinct strings that are not times."""
    problems: list[Problem] = []
    found = texts(column, "", problems)
    distinct = found.distinct
    if problems or not CATEGORIES_MAX < len(distinct) == len(found) or _are_times(found):
        return False
    return all(len(words_of(text)) <= WORDS_MIN for text in distinct)


def _on_how_it_is_written(columns: Mapping[str, Column]) -> list[str]:
    remarks = []
    if columns and all(NUMBER.fullmatch(name) for name in columns):
        remarks.append("the column names are numbers: if the first line is data, insert a header line")
    commas = [name for name, column in columns.items() if _have_decimal_commas(column)]
    if commas:
        named = ", ".join(map(repr, commas))
        remarks.append(f"{named}: {DECIMAL_COMMA}")
    return remarks


def _have_decimal_commas(column: Column) -> bool:
    """Return whether all values in a column are numbers, some with a decimal comma."""
    listed = texts(column, "", []).distinct
    return all(map(NUMBER.fullmatch, listed)) and any("," in text for text in listed)


def _on_roles(fields: dict[str, Any], columns: Mapping[str, Column]) -> list[str]:
    remarks = []
    if "delay" in fields and _plain(fields["delay"]) not in ROLE_NAMES["delay"]:
        named = repr(fields["delay"])
        remarks.append(
            f"{named} is mapped as the outcome's delay; if it is known before the decision, list it as a feature"
        )
    if "action" not in fields and "label" not in fields:
        remarks.append("no column looks like the played action or the correct label: add action = or label =")
    if "action" not in fields:
        taken = [(role, fields.pop(role)) for role in ("reward", "propensity") if role in fields]
        remarks += [f"{name!r} looks like the {role} of an action" for role, name in taken]
    if "reward" in fields:
        rewards = _numbers(columns[fields["reward"]])
        if rewards is not None and not np.isin(rewards[~np.isnan(rewards)], (0.0, 1.0)).all():
            remarks.append("not all rewards are 0 or 1: set rewards=graded and reward_range, or reward_above")
    if "propensity" in fields:
        values = _numbers(columns[fields["propensity"]])
        if values is not None and not ((values > 0.0) & (values <= 1.0)).all():
            remarks.append("not all propensities are in (0, 1]: rows with other values are invalid")
    elif "action" in fields:
        remarks.append("no column looks like the action's propensity: most estimates require it")
    return remarks


def _kind_of(name: str, column: Column) -> Kind | str:
    """Return a column's feature kind, or the reason why it is not a feature."""
    values = _numbers(column)
    if values is not None:
        there = values[~np.isnan(values)]
        distinct = np.unique(there)
        if _plain(name) in ("", "unnamed_0", "index") and np.all(np.diff(there) > 0):
            return "the column contains row numbers"
        whole = bool(np.all(there == np.floor(there)) and np.all(there >= 0))
        few = (
            2 < distinct.size <= min(CATEGORIES_MAX, there.size / 5) and np.mean(there == 0) < 0.5
        )  # many zeros suggest a count
        return Kind.CATEGORICAL if whole and few else Kind.NUMERIC
    problems: list[Problem] = []
    found = texts(column, name, problems)
    if problems:
        return f"the values are neither strings nor numbers, for example {problems[0].got}"
    listed = found.distinct
    if listed and sum(len(words_of(text)) for text in listed) / len(listed) >= WORDS_MIN and not _are_times(found):
        return Kind.TEXT
    if len(listed) > CATEGORIES_MAX and len(listed) == len(found):
        return "all values are distinct; if the column is a feature, list it"
    return Kind.CATEGORICAL


def _are_times(column: Texts) -> bool:
    problems: list[Problem] = []
    times_ms(column, "", None, problems)
    return not problems


def _numbers(column: Column) -> FloatArray | None:
    """Return the values of a numeric column, with NaN for invalid values, or None if too many are invalid."""
    problems: list[Problem] = []
    found = numbers(column, "", "", problems)
    is_valid = np.isfinite(found)
    return np.where(is_valid, found, np.nan) if _are_few(problems, int(np.count_nonzero(is_valid))) else None


def _are_few(problems: Sequence[Problem], valid: int) -> bool:
    """Return whether few of the values that are not missing are invalid."""
    return len(problems) <= ODD_SHARE_MAX * (valid + len(problems))


def _is_delay(name: str) -> bool:
    return unit_of_name(name) is not None and not DELAY_WORDS.isdisjoint(words_of_name(name))


def _is_known_later(name: str) -> bool:
    return _is_delay(name) or any(_plain(name) in ROLE_NAMES[role] for role in KNOWN_LATER)


def _plain(name: str) -> str:
    """Return the last part of a name, in lower case, with _ between its words."""
    return re.sub(r"[^a-z0-9]+", "_", name.rsplit(".", 1)[-1].lower()).strip("_")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
