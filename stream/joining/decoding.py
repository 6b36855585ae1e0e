"""The contexts of a step, decoded many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from stream.joining.plain_rows import read_indices, read_numbers
from stream.wire.codec import LogReading, MalformedError, decode_context, ones, open_context
from stream.wire.events import Context, Features
from stream.wire.named_features import FeatureEncoder
from stream.wire.records import Record, make

CHUNK = 64
"""How many are decoded together. More gain nothing, and all of them are there at once."""

FEW = 8
"""Fewer are decoded one by one: the two calls of compiled code would cost more than they save."""


def decode_contexts(
    records: Iterable[Record], n_features: int, log: LogReading | None, encoder: FeatureEncoder | None
) -> Iterator[Context | MalformedError]:
    """What `decode_context` gives for each record, or raises: the same to the bit.

    Of a list of numbers most of the time is spent on making each a number of Python. Here plain ones, of many records
    at once, become arrays without that.
    """
    rest = iter(records)
    while chunk := list(islice(rest, CHUNK)):
        together = _plain_ones(chunk, n_features) if log is None and len(chunk) >= FEW else [None] * len(chunk)
        for record, context in zip(chunk, together, strict=True):
            if context is not None:
                yield context
                continue
            try:
                yield decode_context(record, n_features, log, encoder)
            except MalformedError as error:
                yield error


def _plain_ones(records: Sequence[Record], n_features: int) -> list[Context | None]:
    """The contexts whose numbers are plain; None for each other."""
    opened = [open_context(record) for record in records]
    indices = read_indices([b"" if one is None else one[1].i for one in opened], n_features)
    texts: list[Any] = [b"" if one is None else one[1].v for one in opened]
    values = read_numbers(texts) if any(texts) else [None] * len(texts)
    contexts: list[Context | None] = []
    for one, text, i, v in zip(opened, texts, indices, values, strict=True):
        if one is None or i is None:
            contexts.append(None)
        elif not text:
            contexts.append(make(Context, (one[0], make(Features, (i, ones(i.size))), None)))
        elif v is None or v.size != i.size:
            contexts.append(None)
        else:
            contexts.append(make(Context, (one[0], make(Features, (i, v)), None)))
    return contexts
