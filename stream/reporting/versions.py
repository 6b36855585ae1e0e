"""What a run was made with."""

import platform
from functools import cache
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


@cache
def processor() -> str:
    """What the kernels are compiled for, as LLVM calls it: by it, too, the last bits of a sum may differ."""
    from llvmlite.binding import get_host_cpu_name  # here: whoever compiles no kernels does not load it

    return str(get_host_cpu_name())
