"""The figures of a page, drawn: each as SVG, in one size."""

from typing import NamedTuple


class Drawing(NamedTuple):
    """A figure drawn in one size."""

    size: str  # the class in the style sheet: wide, narrow, or any
    svg: str  # an <svg> element; text from outside is escaped in it
