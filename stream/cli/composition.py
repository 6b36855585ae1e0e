"""What the settings make: the data set, its replay, the feedback's plan, the task, and the topics' names."""

from typing import Any

from producers.datasets.base import Dataset
from producers.datasets.catalogue import load
from producers.replay import ReplayOptions
from stream.cli.settings import AUTO, Settings, SettingsError
from stream.joining.join import JoinSettings
from stream.joining.task import TaskSettings
from stream.learners import check_parameters, registered
from stream.learners.auto import choose
from stream.randomness.delays import FeedbackPlan, parse_delay
from stream.wire.topics import Topics


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
        events=events_of(settings, dataset),
        rate_per_s=settings.rate_per_s,
        shuffle_seed=settings.seed if settings.shuffle else None,
        partitions=settings.partitions,
        start=start,
    )


def feedback_plan(settings: Settings, dataset: Dataset) -> FeedbackPlan:
    """How often and how late feedback comes."""
    delay = parse_delay(settings.delay)
    delay.check_classes(dataset.n_classes)
    return FeedbackPlan(settings.seed, delay, settings.loss, settings.duplicates)


def with_chosen(settings: Settings, n_classes: int, n_features: int, mean_nnz: float | None) -> tuple[Settings, str]:
    """Settings with a learner in the place of auto, and why that one; nothing to say where auto is not asked for.

    Args:
        settings: those of the user; what they give for the learner wins.
        n_classes: of the data.
        n_features: of the data.
        mean_nnz: non-zeros of a context on average; None when the data are not known beforehand.
    """
    if AUTO not in settings.learner:
        return settings, ""
    choice = choose(n_classes, n_features, mean_nnz, correctable=settings.late == "correct")
    learners = [choice.learner if name == AUTO else name for name in settings.learner]
    chosen = [f"{choice.learner}.{name}={value}" for name, value in choice.parameters.items()]
    given = [text.replace(f"{AUTO}.", f"{choice.learner}.", 1) for text in settings.param]
    why = f"the learner is {choice.learner}: {choice.why}"
    return settings.model_copy(update={"learner": learners, "param": chosen + given}), why


def parameters_of(settings: Settings, learner: str) -> dict[str, Any]:
    """The parameters of one of the learners, checked, with its defaults.

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
    return check_parameters(learner, given)


def _has(learner: str, parameter: str) -> bool:
    return any(declared.name == parameter for declared in registered()[learner].parameters)


def task_settings(settings: Settings, learner: str, n_classes: int, n_features: int) -> TaskSettings:
    """All that one learner's state depends on beside its inputs."""
    return TaskSettings(
        learner=learner,
        n_classes=n_classes,
        n_features=n_features,
        parameters=parameters_of(settings, learner),
        seed=settings.seed,
        join=JoinSettings(
            window_ms=settings.window_ms,
            orphan_ms=settings.orphan_window_ms,
            retain_ms=settings.retain_ms,
            pending_max=settings.pending_max,
            orphans_max=settings.orphans_max,
            retained_max=settings.retained_max,
        ),
        on_expiry=settings.on_expiry,
        late=settings.late,
    )


def topics_of(settings: Settings) -> Topics:
    """The topics of the pipeline."""
    return Topics.with_prefix(settings.topic_prefix)
