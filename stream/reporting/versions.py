"""What a run was made with."""

import platform
from importlib.metadata import version
from typing import Any


def versions() -> dict[str, Any]:
    """The versions that the bits of a run may depend on, by name."""
    return {
        "onebit": version("onebit"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "machine": platform.machine(),
    }
