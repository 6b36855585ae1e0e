"""Runs a command that prints OAUTHBEARER tokens.

The command prints a token, or an OAuth server's JSON response with `access_token` and `expires_in`. A token is
reused for four fifths of its lifetime, or until it expires if the command fails. The expiry time comes from
`expires_in`, or from the token if it is a JWT. If the expiry time is unknown, each connection gets a new token.
"""

import base64
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from stream.kafka.port import AccessError

COMMAND_TIMEOUT_S = 9.0
"""Timeout for the command. confluent-kafka waits ten seconds for a token."""

_USED_FOR = 0.8  # fraction of a token's lifetime after which the token is renewed


class Token(NamedTuple):
    """An access token and its expiry time."""

    value: str
    expires_s: float  # seconds since 1970; 0 if unknown


class TokenCommand:
    """Provides tokens. Runs the command when a new token is needed."""

    def __init__(
        self, command: str, now_s: Callable[[], float] = time.monotonic, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> None:
        """Prepare the command.

        Args:
            command: the command line.
            now_s: a monotonic clock.
            timeout_s: time after which a running command is killed.
        """
        self._arguments = shlex.split(command)
        self._now_s = now_s
        self._timeout_s = timeout_s
        self._token = Token("", 0.0)
        self._fresh_until_s = self._valid_until_s = now_s()

    def token(self) -> Token:
        """Return a valid token.

        Raises:
            AccessError: the command failed or printed no token. The message does not show the output, which may contain
                a secret.
        """
        if self._now_s() >= self._fresh_until_s:
            try:
                self._renew()
            except AccessError:
                if self._now_s() >= self._valid_until_s:
                    raise
        return self._token

    def _renew(self) -> None:
        now_s, monotonic_s = time.time(), self._now_s()
        self._token = read_token(self._run(), now_s)
        left_s = self._token.expires_s - now_s
        self._fresh_until_s, self._valid_until_s = monotonic_s + _USED_FOR * left_s, monotonic_s + left_s

    def _run(self) -> str:
        name = self._arguments[0]
        try:
            process = subprocess.Popen(
                self._arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _refusal(f"the command {name} could not be run: {error.strerror}") from None
        with process:
            try:
                printed, _ = process.communicate(timeout=self._timeout_s)
            except BaseException as error:  # kill the command and its child processes
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise _refusal(f"the command {name} was killed: it took longer than {self._timeout_s:g} s") from None
        if process.returncode != 0:
            raise _refusal(
                f"the command {name} ended with exit code {process.returncode}; run it manually to see its output"
            )
        return printed.decode("utf-8-sig", errors="replace")


def read_token(printed: str, now_s: float) -> Token:
    """Parse the token in a command's output. `now_s` is in seconds since 1970.

    Raises:
        AccessError: the output contains no token.
    """
    text, expires_s = printed.strip(), 0.0
    if text.startswith("{"):
        with suppress(ValueError, KeyError, TypeError):
            answer = json.loads(text)
            text = str(answer["access_token"])
            if (left_s := answer.get("expires_in")) is not None:
                expires_s = now_s + float(left_s)
    if not text or not text.isascii() or not text.isprintable() or set(text) & set(' {}"'):
        raise _refusal("the command printed neither a plain token nor JSON with access_token and expires_in")
    with suppress(ValueError, TypeError, KeyError):  # raised if the token is not a JWT with an expiry time
        _, claims, _ = text.split(".")
        expires_s = expires_s or float(json.loads(base64.urlsafe_b64decode(claims + "=="))["exp"])
    return Token(text, expires_s)


def _refusal(why: str) -> AccessError:
    return AccessError(f"sasl.oauthbearer.token.command: expected a token; {why}")
