"""A reader of Onebit's stored formats, written from docs/formats.md alone. The reader imports neither Onebit nor numpy.

The reader shows that docs/formats.md is correct, and serves as an example for readers in other languages.
"""

import ast
import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

LEDGER = (
    "contexts", "decided", "context_duplicates", "context_malformed",
    "feedback", "matched", "expired", "pending", "late", "feedback_duplicates", "conflicts",
    "orphans_waiting", "orphans_dropped", "feedback_malformed", "mismatched", "contexts_misplaced",
    "feedback_misplaced", "unmatched", "feedback_unmatched", "propensities_floored", "deferred", "unshown", "shown",
    "pending_evicted", "deferred_evicted", "orphans_evicted", "retained_evicted", "answered", "combined",
    "feedback_excess",
)  # fmt: skip
"""The names of all counts in a ledger."""

PARAMETER = "parameters."
MODEL_SETTINGS = ("learner", "n_classes", "n_features", "scale", "open_classes", "rewards", "reward_range")
SETTINGS = (
    *MODEL_SETTINGS, "seed", "on_expiry", "late", "play", "reward", "feedback", "propensity_min", "features",
    "class_names", "model", "dated_by", "floor", "holdout", "holdout_policy",
    "challengers", "champion", "started_from", "retired_classes", "retired_features", "envelope",
    "window_ms", "activation_window_ms", "orphan_window_ms", "retain_ms", "pending_max", "orphans_max",
    "retained_max", "actions",
)  # fmt: skip
"""The names of a task's settings, without the learner's parameters."""

FORMAT = 1
"""The version of every format that this module reads. All formats have the same version."""

CODES = {"<f8": "d", "<i8": "q", "<i4": "i", "|i1": "b", "|u1": "B", "|b1": "?"}
"""The type codes for array entries, with the equivalent format characters from Python's struct module."""


class UnknownError(ValueError):
    """A name or format that this reader does not know and must not skip."""


def known(found: Iterable[str], names: Iterable[str]) -> None:
    """Raise an error for names that this reader does not know."""
    if unknown := sorted(set(found) - set(names)):
        raise UnknownError(unknown[0])


def known_format(number: int) -> None:
    """Raise an error for a format that this reader does not know."""
    if number != FORMAT:
        raise UnknownError(f"format {number}")


def counts(stored: Mapping[str, int]) -> dict[str, int]:
    """All counts in a ledger. Counts that the record omits are 0."""
    known(stored, LEDGER)
    return {name: stored.get(name, 0) for name in LEDGER}


def settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings, keyed by name."""
    parameters = {name: value for name, value in stored.items() if name.startswith(PARAMETER)}
    known(stored.keys() - parameters.keys(), SETTINGS)
    return {name: stored[name] for name in SETTINGS if name != "actions" or name in stored} | parameters


class Step(NamedTuple):
    """A step in a journal."""

    number: int
    contexts: tuple[int, int]
    feedback: tuple[int, int]
    updates: int
    ledger: dict[str, int]
    partitions: int
    settings_from: int
    settings: dict[str, Any]  # the settings in effect in this step
    alarms: int
    log: dict[str, Any] | None  # None without a shared model
    replica: dict[str, Any] | None  # None without a shared model, and in steps that do not report the replica
    last_context: str | None  # None if no context has been applied
    last_feedback: str | None
    control: int
    refused: list[tuple[int, str]]


class Journal(NamedTuple):
    """A whole journal."""

    imported: str | None
    steps: list[Step]


def journal(records: Iterable[tuple[bytes, bytes]]) -> Journal:
    """A task's journal. Each record is a pair: the `onebit-version` header and the value."""
    imported = None
    steps: list[Step] = []
    for version, value in records:
        known_format(int(version))
        fields = json.loads(value)
        imported = fields.get("imported", imported)
        number, changed = len(steps) + 1, "settings" in fields
        assert fields["number"] == number
        assert changed or steps, "the first step lacks settings"
        assert fields["settings_from"] == (number if changed else steps[-1].settings_from)
        steps.append(_step(fields, settings(fields["settings"]) if changed else steps[-1].settings))
    return Journal(imported, steps)


def _step(fields: Mapping[str, Any], in_force: dict[str, Any]) -> Step:
    return Step(
        fields["number"],
        (fields["contexts"][0], fields["contexts"][1]),
        (fields["feedback"][0], fields["feedback"][1]),
        fields.get("updates", 0),
        counts(fields.get("ledger", {})),
        fields["partitions"],
        fields["settings_from"],
        in_force,
        fields.get("alarms", 0),
        fields.get("log"),
        fields.get("replica"),
        fields.get("last_context"),
        fields.get("last_feedback"),
        fields.get("control", 0),
        [(offset, reason) for offset, reason in fields.get("refused", [])],
    )


def input_digest(append_ms: int, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> str:
    """The digest of an input's record in a journal."""
    parts = [key, value]
    for name, content in headers:
        if name.encode(errors="ignore").decode() == name:  # in UTF-8
            parts += [name.encode(), content]
    framed = b"".join(struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part for part in parts)
    return sha256(struct.pack(">q", append_ms) + framed).hexdigest()[:16]


def tick(headers: Sequence[tuple[str, bytes]]) -> int:
    """The step number in a tick's headers."""
    return int(dict(headers)["onebit-tick"])


class DeadLetter(NamedTuple):
    """The fields in a dead letter's headers."""

    step: int | None  # None if the feedback program wrote the dead letter
    topic: str
    partition: int
    offset: int
    kind: str
    reason: str
    key_bytes: int | None  # original length of the key, if the dead letter contains only part of it
    value_bytes: int | None
    own: list[tuple[str, bytes]]  # the original record's headers that are in the dead letter
    own_count: int  # number of headers in the original record


def dead_letter(headers: Sequence[tuple[str, bytes]]) -> DeadLetter:
    """Read the headers of a dead letter."""
    ours = dict(header for header in headers if header[0].startswith("onebit-"))
    numbers = {name.removeprefix("onebit-"): int(value) for name, value in ours.items() if value.isdigit()}
    kept = [(name, value) for name, value in headers if not name.startswith("onebit-")]
    own = [(_without_original(name), value) for name, value in kept]
    return DeadLetter(
        numbers.get("step"),
        ours["onebit-topic"].decode(),
        numbers["partition"],
        numbers["offset"],
        ours["onebit-kind"].decode(),
        ours["onebit-reason"].decode(),
        numbers.get("key-bytes"),
        numbers.get("value-bytes"),
        own,
        numbers.get("headers", len(own)),
    )


def _without_original(name: str) -> str:
    """The original name of a header, without the prefix that the dead letter adds to `onebit-` headers."""
    bare = name
    while bare.startswith("original-"):
        bare = bare.removeprefix("original-")
    return name.removeprefix("original-") if bare.startswith("onebit-") else name


class Array(NamedTuple):
    """A stored array."""

    type: str
    shape: tuple[int, ...]
    content: bytes

    def entries(self) -> list[Any]:
        """All entries in row-major order."""
        code = CODES[self.type]
        return list(struct.unpack(f"<{len(self.content) // struct.calcsize('<' + code)}{code}", self.content))

    def rows(self) -> list[list[Any]]:
        """The rows of a matrix."""
        entries, (height, width) = self.entries(), self.shape
        return [entries[width * row : width * (row + 1)] for row in range(height)]


Part = Array | float | int | str
"""A named value or array in a learner's state."""


class Section(NamedTuple):
    """A section of a snapshot."""

    name: str
    values: dict[str, Any]
    arrays: dict[str, Array]


class Generation(NamedTuple):
    """A complete snapshot."""

    number: int
    slot: str
    format: int
    whole: str
    sections: list[Section]

    @property
    def state(self) -> dict[str, Any]:
        """The task's settings, offsets and counts."""
        return self.sections[0].values

    def learner(self) -> dict[str, Part]:
        """The learner's state."""
        parts: dict[str, Part] = {}
        for section in self.sections:
            if section.name != "learner":
                continue
            parts |= section.values.get("values", {})
            for name, array in section.arrays.items():
                parts[name] = array.entries()[0] if section.values.get("python") else array
        return parts

    def of(self, name: str) -> list["Entry"]:
        """The entries in all blocks with this name."""
        return [entry for section in self.sections if section.name == name for entry in entries(section)]


def headed(data: bytes, start: int = 0) -> tuple[dict[str, Any], int]:
    """Read a JSON object's length, then the object. Return the object and the offset of its end."""
    (length,) = struct.unpack_from("<I", data, start)
    return json.loads(data[start + 4 : start + 4 + length]), start + 4 + length


def whole_generations(
    records: Iterable[tuple[bytes | None, bytes | None]], *, of_model: bool = False
) -> Iterator[Generation]:
    """The complete generations for a task or a model, from the keys and values of records in the snapshots topic."""
    begun: dict[str, list[tuple[dict[str, Any], bytes]]] = {}
    for key, value in records:
        if key is None or value is None:
            continue
        *place, slot, index = key.decode().split("/")
        if place[1:] != (["model"] if of_model else []):
            continue
        head, end = headed(value)
        chunk = (head, value[end:])
        if int(index) == 0:
            begun[slot] = []
        chunks = begun.get(slot, [])
        chunks.append(chunk)
        known_format(head["format"])
        digests = [sha256(payload).digest() for _, payload in chunks]
        fits = [
            (each["index"], each["generation"], each["sha256"]) == (place, chunks[0][0]["generation"], digest.hex())
            for place, ((each, _), digest) in enumerate(zip(chunks, digests, strict=True))
        ]
        if not all(fits) or int(index) != head["index"]:
            begun.pop(slot, None)
        elif "count" in head:
            if (head["count"], head["whole"]) == (len(chunks), sha256(b"".join(digests)).hexdigest()):
                payload = b"".join(payload for _, payload in chunks)
                yield Generation(head["generation"], slot, head["format"], head["whole"], list(sections(payload)))
            del begun[slot]


def sections(payload: bytes) -> Iterator[Section]:
    """The sections of a generation, from the concatenated payloads of its chunks."""
    start = 0
    while start < len(payload):
        head, start = headed(payload, start)
        arrays = {}
        for name, kind, shape in head["arrays"]:
            size = int(kind[2:])
            for length in shape:
                size *= length
            arrays[name] = Array(kind, tuple(shape), payload[start : start + size])
            start += size
        yield Section(head["name"], head["values"], arrays)


Entry = dict[str, Any]
"""An entry in a block, as a flat dict whose keys include the names of nested fields."""

DECISION = (
    "indices", "values", "action", "greedy", "propensity", "scores", "logged", "decided_ms", "trace", "arm",
    "action_id",
)  # fmt: skip
FEEDBACK = ("reward", "label", "feedback_action", "part", "final")
RECORD = ("topic", "partition", "offset", "append_ms", "key", "value")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "pending": ("id", *DECISION),
    "orphans": ("id", *FEEDBACK, *RECORD, "kept_at_ms", "headers"),
    "more": ("id", *FEEDBACK, *RECORD, "kept_at_ms", "headers"),
    "answers": ("id", *FEEDBACK, *RECORD, "parts"),
    "deferred": ("id", *DECISION),
    "shown": ("id", *DECISION),
    "retained": ("id", "outcome", "reward", "decided_action", "decision", "settled_at_ms"),
}
"""The field names of the entries in each block."""


def entries(section: Section) -> list[Entry]:
    """The entries in a block."""
    known(section.arrays, ("entries",))
    return [_ENTRY[section.name](*row) for row in msgspec.msgpack.decode(section.arrays["entries"].content)]


def _pending(event_id: str, decision: list[Any]) -> Entry:
    (indices, values), (action, greedy, propensity, scores, logged), decided_ms, trace, arm, *ids = decision
    features = _numbers("i", indices), _numbers("d", values)
    learner = action, greedy, propensity, _numbers("d", scores), _numbers("d", logged)
    return dict(zip(FIELDS["pending"], (event_id, *features, *learner, decided_ms, trace, arm, *ids), strict=False))


def _orphan(event_id: str, orphan: list[Any], headers: list[Any]) -> Entry:
    feedback, (*record, none), kept_at_ms = orphan
    assert none == []
    values = (event_id, *_feedback(event_id, feedback), *record, kept_at_ms, headers)
    return dict(zip(FIELDS["orphans"], values, strict=True))


def _feedback(event_id: str, feedback: list[Any] | None) -> list[Any]:
    """The values of `FEEDBACK`. A shown record has none, and feedback without `part` and `final` omits both."""
    of, *values = feedback or (event_id, None, None, None)
    assert of == event_id
    return values if len(values) == len(FEEDBACK) else [*values, None, False]


def _answer(event_id: str, answer: list[Any]) -> Entry:
    feedback, (*record, none), parts = answer
    assert none == []
    values = (event_id, *_feedback(event_id, feedback), *record, parts)
    return dict(zip(FIELDS["answers"], values, strict=True))


def _retained(event_id: str, settled: list[Any], settled_at_ms: int) -> Entry:
    outcome, reward, action, kept = settled
    decision = None if kept is None else _pending(event_id, kept)
    return dict(zip(FIELDS["retained"], (event_id, outcome, reward, action, decision, settled_at_ms), strict=True))


def _numbers(code: str, content: bytes) -> list[Any]:
    return [number for (number,) in struct.iter_unpack(f"<{code}", content)]


_ENTRY: Mapping[str, Callable[..., Entry]] = {
    **dict.fromkeys(("pending", "deferred", "shown"), _pending), "orphans": _orphan, "more": _orphan,
    "answers": _answer, "retained": _retained,
}  # fmt: skip


def split(joined: Any, lengths: Sequence[int]) -> list[Any]:
    """Split a sequence into parts with these lengths. The lengths must add up to the length of the sequence."""
    ends = list(accumulate(lengths, initial=0))
    assert ends[-1] == len(joined)
    return [joined[start:end] for start, end in pairwise(ends)]


def state_digest(parts: Mapping[str, Part]) -> str:
    """The digest of a learner's state."""
    digest = sha256()
    for name in sorted(parts):
        part = parts[name]
        if isinstance(part, str):
            kind, shape, content = "text", "()", part.encode()
        elif isinstance(part, Array):
            kind, content = part.type, part.content
            shape = f"({part.shape[0]},)" if len(part.shape) == 1 else "(" + ", ".join(map(str, part.shape)) + ")"
        else:
            kind, shape = ("<f8" if isinstance(part, float) else "<i8"), "()"
            content = struct.pack("<" + CODES[kind], part)
        digest.update(f"{name} {kind} {shape} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def model_file(path: Path) -> tuple[dict[str, Any], dict[str, Part]]:
    """The metadata and the state in a model file."""
    with zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    meta = json.loads(_text(members.pop("meta")))
    state: dict[str, Part] = {}
    for member, data in members.items():
        name = member.removeprefix("state.")
        scalar = meta["scalars"].get(name)
        state[name] = _text(data) if scalar == "str" else _array(data)
        if scalar in ("float", "int"):
            state[name] = _array(data).entries()[0]
    return meta, state


def _head(data: bytes) -> tuple[dict[str, Any], bytes]:
    assert data[:8] == b"\x93NUMPY\x01\x00"
    (length,) = struct.unpack_from("<H", data, 6 + 2)
    return ast.literal_eval(data[10 : 10 + length].decode()), data[10 + length :]


def _text(data: bytes) -> str:
    head, content = _head(data)
    assert head["descr"].startswith("<U")
    return content.decode("utf-32-le")


def _array(data: bytes) -> Array:
    head, content = _head(data)
    array = Array(head["descr"], head["shape"], content)
    return _by_rows(array) if head["fortran_order"] and len(array.shape) > 1 else array


def _by_rows(array: Array) -> Array:
    """Convert an array from column-major to row-major order."""
    size = int(array.type[2:])
    entries = [array.content[start : start + size] for start in range(0, len(array.content), size)]
    return array._replace(content=b"".join(entries[place] for place in _places(array.shape)))


def _places(shape: Sequence[int]) -> list[int]:
    """The positions of the entries in a column-major array, listed in row-major order."""
    if not shape:
        return [0]
    return [index + shape[0] * place for index in range(shape[0]) for place in _places(shape[1:])]
