"""`onebit.export_log`: export a pipeline's decisions as a log that `run`, `estimate` and `train` read."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from consumers.decision_log import DecisionLog, ExportError, LeftOut, LoggedDecision, Range
from onebit.changes import settings_now
from producers.datasets.logs.seen_ids import SeenIds
from producers.datasets.logs.writing import ColumnType, NewLog, WrittenFiles, check_log_path
from stream.programs.connection import Connected, connected
from stream.programs.pass_progress import announced_passes
from stream.programs.since import parse_since
from stream.settings.definitions import Settings
from stream.settings.sources import given_settings
from stream.task.settings import TaskSettings
from stream.wire.named_features import Kind, from_plain, number_of, text_of
from stream.wire.records import HOLDOUT

FEATURES_MAX = 1_000
"""Limit on features without names, each of which is a column."""

CHUNK = 1_000
"""Number of decisions whose ids are looked up together."""

LEARNER_ARM = "learner"


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export."""

    files: WrittenFiles
    rows: int
    first_ms: int  # time of the first decision, in ms since 1970
    last_ms: int
    left_out: Mapping[LeftOut, int]  # number of decisions that are not in the log, by reason
    repeated: int  # decisions for an id that an earlier row has; their ids have a suffix
    ends_at_ms: int | None  # time of the oldest pending decision, before which the log ends

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, as in the JSON output of `onebit export log`."""
        return {
            **{name: None if path is None else str(path) for name, path in self.files._asdict().items()},
            "rows": self.rows,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "left_out": {str(reason): count for reason, count in sorted(self.left_out.items())},
            "repeated": self.repeated,
            "ends_at_ms": self.ends_at_ms,
        }


def export_log(
    out: str | Path,
    *,
    bootstrap: str = "localhost:9092",
    topic_prefix: str = "onebit.",
    since: str | None = None,
    until: str | None = None,
    **settings: Any,
) -> ExportReport:
    """Write a pipeline's settled decisions to a log, with its mapping beside it.

    Args:
        out: The log's file: .parquet, .jsonl or .jsonl.gz.
        bootstrap: Address of a Kafka broker, HOST:PORT.
        topic_prefix: The topics' prefix.
        since: Time of the first decision: a duration before now, such as "7d", or a time.
        until: Time at which the log ends, in the same form.
        settings: Other settings from docs/settings.md, by name, such as `client_config="client.properties"`.

    Raises:
        OnebitError: no broker responds, topics are missing, there are no decisions, or the file cannot be written.
    """
    given = given_settings({"bootstrap": bootstrap, "topic_prefix": topic_prefix, **settings})
    return exported_log(given, Path(out), since, until)


def exported_log(settings: Settings, out: Path, since: str | None = None, until: str | None = None) -> ExportReport:
    """Connect, and export; see `export_log`."""
    extent = Range(*(None if time is None else parse_since(time) for time in (since, until)))
    check_log_path(out)
    with connected(settings) as connection:
        return write_log(connection, out, extent)


def write_log(connection: Connected, out: Path, extent: Range) -> ExportReport:
    """Write the settled decisions of a pipeline to a log; see `export_log`.

    Raises:
        ExportError: there are no settled decisions, or too many features without names.
        DatasetError: the file cannot be written.
        SettingsError: the pipeline has not made a decision.
    """
    task = settings_now(connection).settings
    progress = announced_passes("first pass", "writing", "decisions")
    ids, left_out = _Ids(), Counter[LeftOut]()
    rows, first_ms, last_ms = 0, 0, 0
    with DecisionLog(*connection, extent, is_open=task.open_classes, envelope=task.envelope, progress=progress) as log:
        log.settle()
        is_there = {"propensity": log.has_propensities, "baseline": log.has_baselines}
        absent = [role for role, has_any in is_there.items() if not has_any]
        layout = _Layout(task, absent)
        with NewLog(out, layout.columns, layout.mapping, task.features) as new, closing(log.rows()) as decisions:
            for decision in chain.from_iterable(map(ids.unique, _chunks(decisions))):
                row = layout.row(decision)
                if row is None:
                    left_out[LeftOut.NO_NAMES] += 1
                    continue
                new.add(row)
                first_ms, last_ms = first_ms if rows else decision.decided_at_ms, decision.decided_at_ms
                rows += 1
            left_out += log.left_out
            if not rows:
                counts = "".join(f"; {count:,} {reason}" for reason, count in sorted(left_out.items()))
                raise ExportError(f"{connection.topics.predictions}: no settled decisions in the range{counts}")
            files = new.finish()
        return ExportReport(files, rows, first_ms, last_ms, dict(left_out), ids.repeated, log.ends_at_ms)


def _chunks(decisions: Iterator[LoggedDecision]) -> Iterator[list[LoggedDecision]]:
    while chunk := list(islice(decisions, CHUNK)):
        yield chunk


class _Ids:
    """Makes the ids of a log unique: the second decision for an id gets the suffix ~2, and so on."""

    def __init__(self) -> None:
        self._seen, self._counts = SeenIds(), Counter[str]()
        self.repeated = 0  # number of ids with a suffix

    def unique(self, decisions: Sequence[LoggedDecision]) -> Iterator[LoggedDecision]:
        """Yield the decisions with unique ids."""
        again = self._seen.repeated([decision.id for decision in decisions])
        for decision, is_repeated in zip(decisions, again.tolist(), strict=True):
            yield decision._replace(id=self._renamed(decision.id)) if is_repeated else decision

    def _renamed(self, event_id: str) -> str:
        self.repeated += 1
        while True:
            self._counts[event_id] += 1
            name = f"{event_id}~{self._counts[event_id] + 1}"
            if not self._seen.repeated([name])[0]:
                return name


_COLUMNS: dict[str, tuple[str, ColumnType]] = {
    "id": ("id", "text"),
    "timestamp": ("decided_at_ms", "whole"),
    "action": ("action", "text"),
    "propensity": ("propensity", "number"),
    "reward": ("reward", "number"),
    "delay": ("delay_ms", "whole"),
    "eligible": ("eligible", "texts"),
    "outcome": ("outcome", "text"),
    "arm": ("arm", "text"),
    "greedy": ("greedy", "text"),
    "version": ("model_version", "whole"),
    "baseline": ("baseline", "text"),
}
"""The columns other than features, by role. A feature with the same name keeps it; the column gets an underscore."""

_MAPPED = ("id", "timestamp", "action", "propensity", "reward", "delay", "eligible", "baseline")
"""The roles in the mapping."""


class _Layout:
    """The columns of a log, its mapping, and the conversion of decisions to rows."""

    def __init__(self, task: TaskSettings, absent: Collection[str]) -> None:
        self._task = task
        self._names = None if task.open_classes else task.class_names or tuple(map(str, range(task.n_classes)))
        if task.features is not None:
            self._kinds = {name: one.kind for name, one in from_plain(task.features).names.items()}
        elif task.n_features > FEATURES_MAX:
            raise ExportError(
                f"expected named features, or at most {FEATURES_MAX:,} features without names; got "
                f"{task.n_features:,}. Each feature without a name would be a column"
            )
        else:
            self._kinds = {f"x{index}": Kind.NUMERIC for index in range(task.n_features)}
        self._of = {role: self._free(name) for role, (name, _) in _COLUMNS.items() if role not in absent}
        self.columns: dict[str, ColumnType] = {name: _COLUMNS[role][1] for role, name in self._of.items()}
        self.columns |= {name: "number" if kind is Kind.NUMERIC else "text" for name, kind in self._kinds.items()}
        self.mapping: dict[str, Any] = {role: self._of[role] for role in _MAPPED if role in self._of}
        self.mapping |= {
            "time_unit": "ms",
            "delay_unit": "ms",
        }
        if self._names is not None:
            self.mapping["classes"] = list(self._names)
        if task.features is None:
            self.mapping["features"] = {"numeric": list(self._kinds)}

    def _free(self, name: str) -> str:
        """Return the name of a column that no feature has."""
        while name in self._kinds:
            name += "_"
        return name

    def row(self, decision: LoggedDecision) -> dict[str, Any] | None:
        """Return a decision as a row, or None if its features have no names but those of the pipeline have."""
        features = self._features(decision.x)
        if features is None:
            return None
        names, eligible = self._names, decision.eligible_names
        if names is not None and decision.eligible is not None and len(decision.eligible) < len(names):
            eligible = tuple(names[k] for k in decision.eligible)
        values: dict[str, Any] = {
            "id": decision.id,
            "timestamp": decision.decided_at_ms,
            "action": decision.class_name if names is None else names[decision.action],
            "propensity": decision.propensity,
            "reward": decision.reward,
            "delay": decision.delay_ms,
            "eligible": None if eligible is None else list(eligible),
            "outcome": str(decision.outcome),
            "arm": HOLDOUT if decision.arm == HOLDOUT else LEARNER_ARM,
            "greedy": self._class_name(decision.greedy),
            "version": decision.model_version,
            "baseline": self._class_name(decision.baseline),
        }
        return {name: values[role] for role, name in self._of.items()} | features

    def _class_name(self, k: int | None) -> str | None:
        return None if k is None or self._names is None else self._names[k]

    def _features(self, x: Any) -> dict[str, Any] | None:
        is_named = type(x) is dict and type(x.get("i")) is not list
        if is_named:
            return {name: self._value(name, value) for name, value in x.items() if value is not None}
        if self._task.features is not None:
            return None
        entries = enumerate(x) if type(x) is list else zip(x["i"], x.get("v") or repeat(1.0), strict=False)
        return {f"x{index}": float(value) for index, value in entries}

    def _value(self, name: str, value: object) -> object:
        return number_of(name, value) if self._kinds[name] is Kind.NUMERIC else text_of(value)
