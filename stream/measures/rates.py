"""Rates, which are undefined if nothing has been counted."""

import math
from numbers import Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Rate = float
else:
    Rate = Real  # not built into msgspec, so the decoder's hook converts the value
"""A float that is nan if it is undefined. In a msgspec struct, the field's JSON value is then null."""


def rate(part: float, whole: float) -> float:
    """Return the ratio, or nan if `whole` is 0."""
    return part / whole if whole else math.nan
