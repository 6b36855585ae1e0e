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
    text = f"{uplot()}{_read('charts.js')}\n"
    digest = f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
    return Script(text, digest, uplot_style())


def uplot() -> str:
    """The library, with its licence."""
    return f"{_read('language.js')}\n/* uPlot\n{_read('uplot/LICENSE')}\n*/\n{_read('uplot/uPlot.iife.min.js')}\n"


def uplot_style() -> str:
    """The style that the library needs."""
    return _read("uplot/uPlot.min.css")


def _read(name: str) -> str:
    return (files("stream.reporting") / "templates" / name).read_text(encoding="utf-8").strip()
