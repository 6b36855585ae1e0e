"""Notices for the user, by Python's logging: `onebit` is the logger, and the command line writes its records to stderr.

Like every library, this one sets no level: an application that wants all notices asks for `logging.INFO`.

A record may have two attributes: `limited`, False if it must not be dropped when similar records are frequent, and
`fields`, a dict for a log in JSON.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("onebit")
logger.addHandler(logging.NullHandler())

WARNING = "warning:"
"""The beginning of a warning on stderr, by which `onebit run --kafka` finds those of its programs."""

SLOW_S = 2.0


def announce(message: str, *, limited: bool = True, **fields: Any) -> None:
    """Report what happens.

    Args:
        message: the text.
        limited: False if the notice must not be dropped; others are, when they differ in numbers only and are frequent.
        fields: values for a log in JSON.
    """
    logger.info("%s", message, extra={"limited": limited, "fields": fields})


def warn(message: str) -> None:
    """Report what is probably a mistake of the user."""
    logger.warning("%s", message, extra={"limited": True, "fields": {}})


@contextmanager
def announced_when_slow(message: str) -> Iterator[None]:
    """Announce an operation that takes more than two seconds."""
    timer = threading.Timer(SLOW_S, announce, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Status:
    """Announces lines if they have changed, so that an idle program is silent."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def show(self, lines: list[str]) -> None:
        """Announce the lines, unless they are those of the last time."""
        if lines != self._said:
            for line in lines:
                announce(line, limited=False)
        self._said = lines
