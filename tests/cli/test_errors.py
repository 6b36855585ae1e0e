"""Every error produces a message and an exit code. The exit code for an internal error is 70, never 1."""

import orjson
import pytest

from onebit import learner_costs
from onebit.cli.console import hint_of
from producers.datasets.base import DatasetError
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import AccessError, Acl, BrokerUnavailableError, FencedError
from tests.cli.conftest import Onebit


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("raised by the test")


@pytest.mark.parametrize("debug_source", ["flag", "variable", "no"])
def test_internal_error_prints_a_traceback_only_with_debug(
    onebit: Onebit, monkeypatch: pytest.MonkeyPatch, debug_source: str
) -> None:
    monkeypatch.setattr(learner_costs, "choose", fail)
    if debug_source == "variable":
        monkeypatch.setenv("ONEBIT_DEBUG", "1")
    ended = onebit("learners", *(["--debug"] if debug_source == "flag" else []))
    assert (ended.code, ended.out) == (ExitCode.CRASHED, "")
    assert ("Traceback" in ended.err, "--debug" in ended.err) == (
        (False, True) if debug_source == "no" else (True, False)
    )


def test_internal_error_is_one_line_in_a_json_log(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_costs, "choose", fail)
    ended = onebit("learners", "--log-format", "json")
    assert orjson.loads(ended.err)["exit_code"] == ended.code == ExitCode.CRASHED


def test_invalid_setting_prints_a_traceback_only_with_debug(onebit: Onebit) -> None:
    wrong = ("run", "--learner", "nobody")
    ended = [onebit(*wrong), onebit(*wrong, "--debug")]
    assert [(one.code, "Traceback" in one.err) for one in ended] == [(ExitCode.USAGE, False), (ExitCode.USAGE, True)]


@pytest.mark.parametrize(
    ("error", "code"),
    [(DatasetError, ExitCode.USAGE), (FencedError, ExitCode.FENCED), (BrokerUnavailableError, ExitCode.UNAVAILABLE)],
)
def test_each_error_class_has_an_exit_code(error: type[OnebitError], code: ExitCode) -> None:
    assert error.exit_code == code


def test_error_hints_contain_a_command() -> None:
    denied = AccessError("denied", (Acl("topic", "onebit.contexts", "Read"),), "ann")
    assert "kafka-acls --add --allow-principal User:ann --operation Read --topic onebit.contexts" in hint_of(denied)
