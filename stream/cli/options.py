"""The flags that several commands share, and what is made of them."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from producers.datasets.base import Dataset
from producers.datasets.catalogue import load
from producers.replay import ReplayOptions
from stream.delays import FeedbackPlan, parse_delay
from stream.engine import TaskSettings
from stream.join import JoinSettings
from stream.learners import check_parameters, registered
from stream.settings import CONFIG_VARIABLE, Settings, SettingsError, load_settings
from stream.topics import Topics

DATA_PANEL = "What is replayed"
LEARNER_PANEL = "Who learns"
FEEDBACK_PANEL = "How the feedback comes"
JOIN_PANEL = "How long is waited"
KAFKA_PANEL = "Kafka"
OUTPUT_PANEL = "Output"

Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE", rich_help_panel=DATA_PANEL, show_default="optdigits",
        help="A data set (see `onebit data list`) or an svmlight file, .gz too.",
    ),
]  # fmt: skip
NFeatures = Annotated[
    int | None, typer.Option(rich_help_panel=DATA_PANEL, help="Features of a file whose last ones may be empty.")
]
Events = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=DATA_PANEL, show_default="all rows",
        help="Events to be replayed; beyond the rows they begin again.",
    ),
]  # fmt: skip
Epochs = Annotated[
    int | None, typer.Option(rich_help_panel=DATA_PANEL, show_default="1", help="Times the rows are replayed.")
]
Shuffle = Annotated[
    bool | None,
    typer.Option("--shuffle/--no-shuffle", rich_help_panel=DATA_PANEL, help="A new order in every epoch."),
]
Rate = Annotated[
    float | None,
    typer.Option(metavar="EVENTS_PER_S", rich_help_panel=DATA_PANEL, show_default="1000", help="Pace of the replay."),
]
Seed = Annotated[
    int | None,
    typer.Option(rich_help_panel=DATA_PANEL, show_default="0", help="Seed of every draw, and of synthetic data."),
]
LearnerNames = Annotated[
    list[str] | None,
    typer.Option(
        "--learner", metavar="NAME", rich_help_panel=LEARNER_PANEL, show_default="soba-diag",
        help="See `onebit learners`; several run side by side on the same events and the same draws.",
    ),
]  # fmt: skip
LearnerName = Annotated[
    list[str] | None,
    typer.Option(
        "--learner", metavar="NAME", rich_help_panel=LEARNER_PANEL, show_default="soba-diag",
        help="See `onebit learners`.",
    ),
]  # fmt: skip
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param", metavar="NAME=VALUE", rich_help_panel=LEARNER_PANEL,
        help="A parameter of the learner, repeated for more; with several learners LEARNER.NAME=VALUE.",
    ),
]  # fmt: skip
Delay = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC", rich_help_panel=FEEDBACK_PANEL, show_default="lognormal:10s,1.0",
        help="none, fixed:10s, geometric:10s, exponential:10s, lognormal:10s,1.0 (median, sigma), weibull:10s,0.7 "
        "(scale, shape), empirical:FILE (one delay in ms a line); per true class: 0=fixed:1s;*=none.",
    ),
]  # fmt: skip
Loss = Annotated[
    float | None,
    typer.Option(metavar="P", rich_help_panel=FEEDBACK_PANEL, show_default="0", help="Share that never comes."),
]
Duplicates = Annotated[
    float | None,
    typer.Option(metavar="P", rich_help_panel=FEEDBACK_PANEL, show_default="0", help="Share that comes twice."),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", rich_help_panel=JOIN_PANEL, show_default="5m", help="How long a decision waits: 250ms, 10s."
    ),
]
OnExpiry = Annotated[
    str | None,
    typer.Option(
        metavar="drop|negative", rich_help_panel=JOIN_PANEL, show_default="drop",
        help="What an expired decision teaches: nothing, or that it was wrong.",
    ),
]  # fmt: skip
Late = Annotated[
    str | None,
    typer.Option(
        metavar="ignore|correct", rich_help_panel=JOIN_PANEL, show_default="ignore",
        help="What feedback after the window does: nothing, or take back the 0 that --on-expiry negative assumed.",
    ),
]  # fmt: skip
OrphanWindow = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        rich_help_panel=JOIN_PANEL,
        show_default="5m",
        help="How long feedback waits for a context.",
    ),
]
Retain = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", rich_help_panel=JOIN_PANEL, show_default="1h", help="How long a settled id is remembered."
    ),
]
PendingMax = Annotated[
    int | None,
    typer.Option(rich_help_panel=JOIN_PANEL, show_default="1000000", help="Beyond it the oldest decision expires."),
]
OrphansMax = Annotated[
    int | None,
    typer.Option(rich_help_panel=JOIN_PANEL, show_default="100000", help="Beyond it the oldest orphan is dropped."),
]
RetainedMax = Annotated[
    int | None,
    typer.Option(rich_help_panel=JOIN_PANEL, show_default="5000000", help="Beyond it the oldest id is forgotten."),
]
Partitions = Annotated[
    int | None,
    typer.Option(rich_help_panel=KAFKA_PANEL, show_default="1", help="Partitions of every topic; each learns alone."),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", rich_help_panel=KAFKA_PANEL, show_default="localhost:9092", help="Where Kafka answers."
    ),
]
TopicPrefix = Annotated[
    str | None,
    typer.Option(rich_help_panel=KAFKA_PANEL, show_default="onebit.", help="What the names of all topics begin with."),
]
ConnectTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", rich_help_panel=KAFKA_PANEL, show_default="30s", help="How long a broker is waited for."
    ),
]
Instance = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=KAFKA_PANEL, show_default="1",
        help="The name of this process across restarts; each of several needs its own.",
    ),
]  # fmt: skip
Retention = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION|forever", rich_help_panel=KAFKA_PANEL, show_default="forever",
        help="How long contexts, feedback, predictions, examples and dead letters are kept; journal and snapshots are "
        "kept for ever.",
    ),
]  # fmt: skip
SnapshotInterval = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", rich_help_panel=KAFKA_PANEL, show_default="1m",
        help="From one snapshot of the state to the next; 0s: none, and recovery applies the whole journal again.",
    ),
]  # fmt: skip
Partition = Annotated[int, typer.Option(min=0, rich_help_panel=KAFKA_PANEL, help="Whose model: each learns alone.")]
Config = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=OUTPUT_PANEL, show_default="onebit.toml, if there is one",
        help="A TOML file of settings; flags and ONEBIT_* variables win over it.",
    ),
]  # fmt: skip
Json = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=OUTPUT_PANEL, help="One JSON object on stdout, and nothing else there."),
]


def settings_from(config: Path | None, **given: Any) -> Settings:
    """The settings from flags, variables and file."""
    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config)
    return load_settings(given)


def dataset_of(settings: Settings) -> Dataset:
    """The data set to be replayed."""
    return load(settings.data, settings.n_features, settings.seed)


def events_of(settings: Settings, dataset: Dataset) -> int:
    """How many events are replayed; more than there are rows go on into further epochs."""
    if settings.events is None:
        return dataset.rows * (settings.epochs or 1)
    if settings.epochs is not None and settings.events > dataset.rows * settings.epochs:
        raise SettingsError(
            f"--events {settings.events}: {settings.epochs} epochs of the {dataset.rows} rows of {dataset.name} have "
            f"fewer; leave --epochs out, or give {-(-settings.events // dataset.rows)}"
        )
    return settings.events


def replay_options(settings: Settings, dataset: Dataset, start: int = 0) -> ReplayOptions:
    """How the data set is replayed."""
    return ReplayOptions(
        events_of(settings, dataset),
        settings.rate,
        settings.seed if settings.shuffle else None,
        settings.partitions,
        start,
    )


def feedback_plan(settings: Settings, dataset: Dataset) -> FeedbackPlan:
    """How often and how late feedback comes."""
    delay = parse_delay(settings.delay)
    delay.check_classes(dataset.n_classes)
    return FeedbackPlan(settings.seed, delay, settings.loss, settings.duplicates)


def parameters_of(settings: Settings, learner: str) -> dict[str, Any]:
    """The parameters that are given for one of the learners, checked.

    Raises:
        SettingsError: a parameter that is not NAME=VALUE, or that none of the learners has.
    """
    given: dict[str, str] = {}
    for text in settings.param:
        name, equals, value = text.partition("=")
        scope, dot, scoped_name = name.rpartition(".")
        if not equals or not scoped_name:
            raise SettingsError(f"--param {text!r}: expected NAME=VALUE or LEARNER.NAME=VALUE")
        if dot and scope not in settings.learner:
            raise SettingsError(f"--param {text!r}: {scope!r} is not among the learners {', '.join(settings.learner)}")
        if dot and scope != learner:
            continue
        owners = [other for other in settings.learner if other in registered() and _has(other, scoped_name)]
        if dot or learner in owners or not owners:
            given[scoped_name] = value
    checked = check_parameters(learner, given)
    return {name: checked[name] for name in given}


def _has(learner: str, parameter: str) -> bool:
    return any(declared.name == parameter for declared in registered()[learner].parameters)


def task_settings(settings: Settings, learner: str, n_classes: int, n_features: int) -> TaskSettings:
    """All that one learner's state depends on beside its inputs."""
    return TaskSettings(
        learner,
        n_classes,
        n_features,
        parameters_of(settings, learner),
        settings.seed,
        JoinSettings(
            settings.window,
            settings.orphan_window,
            settings.retain,
            settings.pending_max,
            settings.orphans_max,
            settings.retained_max,
        ),
        settings.on_expiry,
        settings.late,
    )


def topics_of(settings: Settings) -> Topics:
    """The topics of the pipeline."""
    return Topics.with_prefix(settings.topic_prefix)
