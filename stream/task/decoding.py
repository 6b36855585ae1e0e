"""The contexts of a step, decoded many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from stream.task.plain_rows import read_indices, read_numbers
from stream.wire.codec import (
    LogReading,
    MalformedError,
    decode_context,
    ones,
    open_context,
    sparse_of,
)
from stream.wire.events import Context, Features, FloatArray
from stream.wire.named_features import FeatureEncoder
from stream.wire.records import Record, make
from stream.wire.typed_fields import NO_TEXT, read_values

CHUNK = 64
"""How many are decoded together. More gain nothing, and all of them are there at once."""

FEW = 8
"""Fewer are decoded one by one: the two calls of compiled code would cost more than they save."""

PLAIN_BYTES = 18
"""Numbers that take more each, with what is between them, have more digits than a plain one, as a rule."""

TEXT_BYTES_MAX = 32_768
"""A longer one is decoded by itself: room for as many numbers as its text could hold would be there at once, too."""


def decode_contexts(
    records: Iterable[Record], n_features: int, log: LogReading | None, encoder: FeatureEncoder | None
) -> Iterator[Context | MalformedError]:
    """What `decode_context` returns for each record, the same to the bit, or the error that it raises, as an item.

    Of a list of numbers most of the time is spent on making each a number of Python. Here plain ones, of many records
    at once, become arrays without that.

    Args:
        records: contexts, in any number.
        n_features: the learner's d.
        log: see `decode_context`; with one all are decoded one by one.
        encoder: see `decode_context`; with one all are decoded one by one.
    """
    rest = iter(records)
    are_numbers = log is None and encoder is None
    while chunk := list(islice(rest, CHUNK)):
        are_plain = are_numbers and len(chunk) >= FEW and _looks_plain(chunk[0], n_features)
        contexts = _together(chunk, n_features) if are_plain else [None] * len(chunk)
        for record, context in zip(chunk, contexts, strict=True):
            if context is not None:
                yield context
                continue
            try:
                yield decode_context(record, n_features, log, encoder)
            except MalformedError as error:
                yield error


def _looks_plain(record: Record, n_features: int) -> bool:
    """Whether it is worth a try to decode what is like this record together: those of one producer are alike."""
    opened = open_context(record)
    return opened is not None and (bool(opened.indices_text) or len(opened.values_text) <= PLAIN_BYTES * n_features)


def _together(records: Sequence[Record], n_features: int) -> list[Context | None]:
    """The contexts whose indices are plain, or whose dense vectors; None for each other, and for what does not fit."""
    opened = [open_context(one) if len(one.value or b"") <= TEXT_BYTES_MAX else None for one in records]
    indices = read_indices([NO_TEXT if one is None else one.indices_text for one in opened], n_features)
    texts = [NO_TEXT if one is None else one.values_text for one in opened]
    values = read_numbers(texts) if any(texts) else [None] * len(texts)
    contexts: list[Context | None] = []
    for one, text, i, v in zip(opened, texts, indices, values, strict=True):
        if one is None:
            contexts.append(None)
            continue
        if i is None:
            x = sparse_of(v) if not one.indices_text and v is not None and v.size == n_features else None
        else:
            if not text:
                v = ones(i.size)
            elif v is None:
                v = _parsed(text)
            x = make(Features, (i, v)) if v is not None and v.size == i.size else None
        contexts.append(None if x is None else make(Context, (one.id, x, None)))
    return contexts


def _parsed(text: Any) -> FloatArray | None:  # bytes-like
    """Numbers that are not plain, as those of as many digits as float64 has; None for what is no list of numbers."""
    numbers = read_values(text)
    return None if numbers is None else np.array(numbers, dtype=np.float64)
