"""A frozen model that serves as the holdout policy, encoded as text in a task's settings.

The settings contain the whole model. A task is therefore a function of its settings and inputs, as it is with any other
policy. Recovery, audits and replicas of a shared model do not need a file. A restart with a different model is
rejected.

    model:DIGEST:BASE64

BASE64 encodes a section. DIGEST is the first 16 hex digits of the SHA-256 digest of the decoded bytes. The section's
arrays are the parts of the learner's state that determine the greedy class; a number is stored as an array without
dimensions. The section's values are `settings`, which determine the form of the state, and the model pipeline's
`class_names` and `features`, either of which may be null.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from stream.learners import Learner, ParameterError, State
from stream.wire.sections import Section, SectionReader, encode_section

MODEL = "model:"

TEXT_MAX = 700_000
"""Limit on the text's length. The text must fit in the journal record of a task's first step, and records are limited
to 1 MB.
"""


class Frozen(NamedTuple):
    """A frozen model."""

    settings: dict[str, Any]  # settings on which the state depends, keyed by their names in `TaskSettings`
    state: State  # the parts that determine the greedy class
    class_names: list[str] | None = None
    features: Mapping[str, Any] | None = None

    @classmethod
    def of_learner(
        cls,
        settings: dict[str, Any],
        learner: Learner,
        class_names: list[str] | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> "Frozen":
        """Create a frozen model from a learner and its settings."""
        state, parts = learner.state(), learner.greedy_parts
        kept = state if parts is None else {name: state[name] for name in parts if name in state}
        return cls(settings, kept, class_names, features)

    def to_text(self) -> str:
        """Encode the model as text.

        Raises:
            ParameterError: the model is too large.
        """
        arrays = {name: np.asarray(value) for name, value in self.state.items()}
        values = {"settings": self.settings, "class_names": self.class_names, "features": self.features}
        section = Section("holdout", values, arrays)
        data = b"".join(encode_section(section))
        text = f"{MODEL}{sha256(data).hexdigest()[:16]}:{b64encode(data).decode()}"
        if len(text) > TEXT_MAX:
            raise ParameterError(
                f"holdout_policy: the {self.settings['learner']} model has {len(data):,} bytes; expected at most "
                f"{TEXT_MAX * 3 // 4:,}. Use a learner with a smaller state, such as banditron, or fewer features"
            )
        return text

    @classmethod
    def of_text(cls, text: str) -> "Frozen":
        """Decode a model's text; the inverse of `to_text`.

        Raises:
            ParameterError: the text does not encode a model.
        """
        digest, _, encoded = text.removeprefix(MODEL).partition(":")
        try:
            data = b64decode(encoded, validate=True)
        except ValueError as error:
            raise ParameterError(f"holdout_policy {text[:40]}: expected base64; got {error}") from error
        if (found := sha256(data).hexdigest()[:16]) != digest:
            raise ParameterError(f"holdout_policy {text[:40]}: expected a model with this digest; got {found}")
        try:
            _, values, arrays = SectionReader([memoryview(data)]).section()
            state = {name: array if array.ndim else array.item() for name, array in arrays.items()}
            return cls(values["settings"], state, values["class_names"], values["features"])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ParameterError(f"holdout_policy {text[:40]}: expected a model; got {error!r}") from error
