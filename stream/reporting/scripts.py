"""What a page runs: uPlot, under the MIT licence, which the page repeats, and the script that hands it the charts.

The page's policy lets a browser run this one text and nothing else, whatever the text of a data set or a setting tries.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    """The text of a script, how the policy knows it, and the style that it needs."""

    text: str
    digest: str
    style: str


@cache
def script() -> Script:
    """The script of all pages with charts."""
    folder = files("stream.reporting") / "templates"
    language, library, licence, style, own = (
        (folder / name).read_text(encoding="utf-8").strip()
        for name in ("language.js", "uplot/uPlot.iife.min.js", "uplot/LICENSE", "uplot/uPlot.min.css", "charts.js")
    )
    text = f"{language}\n/* uPlot\n{licence}\n*/\n{library}\n{own}\n"
    return Script(text, f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}", style)
