"""What an experiment is, as a TOML file says it; docs/experiments.md describes the file.

An experiment has sweeps, each a product of data sets, learners with their grids, conditions of the stream, and seeds;
and figures, tables and the papers' numbers, which are made from the rows of the sweeps.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stream.errors import OnebitError
from stream.task.settings import LatePolicy, OnExpiry

Scalar = int | float | str
Parameters = dict[str, Scalar]

FILES = Path(__file__).parent / "files"
"""The experiments that ship, and `sets.toml`."""

SETS_FILE = "sets.toml"


class ExperimentError(OnebitError, ValueError):
    """An experiment, a data set or a result that cannot be used; the message says what is accepted."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Powers(_Table):
    """The values `powers_of` to the powers `start`, `start + step`, ... up to `stop`; of a fact of the data, or plain.

    >>> Powers(powers_of=2, start=-2, stop=0).values()
    [0.25, 0.5, 1.0]
    >>> Powers(powers_of=10, start=0, stop=1, of="squared_norm").values()
    ['1 squared_norm', '10 squared_norm']
    """

    powers_of: float
    start: int
    stop: int
    step: Annotated[int, Field(ge=1)] = 1
    of: str | None = None  # a fact of the data set that the value is a function of

    def values(self) -> list[Scalar]:
        """All of them."""
        numbers = [self.powers_of**power for power in range(self.start, self.stop + 1, self.step)]
        return [number if self.of is None else f"{number:g} {self.of}" for number in numbers]


Values = Scalar | list[Scalar] | Powers


def values_of(values: Values) -> list[Scalar]:
    """A value, a list of them or powers, as a list."""
    if isinstance(values, Powers):
        return values.values()
    return values if isinstance(values, list) else [values]


def grid(values: Mapping[str, Values]) -> Iterator[Parameters]:
    """Every choice of one value for each name.

    >>> [point["a"] for point in grid({"a": [1, 2], "b": "x"})]
    [1, 2]
    """
    for point in product(*(values_of(each) for each in values.values())):
        yield dict(zip(values, point, strict=True))


class Contender(_Table):
    """A learner with its grid of parameters."""

    learner: str
    label: str | None = None  # what it is called in figures and tables; None: its name
    parameters: dict[str, Values] = {}
    data: list[str] | None = None  # the sets that it runs on; None: all of the sweep
    added: bool = False  # whether the paper did not have it
    events: Annotated[int, Field(ge=1)] | None = None  # at most; None: those of the sweep

    @property
    def title(self) -> str:
        """What it is called, marked where the paper did not have it."""
        return (self.label or self.learner) + (" +" if self.added else "")


Evaluation = Literal["online", "split", "folds"]
Change = Literal["none", "rename", "come-and-go"]

FOLDS = 10


class Conditions(_Table):
    """What is done to the stream. All that is late or long is counted in decisions."""

    delay: int | str = 0  # or a law as `onebit run --delay` takes it, in which a decision takes a millisecond
    loss: Annotated[float, Field(ge=0, le=1)] = 0.0  # the share of the bits that never come
    window: Annotated[int, Field(ge=-1)] = -1  # how long a decision waits for its bit; -1: for ever
    on_expiry: OnExpiry = "drop"
    late: LatePolicy = "ignore"
    noise: Annotated[float, Field(ge=0, le=1)] = 0.0  # the share of training labels that a uniform one replaces
    change: Change = "none"  # what happens to the classes on the way
    partitions: Annotated[int, Field(ge=1)] = 1
    model: Literal["own", "shared"] = "own"  # of each partition, or of all
    lag: Annotated[int, Field(ge=1)] = 1  # of a shared model: from one reading of its log to the next
    outage: Annotated[int, Field(ge=0)] = 0  # of a shared model: so long, from the middle on, nobody can read its log
    forget_every: Annotated[int, Field(ge=0)] = 0  # so often the learner loses its state; 0: never

    @property
    def known_by(self) -> Parameters:
        """By what a row is known again; a condition that came later is not in it where it says what was before."""
        later = {"model": "own", "lag": 1, "outage": 0}
        return {name: value for name, value in self.model_dump().items() if later.get(name, ...) != value}

    @model_validator(mode="after")
    def _check_model(self) -> "Conditions":
        if self.model == "own" and (self.lag > 1 or self.outage):
            raise ValueError("conditions: only the log of a shared model is read with a lag, or has an outage")
        if self.model == "shared" and self.forget_every:
            raise ValueError("conditions: a shared model is not forgotten; leave out forget_every")
        return self


class Sweep(_Table):
    """A product of data, learners, conditions and seeds."""

    name: str
    data: list[str]
    learners: list[Contender]
    seeds: Annotated[int, Field(ge=1)] = 1
    events: Annotated[int, Field(ge=1)] | None = None  # at most; None: every row once for each epoch
    epochs: Annotated[int, Field(ge=1)] = 1
    evaluate: Evaluation = "online"
    best_of: str | None = None  # parameters are those that do best in this sweep
    conditions: dict[str, Values] = {}


class Figure(_Table):
    """A figure: a panel for each value of `panels`, a line for each learner and value of `lines`."""

    name: str
    title: str
    sweeps: list[str]
    x: str  # a parameter, a condition, or `examples`; with | between them, the first that a learner has
    y: str = "error"
    panels: str = "data"
    lines: list[str] = []
    best: str | None = None  # only the value of this parameter that errs least
    where: dict[str, Scalar] = {}
    x_scale: Literal["linear", "log", "log2", "symlog"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"


class Reported(_Table):
    """A number that a paper reports."""

    data: str
    learner: str  # its name or its label
    value: float  # in the unit of the table
    parameters: Parameters = {}
    conditions: Parameters = {}
    roughly: bool = False  # it is read off a figure, or said in words
    because: str | None = None  # why ours is another


class Comparison(_Table):
    """A table of errors, beside those that a paper reports."""

    name: str
    title: str
    sweeps: list[str]
    measure: str = "error"
    best: str | None = None  # over this parameter (or the first of several with | between) the value that errs least
    by: list[str] = []  # conditions and parameters that have a row each
    paper: list[Reported] = []
    paper_events: int | None = None  # how many the paper ran
    tolerance: float = 0.1  # relative; beyond it a row differs
    marks: str | None = None  # the learner whose differences from the others are tested, fold by fold


class Experiment(_Table):
    """A whole experiment."""

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
            raise ValueError(f"sweeps have names of their own; got {', '.join(names)}")
        for number, sweep in enumerate(self.sweeps):
            if sweep.best_of is not None and sweep.best_of not in names[:number]:
                raise ValueError(f"sweep {sweep.name}: best_of names an earlier sweep; got {sweep.best_of!r}")
            unknown = sweep.conditions.keys() - Conditions.model_fields.keys()
            if unknown:
                accepted = ", ".join(Conditions.model_fields)
                raise ValueError(f"sweep {sweep.name}: conditions are {accepted}; got {', '.join(sorted(unknown))}")
            for point in grid(sweep.conditions):
                Conditions.model_validate(point)
        made = [(figure.name, figure.sweeps) for figure in self.figures]
        made += [(table.name, table.sweeps) for table in self.tables]
        for item, sweeps in made:
            for name in sweeps:
                if name not in names:
                    raise ValueError(f"{item}: a sweep is one of {', '.join(names)}; got {name!r}")
        return self

    def data(self) -> list[str]:
        """The names of its data sets, each once."""
        return list(dict.fromkeys(name for sweep in self.sweeps for name in sweep.data))

    def resized(self, events: int | None, seeds: int | None, exactly: Sequence[str] = ()) -> "Experiment":
        """The same with so many events in each run, and another number of seeds; None: as they are.

        Args:
            events: at most; a sweep whose definition says fewer keeps those.
            seeds: of each.
            exactly: sweeps that get the number of events itself, more than their definition says, too.
        """
        sweeps = []
        for sweep in self.sweeps:
            most = events if sweep.name in exactly else None
            limit = most or min(filter(None, (sweep.events, events)), default=None)
            sweeps.append(sweep.model_copy(update={"events": limit, "seeds": seeds or sweep.seeds}))
        return self.model_copy(update={"sweeps": sweeps})


class SetEntry(_Table):
    """Where a data set is, and what is to be known of it."""

    file: str  # in the folder of the data
    n_features: int
    title: str
    get: str  # where it comes from
    convert: str = "nothing is to be converted: it is an svmlight file"
    note: str = ""  # what it is beside the papers' set


def shipped() -> dict[str, Path]:
    """The files of the experiments that ship, by name."""
    return {path.stem: path for path in sorted(FILES.glob("*.toml")) if path.name != SETS_FILE}


def read_experiment(path: Path) -> Experiment:
    """Read a definition; its name is that of the file.

    Raises:
        ExperimentError: it cannot be read, or something in it is not accepted.
    """
    try:
        return Experiment.model_validate({"name": path.stem, **_toml(path)})
    except ValidationError as error:
        raise ExperimentError(f"{path}: {_first_problem(error)}") from error


def read_sets() -> dict[str, SetEntry]:
    """The data sets that experiments know by name."""
    return {name: SetEntry.model_validate(entry) for name, entry in _toml(FILES / SETS_FILE).items()}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ExperimentError(f"{path}: expected a TOML file that defines an experiment; {error}") from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place + ': ' if place else ''}{problem['msg']}; got {str(problem['input'])[:120]}"
