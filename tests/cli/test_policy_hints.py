"""If a learner does not support a policy, the core reports the reason, and the command line suggests a remedy."""

import sys

import orjson
import pytest

from onebit.cli.app import main
from onebit.cli.console import POLICY_HINTS
from stream.errors import ExitCode
from stream.task.settings import Unsuitable
from tests.cli.conftest import Onebit


def test_every_policy_error_has_a_remedy_with_a_flag() -> None:
    assert {reason: "--" in hint for reason, hint in POLICY_HINTS.items()} == dict.fromkeys(
        Unsuitable.__members__, True
    )


def test_unsupported_policy_is_rejected_with_reason_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--learner", "perceptron", "--on-expiry", "negative", "--events", "5"]
    monkeypatch.setattr(sys, "argv", ["onebit", "run", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.USAGE
    output = " ".join(capsys.readouterr().err.split())
    assert "perceptron learns from labels, but an expired decision has none; use --on-expiry drop" in output


def test_auto_selects_late_ucb_without_drift_if_late_feedback_corrects(onebit: Onebit) -> None:
    policies = ("--on-expiry", "negative", "--late", "correct", "--window", "200ms")
    ran = onebit("run", "--events", "60", *policies, "--no-report", "--json")
    report = orjson.loads(ran.out)
    assert (report["learner"], report["params"]["drift"], report["ledger_ok"]) == ("late-ucb", "off", True)
    assert report["late"] > 0
