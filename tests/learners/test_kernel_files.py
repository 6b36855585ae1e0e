"""The cache of compiled kernels is keyed by a digest of the kernel files, so shared kernels must be in these files."""

import importlib
import pkgutil
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
