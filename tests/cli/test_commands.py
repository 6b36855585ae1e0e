"""Commands as a user types them."""

import subprocess
import sys
from pathlib import Path

import pytest

import stream
from stream.cli.exits import ExitCode
from tests.cli.conftest import Onebit


def test_the_version_is_told(onebit: Onebit) -> None:
    assert onebit("--version") == (ExitCode.OK, f"onebit {stream.__version__}\n", "")


@pytest.mark.parametrize("module", ["stream", "stream.cli"])
def test_the_package_is_a_program(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"onebit {stream.__version__}\n"


def test_the_public_api_is_there_and_importing_it_is_cheap() -> None:
    for name in stream.__all__:
        assert getattr(stream, name) is not None
        assert name in dir(stream)
    assert (Path(stream.__file__).parent / "py.typed").exists()
    code = "import stream, sys; print(sorted({'numba', 'numpy', 'scipy', 'kafka', 'typer'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_tells_every_exit_code(onebit: Onebit) -> None:
    told = onebit("--help").out
    assert [code for code in ExitCode if f" {code.value} {code.meaning.split(' ')[0]}" not in told] == []


def test_classes_without_features_are_refused_naming_both(onebit: Onebit) -> None:
    ended = onebit("learn", "--n-classes", "12")
    assert ended.code == ExitCode.USAGE
    assert "--n-classes 12" in ended.err
    assert "--n-features" in ended.err


def test_a_program_of_one_learner_refuses_several(onebit: Onebit) -> None:
    ended = onebit("learn", "--learner", "soba-diag,banditron")
    assert ended.code == ExitCode.USAGE
    assert "`onebit learn` runs one learner; got soba-diag, banditron" in ended.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--epochs", "none"), "--epochs"),
        (("--events", "0"), "or equal to 1"),
        (("--on-expiry", "forget"), "drop"),
        (("--window", "5"), "--window: a duration is a number and a unit"),
        (("--rate", "0"), "--rate: Input should be greater than 0"),
        (("--delay", "soon"), "--delay"),
        (("--learner", "nobody"), "no learner is called 'nobody'"),
        (("--data", "optdigit"), "did you mean optdigits"),
    ],
)
def test_a_flag_that_cannot_be_used_is_refused_before_anything_runs(
    flags: tuple[str, str], told: str, onebit: Onebit
) -> None:
    ended = onebit("run", *flags)
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert told in ended.err
