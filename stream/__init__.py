"""Onebit's internal library. The public API is the package `onebit`."""

from importlib.metadata import version
from typing import Any


def __getattr__(name: str) -> Any:
    """Return the version on first access; see PEP 562."""
    if name == "__version__":
        globals()[name] = version("onebit")
        return globals()[name]
    raise AttributeError(f"module 'stream' has no attribute {name!r}")
