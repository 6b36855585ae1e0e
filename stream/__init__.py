"""Onebit: online multiclass learning from one late bit of feedback.

What `__all__` names is for users. It is loaded when it is first asked for, so that `import stream` is cheap.

>>> import numpy as np
>>> from stream import create
>>> learner = create("banditron", n_classes=3, n_features=4)
>>> x = np.array([1.0, 0.0, 0.5, 0.0])
>>> decision = learner.predict(x, u=0.5)  # decides, and changes nothing
>>> learner.update(x, decision, reward=1)  # any time later
True
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream import offline
    from stream.learners import Learner, create, registered
    from stream.reporting.errors import evaluate
    from stream.wire.events import Decision, Features

__all__ = ["Decision", "Features", "Learner", "__version__", "create", "evaluate", "offline", "registered"]

_HOMES = {
    "Decision": "stream.wire.events",
    "Features": "stream.wire.events",
    "Learner": "stream.learners",
    "create": "stream.learners",
    "evaluate": "stream.reporting.errors",
    "registered": "stream.learners",
}


def __getattr__(name: str) -> Any:
    """Load what was asked for; see PEP 562."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name == "offline":
        value = import_module("stream.offline")
    elif name == "__version__":
        value = version("onebit")
    else:
        raise AttributeError(f"module 'stream' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
