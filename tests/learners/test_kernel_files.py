"""The cache of compiled kernels is keyed by a digest of the kernel files, so shared kernels must be in these files."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core.registry import CPUDispatcher

from stream import learners
from stream.learners import kernels

MODULES = sorted(module.name for module in pkgutil.walk_packages(learners.__path__, "stream.learners."))


@pytest.mark.parametrize("name", MODULES)
def test_shared_kernels_are_defined_in_kernel_files(name: str) -> None:
    found: dict[str, Any] = vars(importlib.import_module(name))
    homes = {kernel.py_func.__module__ for kernel in found.values() if isinstance(kernel, CPUDispatcher)}
    elsewhere = homes - {name}
    assert [home for home in elsewhere if not home.endswith("kernels")] == []


def test_cache_key_changes_with_any_kernel_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    found = []
    (tmp_path / "family").mkdir()
    for name in ("kernels.py", "a_kernels.py", "family/b_kernels.py", "learner.py"):
        (tmp_path / name).write_text("", encoding="utf-8")
        for source in ("one = 1", "one = 2"):
            (tmp_path / name).write_text(source, encoding="utf-8")
            found.append(kernels._cache_directory())
    assert len(set(found[:6])) == 6
    assert set(found[5:]) == {found[5]}


def test_kernels_compile_without_a_writable_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/dev/null/nowhere")
    monkeypatch.setattr(kernels, "CACHE_DIRECTORY", kernels._cache_directory())
    assert kernels.CACHE_DIRECTORY == ""
    twice = kernels.compiled(_twice)
    assert twice(21) == 42
    assert isinstance(twice, CPUDispatcher)
    assert not twice.stats.cache_path


def _twice(x: int) -> int:
    return 2 * x


USES_A_KERNEL = """
import logging, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))  # like a full disk
logging.basicConfig(format="%(levelname)s")
import numpy as np
from stream.learners.kernels import check_event
from stream.wire.records import Features
check_event(Features(np.array([0, 1], np.int32), np.ones(2)), 3)
print(sum(check_event.stats.cache_hits.values()))
"""


def use_a_kernel(folder: Path, file_bytes_max: int = 1_000_000) -> tuple[int, int, str]:
    """Return the exit code, the number of kernels loaded from the cache, and the log of a process with a small disk."""
    ended = subprocess.run(
        [sys.executable, "-c", USES_A_KERNEL, str(file_bytes_max)], capture_output=True, text=True, check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
    )  # fmt: skip
    return ended.returncode, int(ended.stdout or -1), ended.stderr.strip()


@pytest.mark.parametrize("file_bytes_max", [0, 2_000])
def test_kernels_compile_if_the_disk_under_their_cache_is_full(file_bytes_max: int, tmp_path: Path) -> None:
    code, loaded, log = use_a_kernel(tmp_path, file_bytes_max)
    assert (code, loaded, log) == (0, 0, "WARNING")
    assert use_a_kernel(tmp_path) == (0, 0, "")
    assert use_a_kernel(tmp_path) == (0, 1, "")


@pytest.mark.parametrize("content", [b"", b"damaged"])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_cache_is_replaced(content: bytes, ending: str, tmp_path: Path) -> None:
    use_a_kernel(tmp_path)
    for path in tmp_path.rglob(f"*.{ending}"):
        path.write_bytes(content)
    assert use_a_kernel(tmp_path) == (0, 0, "")
    assert use_a_kernel(tmp_path) == (0, 1, "")
