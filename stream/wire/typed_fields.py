"""Values read into typed fields, in one step of compiled code: the quick way of the codec.

It takes a value only if it has the fields that Onebit knows and no others, all of them of their types. What such a
value means is what the codec reads in it field by field. Of all others it says nothing: they are for the codec, which
tolerates more, and knows what is wrong with what it does not.
"""

from collections.abc import Callable
from typing import Annotated, TypeVar

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType
from msgspec.json import Decoder

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # beyond 64 bits orjson reads another number
Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bit = Annotated[int, Meta(ge=0, le=1)]

NO_TEXT = Raw(b"")

Read = TypeVar("Read")


class SparseFields(Struct, forbid_unknown_fields=True, gc=False):
    """An x as indices and values; without values they are ones."""

    i: list[Index]
    v: list[float] | UnsetType = UNSET  # finite: JSON has no other numbers, and one beyond float64 is refused


class ContextFields(Struct, forbid_unknown_fields=True, gc=False):
    """A context that is sparse, and of no log."""

    id: str
    x: SparseFields


class SparseText(Struct, forbid_unknown_fields=True, gc=False):
    """An x as indices and values, of which nothing is read but that they are JSON."""

    i: Raw
    v: Raw = NO_TEXT


class ContextText(Struct, forbid_unknown_fields=True, gc=False):
    """A context that is sparse, and of no log, with its numbers as they are written."""

    id: str
    x: SparseText


class DenseContextText(Struct, forbid_unknown_fields=True, gc=False):
    """A context of no log, whose x may be dense."""

    id: str
    x: Raw


class FeedbackFields(Struct, forbid_unknown_fields=True, gc=False):
    """A feedback whose reward is written 0 or 1."""

    id: str
    reward: Bit
    label: Whole | UnsetType = UNSET
    action: Whole | None = None


class PredictionFields(Struct, forbid_unknown_fields=True, gc=False):
    """A prediction that has no optional fields."""

    id: str
    action: Whole
    greedy: Whole
    propensity: float
    scores: list[float]
    model_version: Whole
    context_offset: Whole


def _reader(of_type: type[Read]) -> Callable[[bytes], Read | None]:
    decode = Decoder(of_type).decode

    def read(value: bytes) -> Read | None:
        try:
            return decode(value)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return None

    return read


read_context = _reader(ContextFields)
read_context_text = _reader(ContextText)
read_dense_context_text = _reader(DenseContextText)
read_values = _reader(list[float])
read_feedback = _reader(FeedbackFields)
read_prediction = _reader(PredictionFields)
