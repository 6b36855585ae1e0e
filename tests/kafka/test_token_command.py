"""Tokens from a command. Onebit runs the command when it needs a token, and never prints the command's output."""

import base64
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from onebit.testing.processes import wait_for
from stream.kafka.embedded import VirtualClock
from stream.kafka.port import AccessError
from stream.kafka.token_command import Token, TokenCommand, read_token

NOW_S = 1_000.0


def jwt(**claims: object) -> str:
    return ".".join(
        (*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)), "sign")
    )


def test_token_can_be_plain_or_an_oauth_response() -> None:
    whole = jwt(exp=2_000, sub="ada")
    assert read_token("opaque\n", NOW_S) == Token("opaque", 0.0)
    assert read_token(whole, NOW_S) == Token(whole, 2_000.0)
    assert read_token(json.dumps({"access_token": "opaque", "expires_in": 60}), NOW_S) == Token("opaque", 1_060.0)


@pytest.mark.parametrize("more", [{}, {"expires_in": None}])
def test_response_without_expiry_uses_the_expiry_of_the_token(more: dict[str, object]) -> None:
    assert read_token(json.dumps({"access_token": "opaque"} | more), NOW_S) == Token("opaque", 0.0)
    whole = jwt(exp=2_000)
    assert read_token(json.dumps({"access_token": whole} | more), NOW_S) == Token(whole, 2_000.0)


@pytest.mark.parametrize("printed", ["", "two words", '{"error": "secret-7"}', "{secret-7", "a\x01b", "tök"])
def test_invalid_token_is_rejected_without_being_shown(printed: str) -> None:
    with pytest.raises(AccessError) as raised:
        read_token(printed, NOW_S)
    assert "secret-7" not in str(raised.value)


def counting(tmp_path: Path, printed: str, now_s: Callable[[], float] = time.monotonic) -> tuple[TokenCommand, Path]:
    """Return a command that prints this text, and the file to which each run of the command appends `x`."""
    runs, text = tmp_path / "runs", tmp_path / "text"
    text.write_text(printed)
    program = tmp_path / "command.py"
    program.write_text(f"open({str(runs)!r}, 'a').write('x'); print(open({str(text)!r}).read())")
    return TokenCommand(f"{sys.executable} {program}", now_s), runs


def test_token_is_reused_until_shortly_before_it_expires(tmp_path: Path) -> None:
    clock = VirtualClock(0)
    printed = json.dumps({"access_token": "opaque", "expires_in": 100})
    command, runs = counting(tmp_path, printed, lambda: clock.now_ms / 1_000)
    for at_ms, times in ((0, 1), (79_000, 1), (80_000, 2), (159_000, 2), (161_000, 3)):
        clock.advance_to(at_ms)
        assert command.token().value == "opaque"
        assert runs.read_text() == "x" * times


def test_token_is_used_until_expiry_while_the_command_fails(tmp_path: Path) -> None:
    clock = VirtualClock(0)
    printed = tmp_path / "printed"
    printed.write_text(json.dumps({"access_token": "opaque", "expires_in": 100}))
    command = TokenCommand(f"cat {printed}", lambda: clock.now_ms / 1_000)
    assert command.token().value == "opaque"
    printed.unlink()
    clock.advance_to(95_000)
    assert command.token().value == "opaque"
    clock.advance_to(105_000)
    with pytest.raises(AccessError):
        command.token()


def test_non_utf_8_output_is_rejected_and_a_bom_is_accepted(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    printed.write_bytes(bytes(range(128, 256)))
    with pytest.raises(AccessError):
        TokenCommand(f"cat {printed}").token()
    printed.write_text("opaque\n", encoding="utf-8-sig")
    assert TokenCommand(f"cat {printed}").token().value == "opaque"


def test_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(AccessError):
        TokenCommand(f"sh -c 'sleep 60 & echo $! > {pid}; wait'", timeout_s=0.5).token()
    wait_for(lambda: not _runs(int(pid.read_text())), "the process that the command started has ended")


def test_children_of_a_successful_command_are_not_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = TokenCommand(f"sh -c 'sleep 60 >/dev/null & echo $! > {pid}; echo opaque'")
    assert command.token().value == "opaque"
    left = psutil.Process(int(pid.read_text()))
    assert _runs(left.pid)
    left.kill()


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def test_token_without_expiry_is_requested_each_time(tmp_path: Path) -> None:
    command, runs = counting(tmp_path, "opaque")
    assert [command.token().value for _ in range(2)] == ["opaque", "opaque"]
    assert runs.read_text() == "xx"


@pytest.mark.parametrize(
    "command", ["/no/such/command --key secret-7", "sh -c 'echo secret-7 >&2; exit 3'"], ids=["not run", "failed"]
)
def test_failed_command_is_named_without_its_output(command: str) -> None:
    with pytest.raises(AccessError) as raised:
        TokenCommand(command).token()
    assert f"the command {command.split()[0]} " in str(raised.value)
    assert "secret-7" not in str(raised.value)
