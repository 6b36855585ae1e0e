"""Helpers for tests that run the monitor as a process and read the data that the monitor sends to its page."""

import json
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen


def reported(port: int) -> dict[str, Any]:
    """The next event that the monitor sends to its page; empty if the monitor does not respond."""
    with suppress(OSError, HTTPException), urlopen(f"http://127.0.0.1:{port}/events", timeout=5) as events:
        line = events.readline()
        found: dict[str, Any] = json.loads(line.removeprefix(b"data:") or b"{}")
        return found
    return {}


def decided_in_windows(picture: dict[str, Any]) -> int:
    return sum(decided for _, decided, *_ in picture.get("windows", ()))
