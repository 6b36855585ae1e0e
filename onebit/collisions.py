"""Detects packages that shadow Onebit's own.

Onebit's packages have common names. If Python finds another package with one of these names first, Onebit cannot be
imported. This module imports nothing from Onebit's other packages, so that it can report the conflict.
"""

import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

FILES = {"stream": ("py.typed", "wire"), "producers": ("replay.py",), "consumers": ("learner.py",)}
"""Onebit packages with generic names, and the files that each must contain."""

DISTRIBUTION = "onebit"


class CollisionError(ImportError):
    """Another package shadows one of Onebit's packages, or a package is missing."""


def check_packages() -> None:
    """Check that Python finds Onebit's own packages.

    Raises:
        CollisionError: Python finds another package with the same name, or none.
    """
    home = Path(__file__).resolve().parent.parent
    for name in FILES:
        spec = sys.modules[name].__spec__ if name in sys.modules else find_spec(name)
        if spec is None:
            raise CollisionError(f"expected Onebit's package {name} in {home}; found none. Reinstall Onebit")
        places = spec.submodule_search_locations or [spec.origin or "a module"]
        if Path(places[0]).resolve() != home / name:
            raise CollisionError(
                f"{places[0]} shadows Onebit's package {name} in {home}, because both packages have the same name. "
                "Rename or move the other package, remove its folder from PYTHONPATH, or install Onebit into another "
                "environment"
            )
        missing = [file for file in FILES[name] if not (home / name / file).exists()]
        others = sorted(set(packages_distributions().get(name, ())) - {DISTRIBUTION}) if missing else []
        if missing:
            raise CollisionError(
                f"{home / name} is not a complete copy of Onebit's package {name}: it lacks {missing[0]}. "
                + (f"{', '.join(others)} also installs a package of this name; " if others else "")
                + "reinstall Onebit in its own environment"
            )
