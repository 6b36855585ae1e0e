"""The files of the monitor's page, as they are shipped."""

from importlib.resources import files
from typing import NamedTuple

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


class File(NamedTuple):
    """A file of the page."""

    content_type: str
    content: bytes


def page_files() -> dict[str, File]:
    """The files by the path at which a browser asks for them."""
    folder = files("stream.monitoring") / "page"
    return {path: File(kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()}
