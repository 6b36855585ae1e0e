"""The compiled wheel: what holds of the sources holds of what mypyc makes of them, to the byte."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
HOLDING = ("tests/wire", "tests/task", "tests/golden", "tests/contract")
"""They tell what is read, decided, learned and written; none of them puts
something else in the place of a method, which what is compiled does not let them do."""

pytestmark = pytest.mark.timeout(900)  # a compiler's work


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled wheel in the sources' place, and the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    command, environment = [*pip, str(folder), str(ROOT)], os.environ | {"ONEBIT_COMPILE": "1"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name in ("tests", "docs"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_each_module_that_is_named_is_compiled_and_its_source_is_there(unpacked: Path) -> None:
    assert HOOK["custom"]["modules"]
    for module in HOOK["custom"]["modules"]:
        path = unpacked / module
        assert path.exists()
        assert path.with_suffix(EXTENSION_SUFFIXES[0]).exists()


def test_what_is_tested_of_the_sources_holds(unpacked: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not kafka and not confluent"]
    ran = subprocess.run([*command, *HOLDING], cwd=unpacked, env=_environment(unpacked), capture_output=True, text=True)

    assert ran.returncode == 0, ran.stdout[-10_000:]
    assert " passed" in ran.stdout


def test_the_tests_ran_what_is_compiled(unpacked: Path) -> None:
    script = "import stream.task.join, stream.wire.codec; print(stream.task.join.__file__, stream.wire.codec.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=unpacked,
        env=_environment(unpacked),
        capture_output=True,
        text=True,
        check=True,
    )

    assert all(Path(path).suffix in (".so", ".pyd") for path in ran.stdout.split())
    assert all(Path(path).is_relative_to(unpacked) for path in ran.stdout.split())


def _environment(folder: Path) -> dict[str, str]:
    """That of a new test run, in which what is unpacked comes first."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return own | {"PYTHONPATH": str(folder)}
