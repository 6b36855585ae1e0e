"""Creates the policies that the monitor evaluates, by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consumers.monitor.policies import ALWAYS, POLICY_SETTINGS, Known, Named, Policies
from stream.estimating.named_policies import MODEL, Decisions, policy_of, policy_of_model
from stream.estimating.policies import FIRST, EstimateError, Training
from stream.learners import registered
from stream.recovery.model_files import Model as Saved
from stream.recovery.model_files import read_model
from stream.task.stored_settings import restored_settings
from stream.wire.named_features import from_plain
from stream.wire.rewards import parse_range
from stream.wire.topics import Topics


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
        elif spec not in (*ALWAYS, "logged", FIRST) and (name, colon) != ("constant", ":"):
            raise EstimateError(
                f"--estimate: expected logged, {FIRST}, constant:ACTION or model:FILE; got {spec}. "
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
    reading = restored_settings(settings).action_reading() if settings.get("actions") else None
    decisions = Decisions(
        topics.predictions,
        tuple(settings["class_names"] or map(str, range(n_classes))),
        n_features,
        None if settings["features"] is None else from_plain(settings["features"]),
        None if reading is None else reading.blocks,
        None if reading is None else reading.encoder,
    )
    named = [_named(spec, decisions, topics) for spec in dict.fromkeys(specs) if spec not in ALWAYS]
    own = {name: settings.get(name) for name in POLICY_SETTINGS}
    graded = parse_range(settings["reward_range"]) if settings["rewards"] == "graded" else None
    return Policies(
        named, n_classes, n_features, decisions.encoder, settings["holdout"], settings["envelope"], own, graded, reading
    )  # fmt: skip


def _named(spec: str, decisions: Decisions, topics: Topics) -> Named:
    if not spec.startswith(MODEL):
        return Named(spec, policy_of(spec, decisions, Training()))
    model = read_model(Path(spec.removeprefix(MODEL)))
    return Named(f"{spec} {model.meta['digest']}", policy_of_model(spec, model, decisions), _known_to(model, topics))


def _known_to(model: Saved, topics: Topics) -> Known | None:
    """Return which decisions a model may have learned from, or None for a model from a different pipeline."""
    position = model.meta.get("position", {})
    if f"{position.get('topics')}contexts" != topics.contexts:
        return None
    if "version" in position:
        return Known(None, position["version"])
    return Known(position["partition"], position["journal"])
