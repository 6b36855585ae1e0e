"""Creates policies by name, for a log or a live pipeline."""

from pathlib import Path
from typing import NamedTuple

from stream.estimating.policies import EstimateError, Model, Policy, Training, parse_policy
from stream.recovery.model_files import Model as Saved
from stream.recovery.model_files import read_model
from stream.wire.actions import ActionBlocks
from stream.wire.named_features import FeatureEncoder, from_plain

MODEL = "model:"


class Decisions(NamedTuple):
    """The decisions, from a log or a live pipeline, on which policies are evaluated."""

    name: str  # the name used in messages
    class_names: tuple[str, ...]
    n_features: int
    encoder: FeatureEncoder | None  # None if features are indices
    blocks: ActionBlocks | None = None  # the layout of x; None if the decisions are among classes
    action_encoder: FeatureEncoder | None = None  # as `encoder`, for the features of actions


def policy_of(spec: str, decisions: Decisions, training: Training) -> Policy:
    """Return the policy specified by a flag. A model is read from its file.

    Raises:
        EstimateError: the policy is unknown, or the model does not match the decisions.
        ModelError: the file cannot be read.
    """
    if not spec.startswith(MODEL):
        return parse_policy(spec, decisions.class_names, decisions.n_features, training, decisions.blocks)
    return policy_of_model(spec, read_model(Path(spec.removeprefix(MODEL))), decisions)


def policy_of_model(spec: str, model: Saved, decisions: Decisions) -> Policy:
    """Return the policy of a saved model.

    Raises:
        EstimateError: the model does not match the decisions.
    """
    _check_sizes(spec, model, decisions)
    _check_names(spec, model, decisions)
    return Model(spec, model.learner(), len(decisions.class_names))


def _check_sizes(spec: str, model: Saved, decisions: Decisions) -> None:
    """Check the numbers of classes and features. A model may have more places for actions than the decisions.

    Raises:
        EstimateError: they differ.
    """
    n_classes, n_features = model.meta["n_classes"], model.meta["n_features"]
    blocks, actions = decisions.blocks, model.meta.get("actions")
    if (blocks is None) != (actions is None):
        kinds = "actions with features", "classes"
        kind, other = kinds if blocks is None else kinds[::-1]
        raise EstimateError(f"policy {spec}: the model decides among {kind}, but {decisions.name} has {other}")
    if blocks is None or actions is None:
        if (n_classes, n_features) != (len(decisions.class_names), decisions.n_features):
            raise EstimateError(
                f"policy {spec}: the model has {n_classes} classes and {n_features} features, but {decisions.name} has "
                f"{len(decisions.class_names)} and {decisions.n_features}"
            )
        return
    own = blocks._replace(places=n_classes, context=actions["context"])
    if own != blocks._replace(places=n_classes) or own.n_features != n_features or n_classes < blocks.places:
        size = ActionBlocks.of_dimension(n_features, n_classes, own.context).features
        raise EstimateError(
            f"policy {spec}: the model is for contexts with {own.context} features and {n_classes} actions with "
            f"{size}; {decisions.name} has {blocks.context}, {blocks.places} and {blocks.features}"
        )


def _check_names(spec: str, model: Saved, decisions: Decisions) -> None:
    """Check that each class and each feature has the same index as in the model file.

    Raises:
        EstimateError: an index differs.
    """
    classes = model.names.get("class_names")
    if classes is not None and tuple(classes) != decisions.class_names:
        number = next(
            k for k, pair in enumerate(zip(classes, decisions.class_names, strict=True)) if pair[0] != pair[1]
        )
        raise EstimateError(
            f"policy {spec}: class {number} is {classes[number]!r} in the model, but in {decisions.name} it is "
            f"{decisions.class_names[number]!r}; in the mapping, list the classes in the model's order: "
            f"{', '.join(classes)}"
        )
    actions = model.meta.get("actions") or {}
    for features, known in (
        (model.names.get("features"), decisions.encoder),
        (actions.get("features"), decisions.action_encoder),
    ):
        if features is not None:
            _check_encoder(spec, from_plain(features), known, decisions.name)


def _check_encoder(spec: str, encoder: FeatureEncoder, known: FeatureEncoder | None, where: str) -> None:
    if encoder == known:
        return
    others = {} if known is None else known.names
    names = dict.fromkeys([*encoder.names, *others])
    odd = [name for name in names if encoder.names.get(name) != others.get(name)] or ["hashed features"]
    raise EstimateError(
        f"policy {spec}: the indices of {', '.join(odd)} in {where} differ from those in the model. Use a "
        "log with the same features and values as the log from which the model's --features file was created"
    )
