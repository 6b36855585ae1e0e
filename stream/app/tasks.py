"""The learner of a run, and all that the state of its tasks depends on."""

from typing import Any

import orjson

from stream.app.notices import announced_when_slow
from stream.app.settings import AUTO, Settings, SettingsError
from stream.app.topics import model_of
from stream.learners import check_parameters, registered
from stream.learners.auto import choose, defaults_for
from stream.task.settings import TaskSettings
from stream.wire.named_features import NamedFeaturesError, from_plain, to_plain


def with_chosen(settings: Settings, n_classes: int, n_features: int, mean_nnz: float | None) -> tuple[Settings, str]:
    """Settings with a learner in the place of auto, and why that one; nothing to say where auto is not asked for.

    A late-ucb that is named gets no random features where the data are known to be sparse, as auto gives it none.

    Args:
        settings: those of the user; what they give for the learner wins.
        n_classes: of the data.
        n_features: of the data.
        mean_nnz: non-zeros of a context on average; None when the data are not known beforehand.
    """
    learners, chosen, why = settings.learner, [], ""
    if AUTO in learners:
        choice = choose(n_classes, n_features, mean_nnz, correctable=settings.late == "correct")
        learners = [choice.learner if name == AUTO else name for name in learners]
        chosen = [f"{choice.learner}.{name}={value}" for name, value in choice.parameters.items()]
        why = f"the learner is {choice.learner}: {choice.why}"
    named = [
        f"{learner}.{name}={value}"
        for learner in dict.fromkeys(settings.learner)
        for name, value in defaults_for(learner, n_features, mean_nnz).items()
    ]
    if learners == settings.learner and not named:
        return settings, why
    of_auto = dict(zip(settings.learner, learners, strict=True)).get(AUTO, AUTO)
    given = [text.replace(f"{AUTO}.", f"{of_auto}.", 1) for text in settings.param]
    return settings.model_copy(update={"learner": learners, "param": named + chosen + given}), why


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
        join=settings.join,
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


def compile_kernels(task: TaskSettings) -> None:
    """Compile the learner before the first event; a notice says so if it takes long."""
    from stream.learners.kernels import CACHE_DIRECTORY  # here: it loads numba

    kept = (
        "kept for the next time"
        if CACHE_DIRECTORY
        else "kept nowhere: no folder can be written to; name one: NUMBA_CACHE_DIR"
    )
    with announced_when_slow(f"{task.learner}: compiling its kernels, which are {kept}"):
        task.warm_up()
