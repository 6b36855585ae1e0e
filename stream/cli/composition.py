"""What the settings make: the data set, its replay, the feedback's plan, the task, and the topics' names."""

from math import inf
from typing import Any

import orjson
import platformdirs

from producers.datasets.base import Dataset
from producers.datasets.catalogue import catalogue, is_log, load
from producers.datasets.log import OnBadRow, rows_left_out
from producers.datasets.logged import LogDataset, has_labels, has_times, log_dataset, logged_delays_ms, part_of
from producers.datasets.logs.kept import keep_log
from producers.datasets.logs.mapping import read_mapping
from producers.replay import ReplayOptions
from stream.cli.console import announce, announced_when_slow, warn
from stream.cli.setting_values import LOGGED, parse_time
from stream.cli.settings import AUTO, Settings, SettingsError
from stream.durations import parse_speed
from stream.learners import check_parameters, registered
from stream.learners.auto import choose
from stream.randomness.delays import FeedbackPlan, parse_delay
from stream.task.join import JoinSettings
from stream.task.settings import Sharing, TaskSettings
from stream.wire.named_features import NamedFeaturesError, from_plain, to_plain
from stream.wire.topics import Topics


def dataset_of(settings: Settings) -> Dataset:
    """The data set to be replayed: a log only in the part that is asked for."""
    if settings.map is not None or is_log(settings.data):
        return _part(settings, log_of(settings.data, settings.map, settings.on_bad_row, settings.reward_above))
    return _part(settings, load(settings.data, settings.n_features, settings.seed))


def dataset_of_seed(settings: Settings, seed: int, dataset: Dataset) -> Dataset:
    """The data set of the same settings with this seed: another one only where the rows follow from it."""
    if seed == settings.seed or not any(entry.is_generated for entry in catalogue() if entry.name == settings.data):
        return dataset
    return dataset_of(settings.model_copy(update={"seed": seed}))


def log_of(path: str, mapping: str | None, on_bad_row: OnBadRow, reward_above: float | None) -> LogDataset:
    """A log as a data set; people are told how it is read, and what is left out."""
    log = keep_log(
        path,
        None if mapping is None else read_mapping(mapping),
        platformdirs.user_cache_path("onebit", appauthor=False) / "logs",
        on_bad_row=on_bad_row,
        reward_above=reward_above,
        announce=announce,
    )
    for line in rows_left_out(log, of=log.name):
        warn(line)
    return log_dataset(log, log.rows, log.n_features, log.class_names, log.name)


def _part(settings: Settings, dataset: Dataset) -> Dataset:
    from_ms, to_ms = (None if time is None else parse_time(time) for time in (settings.from_time, settings.to_time))
    return part_of(dataset, from_ms, to_ms, settings.limit)


LAPS = 10**9
"""Of a replay that begins again until it is stopped."""


def events_of(settings: Settings, dataset: Dataset) -> int:
    """How many events are replayed; more than there are rows go on into further epochs."""
    if settings.loop:
        if settings.events is not None or settings.epochs is not None:
            raise SettingsError("--loop goes on until it is stopped; leave --events and --epochs out")
        return dataset.rows * LAPS
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
        speed=speed_of(settings, dataset),
        shuffle_seed=settings.seed if settings.shuffle else None,
        partitions=settings.partitions,
        start=start,
    )


def speed_of(settings: Settings, dataset: Dataset) -> float | None:
    """How many times faster than it was a log is replayed; None: by the rate.

    Raises:
        SettingsError: the log has no times, or another setting asks for another order.
    """
    if settings.speed is None:
        return None
    if settings.shuffle:
        raise SettingsError(f"--speed {settings.speed} replays a log in its order; leave --shuffle out")
    speed = parse_speed(settings.speed)
    if speed != inf and not has_times(dataset):
        raise SettingsError(f"--speed {settings.speed}: {dataset.name} has no times of its decisions; give a --rate")
    return speed


def check_play(settings: Settings, dataset: Dataset) -> None:
    """See that there is a bit for what is played.

    Raises:
        SettingsError: the learner is to play its own actions, and the log tells of its own alone.
    """
    if settings.play == "own" and not has_labels(dataset):
        raise SettingsError(
            f"--play own: {dataset.name} has no true classes, and tells of the actions alone that it played; --play "
            "logged learns from these, and with --play match those of the learner count that are the same"
        )


def feedback_speed(settings: Settings) -> float:
    """By how much the delays of a log are shorter: as its times are."""
    return 1.0 if settings.speed is None else parse_speed(settings.speed)


def shortest_delay_ms(settings: Settings, dataset: Dataset, share: float) -> int:
    """The delay that all feedback but this share reaches."""
    if settings.delay == LOGGED:
        return int(min(logged_delays_ms(dataset), default=0) / feedback_speed(settings))
    return parse_delay(settings.delay).quantile_ms(share)


def feedback_plan(settings: Settings, dataset: Dataset) -> FeedbackPlan:
    """How often and how late feedback comes."""
    if settings.delay == LOGGED:
        if not logged_delays_ms(dataset):
            raise SettingsError(
                f"--delay logged: {dataset.name} has no times of its feedback; give a model of the delay, such as "
                "--delay exponential:10s"
            )
        if feedback_speed(settings) == inf:
            raise SettingsError("--delay logged: --speed max leaves no time for it; give a factor, such as 60x")
        return FeedbackPlan(settings.seed, None, settings.loss, settings.duplicates)
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
    """The parameters of one of the learners, checked, with its defaults under the policy for late feedback.

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
    return check_parameters(learner, given, correctable=settings.late == "correct", any_right=settings.reward == "any")


def _has(learner: str, parameter: str) -> bool:
    return any(declared.name == parameter for declared in registered()[learner].parameters)


def class_names_of(dataset: Dataset) -> tuple[str, ...] | None:
    """What the classes are called, for predictions to say; None: nothing but their numbers, or it is no log."""
    names = dataset.class_names
    return names if isinstance(dataset, LogDataset) and names != tuple(map(str, range(len(names)))) else None


def model_of(settings: Settings, partitions: int) -> Sharing:
    """Whose model decides in a new pipeline: unless it is given, one of all partitions where there are several."""
    if settings.model != AUTO:
        return settings.model
    return "shared" if partitions > 1 and settings.play == "own" else "own"


def task_settings(
    settings: Settings, learner: str, n_classes: int, n_features: int, class_names: tuple[str, ...] | None = None
) -> TaskSettings:
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
        play=settings.play,
        reward=settings.reward,
        propensity_min=settings.propensity_min,
        features=named_features(settings),
        class_names=class_names,
        model=model_of(settings, settings.partitions),
    )


def named_features(settings: Settings) -> dict[str, Any] | None:
    """Which index each named feature has, as it is stored; None: contexts have no named ones.

    Raises:
        SettingsError: the file cannot be used.
    """
    if settings.features is None:
        return None
    try:
        return to_plain(from_plain(orjson.loads(settings.features.read_bytes())))
    except (OSError, orjson.JSONDecodeError, NamedFeaturesError) as error:
        raise SettingsError(
            f"--features {settings.features}: expected a file that `onebit data show --save-features` wrote; {error}"
        ) from error


def n_features_of(settings: Settings) -> int | None:
    """The number of features that is given, or that named features have."""
    features = named_features(settings) if settings.n_features is None else None
    return settings.n_features if features is None else from_plain(features).n_features


def topics_of(settings: Settings) -> Topics:
    """The topics of the pipeline."""
    return Topics.with_prefix(settings.topic_prefix)


def compile_kernels(task: TaskSettings) -> None:
    """Compile the learner, so that no event waits for that; people are told where it takes long."""
    from stream.learners.kernels import KEPT_IN  # here: it loads numba

    kept = (
        "kept for the next time" if KEPT_IN else "kept nowhere: no folder can be written to; name one: NUMBA_CACHE_DIR"
    )
    with announced_when_slow(f"{task.learner}: compiling its kernels, which are {kept}"):
        task.warm_up()
