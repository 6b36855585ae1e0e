"""Tokens for OAUTHBEARER, from a command that prints one.

The command prints the token alone, or the answer of an OAuth server as JSON, with `access_token` and `expires_in`. A
token is used again until four fifths of its time are over, and until its end as long as the command fails. When it ends
is told by `expires_in`, or by the token itself if it is a JWT; of a token that does not tell, each connection gets a
fresh one.
"""

import base64
import json
import os
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, NamedTuple

from stream.kafka.port import AccessError

COMMAND_TIMEOUT_S = 9.0
"""confluent-kafka waits ten seconds for a token."""

_USED_FOR = 0.8  # of its time


class Token(NamedTuple):
    """A token, and until when it is valid."""

    value: str
    expires_s: float  # since 1970; 0: it does not tell
    subject: str  # whose it is, of a JWT; else empty


class TokenCommand:
    """Runs the command when a token is needed."""

    def __init__(self, command: str) -> None:
        self._arguments = shlex.split(command)
        self._token = Token("", 0.0, "")
        self._fresh_until_s = self._valid_until_s = time.monotonic()

    def token(self) -> Token:
        """A token that is valid.

        Raises:
            AccessError: the command failed, or printed no token. What it printed is not shown: it may hold a secret.
        """
        if time.monotonic() >= self._fresh_until_s:
            try:
                self._renew()
            except AccessError:
                if time.monotonic() >= self._valid_until_s:
                    raise
        return self._token

    def _renew(self) -> None:
        now_s, monotonic_s = time.time(), time.monotonic()
        self._token = read_token(self._run(), now_s)
        left_s = self._token.expires_s - now_s
        self._fresh_until_s, self._valid_until_s = monotonic_s + _USED_FOR * left_s, monotonic_s + left_s

    def _run(self) -> str:
        command = f"sasl.oauthbearer.token.command ({self._arguments[0]} ...)"
        try:
            process = subprocess.Popen(
                self._arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise AccessError(f"{command}: expected a token; the command could not be run: {error.strerror}") from None
        with process:
            try:
                printed, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
            except BaseException as error:  # it is ended, with all that it has started
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                reason = f"it took longer than {COMMAND_TIMEOUT_S:g} s"
                raise AccessError(f"{command}: expected a token; the command was ended: {reason}") from None
        if process.returncode != 0:
            raise AccessError(
                f"{command}: expected a token; the command ended with exit code {process.returncode}; run it by hand, "
                "and see what it says"
            )
        return printed.decode("utf-8-sig", errors="replace")


def read_token(printed: str, now_s: float) -> Token:
    """The token that a command has printed, at a time in seconds since 1970.

    Raises:
        AccessError: it is none.
    """
    text, expires_s = printed.strip(), 0.0
    if text.startswith("{"):
        with suppress(ValueError, KeyError, TypeError):
            answer = json.loads(text)
            text = str(answer["access_token"])
            if (left_s := answer.get("expires_in")) is not None:
                expires_s = now_s + float(left_s)
    if not text or not text.isascii() or not text.isprintable() or set(text) & set(' {}"'):
        raise AccessError(
            "sasl.oauthbearer.token.command: expected the token alone, or JSON with access_token and expires_in; the "
            "command printed something else"
        )
    claims = _claims(text)
    with suppress(TypeError, ValueError):
        expires_s = expires_s or float(claims.get("exp", 0))
    return Token(text, expires_s, str(claims.get("sub", "")))


def _claims(token: str) -> dict[str, Any]:
    """What a JWT claims; nothing when it is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    with suppress(ValueError):
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        if isinstance(found, dict):
            return found
    return {}
