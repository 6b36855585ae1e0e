"""Creates policies by name, for a log or a live pipeline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stream.estimating.policies import EstimateError, Model, Policy, Training, parse_policy
from stream.learners import registered
from stream.monitoring.policies import ALWAYS, Known, Named, Policies
from stream.verifying.model_files import Model as Saved
from stream.verifying.model_files import read_model
from stream.wire.named_features import FeatureEncoder, from_plain
from stream.wire.topics import Topics

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
    return _policy_of_model(spec, read_model(Path(spec.removeprefix(MODEL))), decisions)


def _policy_of_model(spec: str, model: Saved, decisions: Decisions) -> Policy:
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
    settings = model.meta.get("settings", {})
    classes = settings.get("class_names")
    if classes is not None and tuple(classes) != decisions.class_names:
        number = next(
            k for k, pair in enumerate(zip(classes, decisions.class_names, strict=True)) if pair[0] != pair[1]
        )
        raise EstimateError(
            f"policy {spec}: class {number} is {classes[number]!r} in the model, but in {decisions.name} it is "
            f"{decisions.class_names[number]!r}; in the mapping, list the classes in the model's order: "
            f"{', '.join(classes)}"
        )
    features = settings.get("features")
    if features is not None and (encoder := from_plain(features)) != decisions.encoder:
        known = {} if decisions.encoder is None else decisions.encoder.names
        names = dict.fromkeys([*encoder.names, *known])
        odd = [name for name in names if encoder.names.get(name) != known.get(name)] or ["hashed features"]
        raise EstimateError(
            f"policy {spec}: the indices of {', '.join(odd)} in {decisions.name} differ from those in the model. Use a "
            "log with the same features and values as the log from which the model's --features file was created"
        )


def check_live(specs: Sequence[str]) -> None:
    """Check that the named policies can be evaluated on a live pipeline.

    Raises:
        EstimateError: a policy cannot be evaluated.
        ModelError: a model's file cannot be read.
    """
    for spec in specs:
        name, colon, _ = spec.partition(":")
        if spec.startswith(MODEL):
            read_model(Path(spec.removeprefix(MODEL)))
        elif name in registered():
            raise EstimateError(
                f"--estimate {spec}: the monitor does not train learners. Use `onebit estimate` on a log, or "
                "export a model and use model:FILE"
            )
        elif spec not in (*ALWAYS, "logged") and (name, colon) != ("constant", ":"):
            raise EstimateError(
                f"--estimate: expected logged, constant:ACTION or model:FILE; got {spec}. "
                f"{', '.join(ALWAYS)} are always evaluated"
            )


def live_policies(specs: Sequence[str], settings: dict[str, Any], topics: Topics) -> Policies:
    """Return the policies to evaluate on a live pipeline: the default ones and the named ones.

    Args:
        specs: Names of policies; see `check_live`.
        settings: The pipeline's settings by name.
        topics: The pipeline's topics.

    Raises:
        EstimateError: a policy does not match the decisions.
        ModelError: a model's file cannot be read.
    """
    n_classes, n_features = settings["n_classes"], settings["n_features"]
    decisions = Decisions(
        topics.predictions,
        tuple(settings["class_names"] or map(str, range(n_classes))),
        n_features,
        None if settings["features"] is None else from_plain(settings["features"]),
    )
    named = [_named(spec, decisions, topics) for spec in dict.fromkeys(specs) if spec not in ALWAYS]
    return Policies(named, n_classes, n_features, decisions.encoder, settings["holdout"])


def _named(spec: str, decisions: Decisions, topics: Topics) -> Named:
    if not spec.startswith(MODEL):
        return Named(spec, policy_of(spec, decisions, Training()))
    model = read_model(Path(spec.removeprefix(MODEL)))
    return Named(f"{spec} {model.meta['digest']}", _policy_of_model(spec, model, decisions), _known_to(model, topics))


def _known_to(model: Saved, topics: Topics) -> Known | None:
    """Return which decisions a model may have learned from, or None for a model from a different pipeline."""
    position = model.meta.get("position", {})
    if f"{position.get('topics')}contexts" != topics.contexts:
        return None
    if "version" in position:
        return Known(None, position["version"])
    return Known(position["partition"], position["journal"])
