"""Tokens of a command: run when one is needed, read as printed, and never shown."""

import base64
import json
import sys
from pathlib import Path

import pytest

from stream.brokers.port import AccessError
from stream.brokers.token_command import Token, TokenCommand, read_token

NOW_S = 1_000.0


def jwt(**claims: object) -> str:
    return ".".join(
        (*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)), "sign")
    )


def test_a_token_is_read_as_it_is_or_as_an_oauth_server_answers() -> None:
    whole = jwt(exp=2_000, sub="ada")
    assert read_token("opaque\n", NOW_S) == Token("opaque", 0.0, "")
    assert read_token(whole, NOW_S) == Token(whole, 2_000.0, "ada")
    assert read_token(json.dumps({"access_token": "opaque", "expires_in": 60}), NOW_S) == Token("opaque", 1_060.0, "")


@pytest.mark.parametrize("printed", ["", "two words", '{"error": "secret-7"}', "{secret-7", "a\x01b", "tök"])
def test_what_is_no_token_is_refused_and_not_shown(printed: str) -> None:
    with pytest.raises(AccessError, match="expected the token alone, or JSON with access_token") as refused:
        read_token(printed, NOW_S)
    assert "secret-7" not in str(refused.value)


def counting(tmp_path: Path, printed: str) -> tuple[TokenCommand, Path]:
    """A command that prints this, and leaves a line each time it is run."""
    runs, text = tmp_path / "runs", tmp_path / "text"
    text.write_text(printed)
    program = tmp_path / "command.py"
    program.write_text(f"open({str(runs)!r}, 'a').write('x'); print(open({str(text)!r}).read())")
    return TokenCommand(f"{sys.executable} {program}"), runs


def test_a_token_is_used_again_while_it_lasts_and_not_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, runs = counting(tmp_path, json.dumps({"access_token": "opaque", "expires_in": 100}))
    for now_s, times in ((0.0, 1), (79.0, 1), (80.0, 2), (159.0, 2), (161.0, 3)):
        monkeypatch.setattr("stream.brokers.token_command.time.time", lambda now_s=now_s: now_s)
        assert command.token().value == "opaque"
        assert runs.read_text() == "x" * times


def test_a_token_that_does_not_tell_its_end_is_asked_for_each_time(tmp_path: Path) -> None:
    command, runs = counting(tmp_path, "opaque")
    assert [command.token().value for _ in range(2)] == ["opaque", "opaque"]
    assert runs.read_text() == "xx"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/no/such/command --key secret-7", "(/no/such/command ...): expected a token; the command could not be run"),
        ("sh -c 'echo secret-7 >&2; exit 3'", "(sh ...): expected a token; the command ended with exit code 3"),
    ],
)
def test_a_command_that_fails_is_named_without_what_it_says(command: str, why: str) -> None:
    with pytest.raises(AccessError) as refused:
        TokenCommand(command).token()
    assert why in str(refused.value)
    assert "secret-7" not in str(refused.value)
