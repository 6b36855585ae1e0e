"""A service that shows each visitor one of three pages, and its choice gets better: what tests of it look like.

It knows no Kafka: whoever runs it hands it what sends a record, and calls `predicted` with each prediction that comes.
"""

from collections.abc import Callable
from typing import Any

PAGES = ("news", "shop", "games")

Send = Callable[[str, str, dict[str, Any]], None]
"""Writes a value to a topic, under the event's id as its key."""


class PageService:
    """Asks for a page when a visitor comes, and tells whether it was the right one when the visitor has left."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.shown: dict[str, str] = {}

    def visitor_comes(self, visit: str, interests: list[float]) -> None:
        """Ask which page to show; interests are numbers, one for each page."""
        self._send("contexts", visit, {"id": visit, "x": [*interests, 1.0]})

    def predicted(self, prediction: dict[str, Any]) -> None:
        """Show the page that was chosen."""
        self.shown[prediction["id"]] = PAGES[prediction["action"]]

    def visitor_leaves(self, visit: str, *, content: bool) -> None:
        """Tell whether the page was right."""
        action = PAGES.index(self.shown.pop(visit))
        self._send("feedback", visit, {"id": visit, "reward": int(content), "action": action})
