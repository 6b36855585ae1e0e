"""`onebit.export_log`: export a pipeline's decisions as a log that `run`, `estimate` and `train` read."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from consumers.decision_log import DecisionLog, ExportError, LeftOut, LoggedDecision, Range
from onebit.changes import settings_now
from producers.datasets.logs.objects import features_of
from producers.datasets.logs.seen_ids import SeenIds
from producers.datasets.logs.writing import ColumnType, NewLog, WrittenFiles, check_log_path
from stream.programs.connection import Connected, connected
from stream.programs.pass_progress import announced_passes
from stream.programs.since import parse_since
from stream.settings.definitions import Settings
from stream.settings.sources import given_settings
from stream.task.settings import TaskSettings
from stream.wire.named_features import ACTIONS, FeatureEncoder, Kind, build, from_plain, number_of, text_of, to_plain
from stream.wire.records import HOLDOUT

FEATURES_MAX = 1_000
"""Limit on features without names, each of which is a column."""

ACTION_FEATURES_MAX = 100_000
"""Limit on features of actions without names, each of which is listed in the file with the indices."""

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
        with NewLog(out, layout.columns, layout.mapping, layout.encoding) as new, closing(log.rows()) as decisions:
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
    "actions": ("actions", "plain"),
    "x": ("x", "plain"),
}
"""The columns other than features, by role. A feature with the same name keeps it; the column gets an underscore."""

_MAPPED = ("id", "timestamp", "action", "propensity", "reward", "delay", "eligible", "baseline", "actions", "x")
"""The roles in the mapping."""


class _Layout:
    """The columns of a log, its mapping, and the conversion of decisions to rows."""

    def __init__(self, task: TaskSettings, absent: Collection[str]) -> None:
        self._task = task
        self._blocks = task.blocks
        self._names = None
        if not task.open_classes and self._blocks is None:
            self._names = task.class_names or tuple(map(str, range(task.n_classes)))
        self._encoder = _encoder_of(task.features, task.context_features, FEATURES_MAX)
        self._action_encoder = None
        if self._blocks is not None and task.actions is not None:
            of_actions = task.actions["features"]
            self._action_encoder = _encoder_of(of_actions, self._blocks.features, ACTION_FEATURES_MAX)
        # An encoder without names accepts every name, so that the columns are unknown.
        without = {
            *absent,
            *(() if self._blocks is not None else ("actions",)),
            *(("x",) if self._encoder.names else ()),
        }
        self._kinds = {name: one.kind for name, one in self._encoder.names.items()}
        self._of = {role: self._free(name) for role, (name, _) in _COLUMNS.items() if role not in without}
        self.columns: dict[str, ColumnType] = {name: _COLUMNS[role][1] for role, name in self._of.items()}
        self.columns |= {name: "number" if kind is Kind.NUMERIC else "text" for name, kind in self._kinds.items()}
        self.mapping: dict[str, Any] = {role: self._of[role] for role in _MAPPED if role in self._of}
        self.mapping |= {"time_unit": "ms", "delay_unit": "ms"}
        if self._names is not None:
            self.mapping["classes"] = list(self._names)
        if self._blocks is not None:
            self.mapping["actions_max"] = self._blocks.places
        self.encoding: dict[str, Any] | None = None  # the indices of named features, and of actions' features
        if self._action_encoder is not None:
            self.encoding = to_plain(self._encoder) | {ACTIONS: to_plain(self._action_encoder)}
        elif task.features is not None:
            self.encoding = dict(task.features)
        else:
            self.mapping["features"] = {"numeric": list(self._kinds)}

    def _free(self, name: str) -> str:
        """Return the name of a column that no feature has."""
        while name in self._kinds:
            name += "_"
        return name

    def row(self, decision: LoggedDecision) -> dict[str, Any] | None:
        """Return a decision as a row, or None if its features have no names but those of the pipeline have."""
        features = _named(decision.x, self._encoder, has_names=self._task.features is not None)
        actions = [self._action(one) for one in decision.actions or ()]
        if features is None or None in actions:
            return None
        names, eligible = self._names, decision.eligible_names
        classes = [one["id"] for one in decision.actions or ()] if names is None else names
        if decision.eligible is not None and len(decision.eligible) < len(classes):
            eligible = tuple(classes[k] for k in decision.eligible)
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
            "greedy": _class_name(decision.greedy, classes),
            "version": decision.model_version,
            "baseline": _class_name(decision.baseline, classes),
            "actions": actions,
            "x": features,
        }
        row = {name: values[role] for role, name in self._of.items()}
        return row if "x" in self._of else row | features

    def _action(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return an action with named features, or None if its features have no names."""
        assert self._action_encoder is not None
        assert self._task.actions is not None
        has_names = self._task.actions["features"] is not None
        x = _named(given.get("x"), self._action_encoder, has_names=has_names)
        return None if x is None else {"id": given["id"], "x": x}


def _encoder_of(features: Mapping[str, Any] | None, count: int, count_max: int) -> FeatureEncoder:
    """Return the encoder of named features. Features without names are called x0, x1, and so on.

    Raises:
        ExportError: there are too many features without names.
    """
    if features is not None:
        return from_plain(features)
    if count > count_max:
        raise ExportError(
            f"expected named features, or at most {count_max:,} features without names; got {count:,}. Each feature "
            "without a name would be listed"
        )
    return build({f"x{index}": (Kind.NUMERIC, None) for index in range(count)}, None)


def _class_name(k: int | None, classes: Sequence[str]) -> str | None:
    return None if k is None or not classes else classes[k]


def _named(x: Any, encoder: FeatureEncoder, *, has_names: bool) -> dict[str, Any] | None:
    """Return features by name, or None if they have no names but those of the pipeline have."""
    if type(x) is dict and type(x.get("i")) is not list:
        return {name: _value(name, value, encoder) for name, value in x.items() if value is not None}
    if has_names and x is not None:
        return None
    return {name: float(value) for name, value in (features_of(x) or {}).items()}


def _value(name: str, value: object, encoder: FeatureEncoder) -> object:
    if not encoder.names:
        return value
    return number_of(name, value) if encoder.names[name].kind is Kind.NUMERIC else text_of(value)
