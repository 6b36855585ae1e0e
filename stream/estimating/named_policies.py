"""Creates policies by name, for a log or a live pipeline."""

from pathlib import Path
from typing import NamedTuple

from stream.estimating.policies import EstimateError, Model, Policy, Training, parse_policy
from stream.recovery.model_files import Model as Saved
from stream.recovery.model_files import read_model
from stream.wire.named_features import FeatureEncoder, from_plain

MODEL = "model:"


class Decisions(NamedTuple):
    """The decisions, from a log or a live pipeline, on which policies are evaluated."""

    name: str  # the name used in messages
    class_names: tuple[str, ...]
    n_features: int
    encoder: FeatureEncoder | None  # None if features are indices


def policy_of(spec: str, decisions: Decisions, training: Training) -> Policy:
    """Return the policy specified by a flag. A model is read from its file.

    Raises:
        EstimateError: the policy is unknown, or the model does not match the decisions.
        ModelError: the file cannot be read.
    """
    if not spec.startswith(MODEL):
        return parse_policy(spec, decisions.class_names, decisions.n_features, training)
    return policy_of_model(spec, read_model(Path(spec.removeprefix(MODEL))), decisions)


def policy_of_model(spec: str, model: Saved, decisions: Decisions) -> Policy:
    """Return the policy of a saved model.

    Raises:
        EstimateError: the model does not match the decisions.
    """
    sizes = (model.meta["n_classes"], model.meta["n_features"])
    if sizes != (len(decisions.class_names), decisions.n_features):
        raise EstimateError(
            f"policy {spec}: the model has {sizes[0]} classes and {sizes[1]} features, but {decisions.name} has "
            f"{len(decisions.class_names)} and {decisions.n_features}"
        )
    _check_names(spec, model, decisions)
    return Model(spec, model.learner())


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
    features = model.names.get("features")
    if features is not None and (encoder := from_plain(features)) != decisions.encoder:
        known = {} if decisions.encoder is None else decisions.encoder.names
        names = dict.fromkeys([*encoder.names, *known])
        odd = [name for name in names if encoder.names.get(name) != known.get(name)] or ["hashed features"]
        raise EstimateError(
            f"policy {spec}: the indices of {', '.join(odd)} in {decisions.name} differ from those in the model. Use a "
            "log with the same features and values as the log from which the model's --features file was created"
        )
