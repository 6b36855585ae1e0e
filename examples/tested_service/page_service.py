"""Example of a testable service that shows each visitor one of three pages and learns which one to choose.

The service does not depend on Kafka. The caller passes a function that sends records, and calls `predicted` with each
prediction.
"""

from collections.abc import Callable
from typing import Any

PAGES = ("news", "shop", "games")

Send = Callable[[str, str, dict[str, Any]], None]
"""Function that writes a value to a topic, with the event id as the key."""


class PageService:
    """Requests a page when a visitor arrives and, when the visitor leaves, reports whether the page was right."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.shown: dict[str, str] = {}

    def visitor_arrives(self, visit: str, interests: list[float]) -> None:
        """Request a page. `interests` contains one number per page."""
        self._send("contexts", visit, {"id": visit, "x": [*interests, 1.0]})

    def predicted(self, prediction: dict[str, Any]) -> None:
        """Show the chosen page."""
        self.shown[prediction["id"]] = PAGES[prediction["action"]]

    def visitor_leaves(self, visit: str, *, content: bool) -> None:
        """Report whether the page was right."""
        action = PAGES.index(self.shown.pop(visit))
        self._send("feedback", visit, {"id": visit, "reward": int(content), "action": action})
