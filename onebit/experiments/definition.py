"""The definition of an experiment, read from a TOML file; docs/experiments.md describes the format.

An experiment consists of sweeps, figures and tables. The figures and tables show the rows from the sweeps together with
published numbers. A sweep runs all combinations of data sets, learners with parameter grids, stream conditions and
seeds.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stream.errors import OnebitError
from stream.settings.task_fields import LatePolicy, OnExpiry
from stream.text import read_text

Scalar = int | float | str
Parameters = dict[str, Scalar]

FILES = Path(__file__).parent / "files"
"""The folder that contains the included experiments and `sets.toml`."""

SETS_FILE = "sets.toml"


class ExperimentError(OnebitError, ValueError):
    """An invalid experiment, data set or result."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Powers(_Table):
    """The powers of a number with exponents from `start` to `stop`, optionally multiplied by a statistic of the data.

    >>> Powers(powers_of=2, start=-2, stop=0).values()
    [0.25, 0.5, 1.0]
    >>> Powers(powers_of=10, start=0, stop=1, of="squared_norm").values()
    ['1 squared_norm', '10 squared_norm']
    """

    powers_of: float
    start: int
    stop: int
    step: Annotated[int, Field(ge=1)] = 1
    of: str | None = None  # a statistic of the data set by which the powers are multiplied

    def values(self) -> list[Scalar]:
        """Return the powers as numbers, or as text if they are multiplied by a statistic."""
        numbers = [self.powers_of**power for power in range(self.start, self.stop + 1, self.step)]
        return [number if self.of is None else f"{number:g} {self.of}" for number in numbers]


Values = Scalar | list[Scalar] | Powers


def values_of(values: Values) -> list[Scalar]:
    """Convert one value, a list of values, or powers to a list."""
    if isinstance(values, Powers):
        return values.values()
    return values if isinstance(values, list) else [values]


def grid(values: Mapping[str, Values]) -> Iterator[Parameters]:
    """Yield every combination that contains one value for each name.

    >>> [point["a"] for point in grid({"a": [1, 2], "b": "x"})]
    [1, 2]
    """
    for point in product(*(values_of(each) for each in values.values())):
        yield dict(zip(values, point, strict=True))


class Contender(_Table):
    """A learner with a parameter grid."""

    learner: str
    label: str | None = None  # name in figures and tables; None means the learner's name
    parameters: dict[str, Values] = {}
    data: list[str] | None = None  # data sets; None means all data sets in the sweep
    added: bool = False  # True if the learner is not part of the paper's experiment
    events: Annotated[int, Field(ge=1)] | None = None  # limit on events; None means the sweep's limit

    @property
    def title(self) -> str:
        """Return the name, marked with + if the learner is not part of the paper's experiment."""
        return (self.label or self.learner) + (" +" if self.added else "")


Evaluation = Literal["online", "split", "folds"]
Change = Literal["none", "rename", "come-and-go"]

FOLDS = 10


class Conditions(_Table):
    """Stream conditions. Times are measured in decisions."""

    delay: int | str = 0  # in decisions, or a distribution as in `onebit run --delay`, with 1 ms per decision
    loss: Annotated[float, Field(ge=0, le=1)] = 0.0  # fraction of lost bits
    window: Annotated[int, Field(ge=-1)] = -1  # number of decisions after which a decision expires; -1 means never
    on_expiry: OnExpiry = "drop"
    late: LatePolicy = "ignore"
    noise: Annotated[float, Field(ge=0, le=1)] = 0.0  # fraction of training labels replaced by uniformly drawn ones
    change: Change = "none"  # how the classes change over the course of the stream
    partitions: Annotated[int, Field(ge=1)] = 1
    model: Literal["own", "shared"] = "own"  # one model per partition, or a shared model
    lag: Annotated[int, Field(ge=1)] = 1  # decisions between two reads of a shared model's log
    outage: Annotated[int, Field(ge=0)] = 0  # duration of an outage of a shared model's log, which begins halfway
    forget_every: Annotated[int, Field(ge=0)] = 0  # interval at which the learner loses its state; 0 means never

    @property
    def known_by(self) -> Parameters:
        """Return the conditions that identify a row.

        Conditions introduced in later versions are omitted if they have default values.
        """
        later = {"model": "own", "lag": 1, "outage": 0}
        return {name: value for name, value in self.model_dump().items() if later.get(name, ...) != value}

    @model_validator(mode="after")
    def _check_model(self) -> "Conditions":
        if self.model == "own" and (self.lag > 1 or self.outage):
            raise ValueError("conditions: lag and outage require a shared model")
        if self.model == "shared" and self.forget_every:
            raise ValueError("conditions: forget_every requires model = 'own'")
        return self


class Sweep(_Table):
    """A sweep over all combinations of data, learners, conditions and seeds."""

    name: str
    data: list[str]
    learners: list[Contender]
    seeds: Annotated[int, Field(ge=1)] = 1
    events: Annotated[int, Field(ge=1)] | None = None  # limit on events; None uses each row once per epoch
    epochs: Annotated[int, Field(ge=1)] = 1
    evaluate: Evaluation = "online"
    best_of: str | None = None  # name of the sweep whose best parameters are used
    conditions: dict[str, Values] = {}


class Figure(_Table):
    """A figure with one panel per value of `panels`. A panel has a line for each learner and each value of `lines`."""

    name: str
    title: str
    sweeps: list[str]
    x: str  # a parameter, condition or `examples`; if several are given (a|b), the first that a learner has is used
    y: str = "error"
    panels: str = "data"
    lines: list[str] = []
    best: str | None = None  # a parameter; only its best value is shown
    where: dict[str, Scalar] = {}
    x_scale: Literal["linear", "log", "log2", "symlog"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"


class Reported(_Table):
    """A number from a paper."""

    data: str
    learner: str  # name or label of the learner
    value: float  # the number, in the table's unit
    parameters: Parameters = {}
    conditions: Parameters = {}
    roughly: bool = False  # True if the value was read from a figure or is only approximate
    because: str | None = None  # known reason for a different result


class Comparison(_Table):
    """A table of errors, with a paper's numbers for comparison."""

    name: str
    title: str
    sweeps: list[str]
    measure: str = "error"
    best: str | None = None  # the parameter whose best value is shown; if several are given (a|b), the first is used
    by: list[str] = []  # conditions and parameters; there is one row per value
    paper: list[Reported] = []
    paper_events: int | None = None  # number of events used in the paper
    tolerance: float = 0.1  # relative difference above which a result is considered different
    marks: str | None = None  # learner that is compared with all others in a test over the folds


class Experiment(_Table):
    """An experiment."""

    name: str
    title: str
    about: str
    paper: str | None = None
    sweeps: list[Sweep]
    figures: list[Figure] = []
    tables: list[Comparison] = []
    sets: dict[str, "SetEntry"] = {}

    @model_validator(mode="after")
    def _check_names(self) -> "Experiment":
        names = [sweep.name for sweep in self.sweeps]
        if len(set(names)) < len(names):
            raise ValueError(f"sweep names must be unique; got {', '.join(names)}")
        for number, sweep in enumerate(self.sweeps):
            if sweep.best_of is not None and sweep.best_of not in names[:number]:
                raise ValueError(f"sweep {sweep.name}: best_of must be an earlier sweep; got {sweep.best_of!r}")
            unknown = sweep.conditions.keys() - Conditions.model_fields.keys()
            if unknown:
                accepted = ", ".join(Conditions.model_fields)
                raise ValueError(
                    f"sweep {sweep.name}: unknown conditions {', '.join(sorted(unknown))}; available: {accepted}"
                )
            for point in grid(sweep.conditions):
                Conditions.model_validate(point)
        made = [(figure.name, figure.sweeps) for figure in self.figures]
        made += [(table.name, table.sweeps) for table in self.tables]
        for item, sweeps in made:
            for name in sweeps:
                if name not in names:
                    raise ValueError(f"{item}: unknown sweep {name!r}; expected one of {', '.join(names)}")
        return self

    def data(self) -> list[str]:
        """Return the names of the data sets, without duplicates."""
        return list(dict.fromkeys(name for sweep in self.sweeps for name in sweep.data))

    def with_tuning(self, names: Sequence[str]) -> list[Sweep]:
        """Return the named sweeps, and the sweeps whose best parameters they use, in order."""
        found = set(names)
        for sweep in reversed(self.sweeps):
            if sweep.name in found and sweep.best_of is not None:
                found.add(sweep.best_of)
        return [sweep for sweep in self.sweeps if sweep.name in found]

    def resized(self, events: int | None, seeds: int | None, exactly: Sequence[str] = ()) -> "Experiment":
        """Return a copy with different numbers of events and seeds. None leaves a number unchanged.

        Args:
            events: Limit on events per run. Sweeps with a lower limit keep it.
            seeds: Number of seeds.
            exactly: Names of the sweeps that use exactly `events` events, even if this number exceeds the sweep's
                limit.
        """
        sweeps = []
        for sweep in self.sweeps:
            most = events if sweep.name in exactly else None
            limit = most or min(filter(None, (sweep.events, events)), default=None)
            sweeps.append(sweep.model_copy(update={"events": limit, "seeds": seeds or sweep.seeds}))
        return self.model_copy(update={"sweeps": sweeps})


class SetEntry(_Table):
    """A data set's file and description."""

    file: str  # file in the data directory
    n_features: int
    title: str
    get: str  # source of the data
    convert: str = "not required, because the file is in svmlight format"
    note: str = ""  # differences from the data set used in the papers


def shipped() -> dict[str, Path]:
    """Return the included experiments by name."""
    return {path.stem: path for path in sorted(FILES.glob("*.toml")) if path.name != SETS_FILE}


def read_experiment(path: Path) -> Experiment:
    """Read a definition. The experiment is named after the file.

    Raises:
        ExperimentError: the file is unreadable, or the definition is invalid.
    """
    try:
        return Experiment.model_validate({"name": path.stem, **_toml(path)})
    except ValidationError as error:
        raise ExperimentError(f"{path}: {_first_problem(error)}") from error


def read_sets() -> dict[str, SetEntry]:
    """Return the named data sets for experiments."""
    return {name: SetEntry.model_validate(entry) for name, entry in _toml(FILES / SETS_FILE).items()}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ExperimentError(f"{path}: not a valid TOML file: {error}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place + ': ' if place else ''}{problem['msg']}; got {str(problem['input'])[:120]}"
