"""A policy that a learner cannot follow is refused by the core with a reason, and by the command line with a remedy."""

import sys

import pytest

from stream.cli.app import POLICY_HINTS, main
from stream.cli.exits import ExitCode
from stream.joining.task import Unsuitable


def test_every_reason_has_a_remedy_that_names_a_flag() -> None:
    assert {reason: "--" in hint for reason, hint in POLICY_HINTS.items()} == dict.fromkeys(Unsuitable, True)


def test_command_line_says_the_reason_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--learner", "perceptron", "--on-expiry", "negative", "--events", "5"]
    monkeypatch.setattr(sys, "argv", ["onebit", "run", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "perceptron learns from labels, and an expired decision has none; use --on-expiry drop" in said
