"""Vowpal Wabbit's contextual bandits as opponents, with the same rows, draws and delays as Onebit's learners.

The bandit uses the single-line format with K actions (`--cb_explore K`). Vowpal Wabbit converts it to the multi-line
format, with one regression for all actions (`--cb_type mtr`). Examples are created from numbers, not parsed from text,
and each example is used for both a prediction and an update. No other method in the Python package is faster. The bit
is passed as a cost, with the action and its probability at decision time.

    pip install vowpalwabbit==9.11.9
"""

import importlib
import math
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream.learners import ParameterError
from stream.offline import Examples


class Sizes(Protocol):
    """The numbers of classes and features in a data set."""

    @property
    def n_classes(self) -> int:
        """The number of classes K."""

    @property
    def n_features(self) -> int:
        """The number of features d."""


NAMESPACE = "f"
"""The namespace for the features f0, f1, ... Integer names are not hashed, so their indices would collide with each
other."""

SQUARECB = "--squarecb --gamma_scale 100"
"""The default exploration."""

BITS = range(18, 25)
"""Range for the number of bits in a weight table's index, from Vowpal Wabbit's default to the number for a 268 MB
table."""


class Setting(NamedTuple):
    """A configuration of Vowpal Wabbit."""

    exploration: str  # command-line arguments that select the exploration
    costs: tuple[int, int]  # costs of a right and of a wrong action
    unit: bool  # True to scale x to unit norm
    learning_rate: float = 0.5

    def text(self) -> str:
        """Return a description of the configuration."""
        x = "x of unit norm" if self.unit else "x unscaled"
        return f"{self.exploration} -l {self.learning_rate:g}, costs {self.costs[0]}/{self.costs[1]}, {x}"


def package(name: str) -> Any:
    """Import a module from another library.

    Raises:
        ParameterError: the library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ParameterError(f"{name} is not installed. Run: pip install vowpalwabbit==9.11.9 river") from error


@cache
def hashes(n_features: int, bits: int) -> NDArray[np.int64]:
    """Return the index of each feature in a weight table with 2**`bits` entries, int64[d]."""
    workspace = package("vowpalwabbit.pyvw").Workspace(f"--quiet -b {bits}")
    namespace = workspace.hash_space(NAMESPACE)
    found = [workspace.hash_feature(f"f{i}", namespace) for i in range(n_features)]
    workspace.finish()
    return np.array(found, dtype=np.int64)


class Bandit:
    """Vowpal Wabbit for K actions; converts a stream's examples to its format."""

    def __init__(self, data: Sizes, setting: Setting, *, quadratic: bool = False) -> None:
        pyvw = package("vowpalwabbit.pyvw")
        size = data.n_features * (data.n_features + 3) // 2 if quadratic else data.n_features
        # Hash collisions are rare with four entries per weight.
        bits = min(max(math.ceil(math.log2(4 * data.n_classes * (size + 1))), BITS[0]), BITS[-1])
        self._workspace = pyvw.Workspace(
            f"--cb_explore {data.n_classes} --quiet -b {bits} -l {setting.learning_rate} {setting.exploration}"
            + (f" -q {NAMESPACE}{NAMESPACE}" if quadratic else "")
        )
        self._example, self._native, self._model = pyvw.Example, pyvw.pylibvw.example, pyvw.pylibvw.vw
        self._setting = setting
        self._namespace = self._workspace.hash_space(NAMESPACE)
        self._hashes = hashes(data.n_features, bits)

    def example(self, examples: Examples, t: int) -> Any:
        """Return event t as an example without a label."""
        indices, values = examples.features(t)
        norm = float(np.linalg.norm(values)) if self._setting.unit else 1.0
        entries = values / norm if norm > 0.0 else values
        features = list(zip(self._hashes[indices].tolist(), entries.tolist(), strict=True))
        example = self._example(self._workspace)
        self._native.push_namespace(example, ord(NAMESPACE))  # without this call, the features are ignored
        example.push_feature_list(self._workspace, ord(NAMESPACE), self._namespace, features)
        example.setup_example()
        return example

    def decide(self, example: Any, u: float) -> tuple[int, float]:
        """Return an action, drawn using the uniform number u, and the action's probability."""
        self._model.predict(self._workspace, example)
        probabilities: list[float] = example.get_action_scores()
        below = 0.0
        for action, probability in enumerate(probabilities):
            below += probability
            if u < below:
                return action, probability
        last = max(
            action for action, probability in enumerate(probabilities) if probability > 0.0
        )  # the sum of the float32 probabilities may be below 1
        return last, probabilities[last]

    def learn(self, example: Any, action: int, probability: float, *, right: bool) -> None:
        """Learn from the bit for an example that was passed to `decide`. An example can be labelled only once."""
        example.set_label_string(f"{action + 1}:{self._setting.costs[0 if right else 1]}:{probability:.8g}")
        example.set_test_only(False)  # an example created without a label is test-only
        self._model.learn(self._workspace, example)

    def finish(self) -> None:
        """Free the weights."""
        self._workspace.finish()
