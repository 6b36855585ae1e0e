"""What every figure of a page comes to."""

from typing import NamedTuple


class Drawing(NamedTuple):
    """A figure drawn in one size."""

    size: str  # the class in the style sheet: wide, narrow, or any
    svg: str  # an <svg> element; text from outside is escaped in it
