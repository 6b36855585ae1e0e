"""A learner's run: its results, and their JSON, which is printed, and saved in pages.

The terms are the same as in the topics: a context is *decided*, its decision is *matched* or *expired*, and feedback
is matched, *late*, *duplicate*, *orphan* or *malformed*.

A page contains its runs in compressed form, in an inert element, and offers them for download as JSON; docs/formats.md
describes the format.
"""

import base64
import binascii
import gzip
import math
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
from msgspec import Struct, field
from numpy.typing import NDArray

from stream.errors import OnebitError
from stream.estimating.live_results import ArmComparison, ChallengerComparison, LiveEstimates
from stream.measures.errors import DelayedCurve, Errors, ShareCurve
from stream.measures.latencies import Behind, Delays, Latency, LatencyCounts, ReplicaReport
from stream.measures.rates import Rate, rate
from stream.telemetry.sketch import Sketch
from stream.wire.actions import CONTEXT
from stream.wire.ledger import Ledger
from stream.wire.rewards import BITS, RewardRange


def versions() -> dict[str, Any]:
    """Return the software versions on which a run's results may depend, keyed by name."""
    return {
        "onebit": version("onebit"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "machine": platform.machine(),
    }


class Curve(NamedTuple):
    """A run's progressive error at up to 400 points."""

    events: NDArray[np.int64]  # [n] number of decisions so far
    error: NDArray[np.float64]  # [n] fraction of wrong actions
    window_error: NDArray[
        np.float64
    ]  # [n] fraction of wrong actions in a sliding window (one twentieth of the run); nan until the window is full


class LearnerRun(Struct, frozen=True, kw_only=True):
    """One learner's run on one stream of events. Values derived from the ledger or the errors are not stored."""

    data: str
    learner: str
    """The learner's name."""
    parameters: Mapping[str, float | int | str] = field(name="params")
    """The learner's parameters, including defaults."""
    seed: int
    """The seed for all random draws."""
    events: int  # number of contexts to replay
    classes: int  # number of classes, or maximum number of actions
    features: int
    ledger: Ledger
    """The counts of contexts, decisions and feedback."""
    errors: Errors
    updates: int  # number of updates that changed the model
    state_sha256: str
    virtual_s: float  # duration according to the broker's clock
    wall_s: float
    """The wall time in seconds."""
    settings: Mapping[str, Any]  # effective settings by name; `command` is the command line
    full_information: bool = False  # True if the learner learns from the true class
    delays: Delays | None = None
    constant_error_rate: Rate = math.nan  # error of always choosing the most frequent class; nan if unknown
    page: str | None = field(default=None, name="report")  # path to the page
    feedback_after_end: Rate = math.nan  # fraction of the matched feedback that arrived after the last decision
    delayed: DelayedCurve = field(default=DelayedCurve(), name="delayed_curve")  # known outcomes over time
    warnings: tuple[str, ...] = ()
    """Reasons why the figures may be misleading."""
    drift_alarms: int = 0  # number of times that drift detection reset the model or a class
    estimate: LiveEstimates | None = None  # estimate of the learner's own policy; None if not requested
    holdout: ArmComparison | None = field(default=None, name="arms")
    """The comparison of the learner with its holdout, or None if there is no holdout."""
    challengers: ChallengerComparison | None = None
    """The challengers' estimates, or None if there are no challengers."""
    model: str = "own"  # `own` (one model per partition) or `shared`
    replicas: tuple[ReplicaReport, ...] = ()  # replicas of a shared model
    model_behind: Behind | None = None  # for a shared model: percentiles over the steps that wrote to the log
    first_feedback: int | None = None  # number of decisions before the first matched feedback
    delay_counts: Sketch | None = None  # histogram of `delays`
    exploration: ShareCurve = ShareCurve()  # rate of non-greedy actions
    latency_counts: LatencyCounts | None = None
    changed: tuple[str, ...] = ()  # names of the settings that differ from the defaults
    versions: Mapping[str, str] = field(default_factory=dict)  # versions of Onebit and its dependencies
    latency: Latency | None = None  # latency of decisions on Kafka; None in virtual time
    reward_range: tuple[float, float] | None = None  # the lowest and the highest graded reward; None for bits
    audit_ok: bool = True  # True if the ledger recomputed from the topics equals the learner's

    @property
    def has_actions(self) -> bool:
        """Whether contexts list actions with features. Only the learners for actions have the parameter `context`."""
        return CONTEXT in self.parameters

    @property
    def graded(self) -> RewardRange | None:
        """The range of graded rewards, or None for bits. The errors are then mean losses: 1 minus a reward's share."""
        return None if self.reward_range is None else RewardRange(*self.reward_range)

    @property
    def error(self) -> float:
        """The progressive error: the fraction of wrong actions.

        It is nan if no outcome is known, and for graded rewards.
        """
        return self.errors.error_rate if self.graded is None else math.nan

    @property
    def error_last_fifth(self) -> float:
        """The error over the last fifth of the events."""
        return self.errors.error_rate_last_fifth if self.graded is None else math.nan

    @property
    def greedy_error(self) -> float:
        """The error of the greedy classes, that is, the error without exploration."""
        return self.errors.greedy_error_rate if self.graded is None else math.nan

    @property
    def mean_reward(self) -> float:
        """The mean reward of the decisions: for bits, the fraction of right actions. It is nan if none is known."""
        return self.reward_of(self.errors.error_rate)

    def reward_of(self, error_rate: float) -> float:
        """Return the mean reward for an error or a mean loss."""
        return (self.graded or BITS).value(1.0 - error_rate)

    @property
    def curve(self) -> Curve:
        """The progressive error, or the mean loss, as a function of the number of decisions."""
        points = np.array(self.errors.points, dtype=np.float64).reshape(-1, 3)
        return Curve(points[:, 0].astype(np.int64), points[:, 1], points[:, 2])

    @property
    def ok(self) -> bool:
        """Whether the ledger balances and equals the ledger recomputed from the topics."""
        return self.ledger.balances and self.audit_ok

    @property
    def duplicates(self) -> int:
        """The number of repeated contexts and feedback records."""
        return self.ledger.context_duplicates + self.ledger.feedback_duplicates

    @property
    def orphans(self) -> int:
        """The number of feedback records without a context, both dropped and waiting."""
        return self.ledger.orphans_waiting + self.ledger.orphans_dropped

    @property
    def malformed(self) -> int:
        """The number of unreadable contexts and feedback records."""
        return self.ledger.context_malformed + self.ledger.feedback_malformed

    @property
    def events_per_s(self) -> float:
        """Events per second of wall time."""
        return rate(self.events, self.wall_s)

    def to_dict(self) -> dict[str, object]:
        """Return the run as a dict of plain values, as in the JSON output of `onebit run`."""
        members = self._members()
        shared = {name: members[name] for name in PRINTED_IF_SHARED if members[name] not in (None, [])}
        printed = {name: members[name] for name in PRINTED} | shared
        return printed if self.graded is None else printed | dict.fromkeys(ERRORS) | _values(self._mean_rewards())

    def _mean_rewards(self) -> dict[str, Any]:
        """Return the members that replace the errors of a run with graded rewards."""
        errors = self.errors
        rates = errors.error_rate, errors.error_rate_last_fifth, errors.greedy_error_rate, self.constant_error_rate
        return {"reward_range": self.reward_range} | dict(zip(MEAN_REWARDS, map(self.reward_of, rates), strict=True))

    def saved(self) -> dict[str, object]:
        """Return the run as JSON values, as in a page; see `read_runs`."""
        members = self._members()
        errors = {name: members[name] for name in ERRORS}
        return self.to_dict() | errors | {name: members[name] for name in SAVED} | {"estimate": _values(self.estimate)}

    def _members(self) -> dict[str, Any]:
        """Return the stored and the derived members of the run's JSON."""
        stored, ledger = _values(self), self.ledger._asdict()
        last = self.delayed.points[-1:]
        derived = {
            "duplicates": self.duplicates,
            "orphans": self.orphans,
            "malformed": self.malformed,
            "ledger": ledger,
            "ledger_ok": self.ok,
            "events_per_s": self.events_per_s,
            "delayed": last[0].as_json() if last and self.graded is None else None,
            "estimate": None if self.estimate is None else self.estimate.as_json(),
            "model_version": max((replica.version for replica in self.replicas), default=None),
        }
        return {**stored, **stored["errors"], **ledger, **_values(derived)}


PRINTED = (
    "data", "learner", "params", "seed", "events", "classes", "features", "decided", "matched", "expired", "pending",
    "late", "duplicates", "orphans", "conflicts", "malformed", "mistakes", "error_rate", "error_rate_last_fifth",
    "greedy_error_rate", "updates", "ledger_ok", "state_sha256", "virtual_s", "wall_s", "events_per_s", "report",
    "full_information", "settings", "ledger", "delays", "constant_error_rate", "feedback_after_end", "delayed",
    "warnings", "drift_alarms", "latency", "estimate", "arms", "challengers", "first_feedback", "changed", "versions",
    "model", "half_widths",
)  # fmt: skip
"""Members of a run's JSON, in order."""

ERRORS = ("mistakes", "error_rate", "error_rate_last_fifth", "greedy_error_rate", "constant_error_rate", "half_widths")
"""Members that are None in the printed JSON of a run with graded rewards. A saved run contains the losses."""

MEAN_REWARDS = ("mean_reward", "mean_reward_last_fifth", "greedy_mean_reward", "constant_mean_reward")
"""Members that a run with graded rewards has instead, in the units of the rewards."""

PRINTED_IF_SHARED = ("model_version", "replicas", "model_behind")

SAVED = (
    "audit_ok", "window_events", "curve", "delayed_curve", "exploration", "delay_counts", "latency_counts"
)  # fmt: skip
"""Additional members of a saved run's JSON."""


def _values(value: object) -> Any:
    """Convert a struct or a dict to JSON values; nan and infinities become None, and unknown types become text."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_encodable))


def _encodable(value: Any) -> object:
    if isinstance(value, Sketch):
        return value.as_lists()
    if isinstance(value, np.generic):
        return value.item()
    return dict(value) if isinstance(value, Mapping) else str(value)


def _decoded(kind: type, value: Any) -> object:
    if kind is Sketch:
        return Sketch(dict(value))
    return math.nan if value is None else float(value)  # a rate


FORMAT = 1

_ELEMENT = re.compile(r'<script type="application/gzip" id="runs">([^<]*)</script>')


class SavedRunsError(OnebitError, ValueError):
    """Raised if a file contains no readable runs, or their format is not supported."""


def packed_runs(runs: Sequence[LearnerRun]) -> str:
    """Serialise runs for an HTML element, as JSON that is compressed with gzip and encoded as URL-safe base64."""
    return base64.urlsafe_b64encode(gzip.compress(runs_json(runs), mtime=0)).decode()


def runs_json(runs: Sequence[LearnerRun]) -> bytes:
    """Serialise runs as JSON."""
    return orjson.dumps({"format": FORMAT, "runs": [run.saved() for run in runs]})


def read_runs(path: Path) -> list[LearnerRun]:
    """Read the runs from a page, or from JSON downloaded from a page.

    Raises:
        SavedRunsError: the file contains no readable runs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SavedRunsError(f"{path}: cannot read the run's page or its JSON file: {error}") from error
    found = _ELEMENT.search(text)
    try:
        fields = orjson.loads(text if found is None else gzip.decompress(base64.urlsafe_b64decode(found[1])))
    except (orjson.JSONDecodeError, binascii.Error, OSError, EOFError) as error:
        raise SavedRunsError(f"{path}: expected a run's page or its JSON file; found no run") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        got = fields.get("format") if isinstance(fields, dict) else None
        raise SavedRunsError(f"{path}: expected runs in format {FORMAT}; got {got!r}")
    try:
        return [_loaded(run) for run in fields["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise SavedRunsError(f"{path}: damaged runs: {type(error).__name__}: {error}") from error


def _loaded(run: Mapping[str, Any]) -> LearnerRun:
    """Read a saved run. The ledger is an object in JSON, and the members of the errors are members of the run."""
    nested = {"ledger": Ledger(**run["ledger"]), "errors": run}
    return msgspec.convert({**run, **nested}, LearnerRun, dec_hook=_decoded)
