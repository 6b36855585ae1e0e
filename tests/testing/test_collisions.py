"""Onebit reports a third-party package that has the same name as one of its own packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import onebit
from onebit import CollisionError, check_packages

ROOT = Path(__file__).parents[2]


def test_check_passes_in_an_environment_without_collisions() -> None:
    check_packages()


def test_foreign_package_that_shadows_a_package_of_onebit_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "consumers").mkdir()
    (tmp_path / "consumers/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "consumers", raising=False)
    with pytest.raises(CollisionError) as raised:
        check_packages()
    message = str(raised.value)
    assert message.startswith(f"{tmp_path}/consumers ")
    assert f" package consumers in {ROOT}, " in message


@pytest.mark.parametrize("found", [None, b"from .client import Client\n"], ids=["removed", "overwritten"])
def test_package_whose_files_another_distribution_changed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bytes | None
) -> None:
    monkeypatch.setattr(onebit, "__file__", str(tmp_path / "onebit/__init__.py"))
    monkeypatch.setattr(onebit, "packages_distributions", lambda: {"producers": ["onebit", "kafka-producers"]})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("stream", "producers", "consumers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_bytes((ROOT / name / "__init__.py").read_bytes())
    check_packages()
    (tmp_path / "producers/__init__.py").unlink()
    if found is not None:
        (tmp_path / "producers/__init__.py").write_bytes(found)

    with pytest.raises(CollisionError) as raised:
        check_packages()
    assert str(raised.value).startswith(f"{tmp_path}/producers/__init__.py ")
    assert "kafka-producers" in str(raised.value)


@pytest.mark.slow
def test_program_reports_a_collision_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "stream.py").touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", "import onebit; onebit.main()", "--version"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}/stream.py ")
    assert f" package stream in {ROOT}, " in done.stderr
    assert done.stderr.count("\n") == 1
