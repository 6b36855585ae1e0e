"""Merge the user's settings with a running pipeline's settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from stream.programs.task_settings import blocks_of, n_features_of, task_settings, with_chosen
from stream.settings.data_sizes import DataSizes, SizesOf
from stream.settings.definitions import AUTO, Settings, SettingsError
from stream.settings.model import Program
from stream.settings.sources import Described, described
from stream.settings.values import flag_of, shown_value
from stream.task.settings import Sharing, TaskSettings
from stream.task.stored_settings import MOVABLE, PARAMETER, STORED, SettingsDifferError, resolve
from stream.wire.actions import ActionBlocks
from stream.wire.named_features import FeatureEncoder

HASHED_NNZ = 64
"""Assumed number of non-zeros among the hashed features of a context or of an action."""


class Chosen(NamedTuple):
    """The settings for a learner's tasks."""

    task: TaskSettings  # settings for a new task
    nnz: int  # approximate number of non-zeros per context
    given: frozenset[str]  # names of the stored settings that the user set


def determined_by(setting: Described) -> frozenset[str]:
    """Return the stored settings that a user's setting determines."""
    own = setting.setting.determines
    return frozenset((setting.field,)) & STORED.keys() if own is None else frozenset(own)


def given_names(settings: Settings, stored: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the stored settings that were set by a flag, an environment variable or the settings file.

    The scale is a task setting only if there is no data set.

    Args:
        settings: The user's settings.
        stored: The pipeline's settings by name; empty for a new pipeline.
    """
    names = {name for one in described() if one.field in settings.given for name in determined_by(one)}
    if settings.learner == [AUTO]:
        names.discard("learner")
    if settings.model == AUTO:
        names.discard("model")
    if not _is_without_data(settings, stored):
        names.discard("scale")
    return frozenset(names | {PARAMETER + text.partition("=")[0].rpartition(".")[2] for text in settings.param})


def settings_for(
    settings: Settings,
    stored: Mapping[str, Any],
    place: str,
    model: Sharing = "own",
    *,
    sizes_of: SizesOf,
) -> Chosen:
    """Return a learner's settings in a new or existing pipeline.

    Args:
        settings: The user's settings.
        stored: The pipeline's settings by name; empty for a new pipeline.
        place: The journal's name, for messages.
        model: Kind of model for a new pipeline if the user did not set it; see `Settings.model_of`.
        sizes_of: Called only if neither the user nor the pipeline determines the sizes.

    Raises:
        SettingsDifferError: the user's settings differ from the pipeline's settings; see `resolve`.
        SettingsError: a parameter is invalid, `--scale` is set although the named features are already scaled, or the
            pipeline's contexts list actions with other sizes.
        ParameterError: a parameter does not belong to the learner.
    """
    given = given_names(settings, stored)
    if settings.model == AUTO:
        settings = settings.model_copy(update={"model": model})
    _check_layout(settings, stored, place)
    n_classes, n_features, mean_nnz, class_names, blocks = _sizes(settings, stored, sizes_of)
    if stored and "learner" not in given:
        own, learner = settings.model_copy(update={"learner": [stored["learner"]]}), stored["learner"]
    else:
        is_known = _n_classes_of(settings) is None  # otherwise, the sparsity is unknown
        own, _ = with_chosen(settings, n_classes, n_features, mean_nnz if is_known else None, blocks)
        learner = own.learner[0]
    task = task_settings(own, learner, n_classes, n_features, class_names, blocks)
    if _is_without_data(settings, stored):
        task = replace(task, scale=settings.scale)
        _check_scaled_once(task, settings)
    resolved = resolve(stored, task, given, place=place)
    return Chosen(resolved, min(int(mean_nnz), _nnz_of(resolved)), given)


def _nnz_of(task: TaskSettings) -> int:
    """Return the approximate number of non-zeros in a context with as many actions as possible."""
    blocks, reading = task.blocks, task.action_reading()
    nnz = _nonzeros(task.context_features, task.feature_encoder())
    if blocks is None or reading is None:
        return nnz
    return nnz + blocks.places * (1 + _nonzeros(blocks.features, reading.encoder))


def _nonzeros(n_features: int, encoder: FeatureEncoder | None) -> int:
    if encoder is None or encoder.hash_bits is None:
        return n_features
    return min(n_features, encoder.own + HASHED_NNZ)


def _is_without_data(settings: Settings, stored: Mapping[str, Any]) -> bool:
    """Return whether contexts come from a service.

    This is the case if the user set the number of classes or a file of named features, or if the pipeline already has a
    running scale or named features.
    """
    has_own = stored.get("scale", "none") != "none" or stored.get("features") is not None
    return (
        (has_own and "data" not in settings.given)
        or _n_classes_of(settings) is not None
        or settings.features is not None
    )


def _n_classes_of(settings: Settings) -> int | None:
    return settings.n_classes or settings.classes_max or settings.actions_max


def _check_scaled_once(task: TaskSettings, settings: Settings) -> None:
    """Check that --scale is not used with a features file that already contains a scale computed from a log."""
    encoder = task.feature_encoder()
    if task.scale != "none" and encoder is not None and any(name.scale is not None for name in encoder.names.values()):
        raise SettingsError(
            f"--scale {task.scale}: {settings.features} already contains a scale computed from a log; omit --scale, or "
            "save the features without a scale: onebit data show LOG --save-features FILE"
        )


def _check_layout(settings: Settings, stored: Mapping[str, Any], place: str) -> None:
    """Check that the user's sizes of contexts with actions are the pipeline's."""
    own, given = _stored_blocks(stored), blocks_of(settings)
    if own is not None and given not in (None, own):
        raise SettingsError(
            f"{place} has contexts with {own.context:,} features and up to {own.places} actions with {own.features:,}; "
            f"got {given.context:,}, {given.places} and {given.features:,}: use the pipeline's settings, or start a "
            "new pipeline with a different --topic-prefix"
        )


def _stored_blocks(stored: Mapping[str, Any]) -> ActionBlocks | None:
    """Return the layout of the pipeline's contexts with actions, or None if it decides among classes."""
    if stored.get("actions") is None:
        return None
    return ActionBlocks.of_dimension(stored["n_features"], stored["n_classes"], stored["actions"]["context"])


def _sizes(settings: Settings, stored: Mapping[str, Any], sizes_of: SizesOf) -> DataSizes:
    """Return the sizes that the user set. Other sizes come from the pipeline or the data set.

    Raises:
        SettingsError: the sizes of contexts with actions are incomplete.
    """
    blocks = blocks_of(settings)
    if blocks is not None:
        return DataSizes(blocks.places, blocks.n_features, blocks.n_features, blocks=blocks)
    blocks = _stored_blocks(stored)
    if blocks is not None and "data" not in settings.given:
        return DataSizes(blocks.places, blocks.n_features, blocks.n_features, blocks=blocks)
    n_classes, n_features = _n_classes_of(settings), n_features_of(settings)
    if stored and "data" not in settings.given:
        n_classes, n_features = n_classes or stored["n_classes"], n_features or stored["n_features"]
    if n_classes is None or n_features is None:
        return sizes_of(settings)
    return DataSizes(n_classes, n_features, n_features)


def with_hint(error: SettingsDifferError) -> SettingsError:
    """Suggest `onebit change` or `onebit move` in the error if one of them would resolve the differences."""
    flags = {
        name: one.flag
        for one in described()
        if Program.CHANGE in one.setting.programs and len(determined_by(one)) == 1
        for name in determined_by(one)
    }
    if error.differences.keys() <= MOVABLE:
        named = " ".join(f"{flag_of(name)} {one.new}" for name, one in error.differences.items())
        return SettingsError(f"{error}, or move the pipeline to new topics: onebit move --to-prefix PREFIX {named}")
    has_flags = all(name in flags or name.startswith(PARAMETER) for name in error.differences)
    if not (error.can_change and has_flags):
        moves = "" if error.prevents_import else ", and move the model to it (onebit model export, import)"
        return SettingsError(f"{error}, or start a new pipeline with a different --topic-prefix{moves}")
    named = " ".join(
        f"{flags[name]} {shown_value(name, one.new)}"
        if name in flags
        else f"--param {name.removeprefix(PARAMETER)}={one.new}"
        for name, one in error.differences.items()
    )
    return SettingsError(f"{error}, or change them for the whole pipeline: onebit change {named}")
