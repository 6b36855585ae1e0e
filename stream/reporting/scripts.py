"""The script of a page: uPlot (MIT licence, included in the page) and the code that draws the charts.

The page's content security policy allows only this script, so that texts of data sets and settings cannot inject code.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Script(NamedTuple):
    """A script with its hash for the policy, and its style sheet."""

    text: str
    digest: str
    style: str


@cache
def script() -> Script:
    """Return the script of pages with charts."""
    text = f"{uplot()}{_read('charts.js')}\n"
    digest = f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
    return Script(text, digest, uplot_style())


def uplot() -> str:
    """Return uPlot with its licence."""
    return f"{_read('language.js')}\n/* uPlot\n{_read('uplot/LICENSE')}\n*/\n{_read('uplot/uPlot.iife.min.js')}\n"


def uplot_style() -> str:
    """Return the style sheet of uPlot."""
    return _read("uplot/uPlot.min.css")


def _read(name: str) -> str:
    return (files("stream.reporting") / "templates" / name).read_text(encoding="utf-8").strip()
