"""The static files of the monitor's page."""

from importlib.resources import files
from typing import NamedTuple

from stream.reporting.scripts import uplot, uplot_style

_HTML, _CSS, _JS = (f"text/{kind}; charset=utf-8" for kind in ("html", "css", "javascript"))
_FILES = {"/": ("index.html", _HTML), "/page.css": ("page.css", _CSS), "/page.js": ("page.js", _JS)}


class File(NamedTuple):
    """A file of the page."""

    content_type: str
    content: bytes


def page_files() -> dict[str, File]:
    """Return the files by URL path."""
    folder = files("stream.monitoring") / "page"
    own = {path: File(kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()}
    return own | {"/uplot.css": File(_CSS, uplot_style().encode()), "/uplot.js": File(_JS, uplot().encode())}
