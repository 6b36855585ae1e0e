"""Golden pipelines as they are stored: whole pipelines as an earlier version left them. Nothing of Onebit is used.

A pipeline is a folder `pipelines/VERSION/NAME` with

    records.jsonl.gz     one JSON text a line. The first is {"prefix", "partitions", "ends"}, where `ends` holds the end
                         of each TOPIC/PARTITION; each other is a record, [topic, partition, offset, append_ms, key,
                         value, [[name, value], ...]]. Bytes are a text where they are UTF-8, else {"base64": ...}
    expected.json        what that version said of it, see `Expected`
    model.PARTITION.npz  what its `onebit model export` wrote; where tasks share a model `model.npz`, of a past version
"""

import base64
import gzip
import importlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "pipelines"
RECORDS = "records.jsonl.gz"
EXPECTED = "expected.json"

Expected = dict[str, Any]
"""`machine`, see there; `snapshot_format`; and for each partition, in `partitions`:

    opening    the record that opens the journal, as text
    snapshot   the head of the newest snapshot's first section, as text: settings, place, counts
    generation the step that the newest snapshot was taken after
    then       the facts of the task after that step
    overflows  how often each limit was met
    final      the facts of the task after its last step, see `facts` in `pipelines.py`
    earlier    {"step", "state_digest"}: of the model after a step in the middle

Where tasks share a model, state and digests of `then`, `final` and `earlier` are not of it, which stands in `model`:

    version, offset, updates, sha256  of the newest one
    snapshot, file                    the same of its newest snapshot, and of `model.npz`
    replicas                          what each process told of it last: {"instance", "version", "sha256"}
"""

SHARED = "shared-"
"""So begin the names of pipelines whose tasks share a model."""


def machine() -> dict[str, str]:
    """What the last bits of a learner's arithmetic depend on."""
    cpu = importlib.import_module("llvmlite.binding").get_host_cpu_name()
    return {"cpu": cpu, "numpy": version("numpy"), "numba": version("numba")}


class GoldenRecord(NamedTuple):
    """A record as it is stored, without any of Onebit's types."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Golden(NamedTuple):
    """A golden pipeline as it is stored."""

    path: Path
    prefix: str
    partitions: int
    ends: dict[tuple[str, int], int]
    records: list[GoldenRecord]
    expected: Expected

    @property
    def to_the_bit(self) -> bool:
        """Whether arithmetic that is done again must give the same bits here: as on the machine of the recording."""
        return bool(self.expected["machine"] == machine())

    @property
    def shares_model(self) -> bool:
        """Whether its tasks share a model, which has a log."""
        return (f"{self.prefix}updates", 0) in self.ends

    def numbers(self) -> range:
        """Of its partitions."""
        return range(self.partitions)

    def of(self, topic: str, partition: int) -> list[GoldenRecord]:
        """The records of one partition of a topic, named without its prefix."""
        name = self.prefix + topic
        return [record for record in self.records if (record.topic, record.partition) == (name, partition)]


def names(*, shared: bool = False) -> list[str]:
    """All golden pipelines whose tasks have a model each, or share one, as VERSION/NAME."""
    paths = [path.parent for path in FOLDER.glob(f"*/*/{EXPECTED}")]
    return sorted(str(path.relative_to(FOLDER)) for path in paths if path.name.startswith(SHARED) == shared)


def encoded(data: bytes | None) -> Any:
    """Bytes as they stand in JSON."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _decoded(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()


def read(name: str) -> Golden:
    """A golden pipeline by VERSION/NAME."""
    path = FOLDER / name
    with gzip.open(path / RECORDS, "rt", encoding="utf-8") as lines:
        head = json.loads(next(lines))
        records = [
            GoldenRecord(
                topic, partition, offset, append_ms, _decoded(key), _decoded(value),
                tuple((name, _decoded(content) or b"") for name, content in headers),
            )
            for topic, partition, offset, append_ms, key, value, headers in map(json.loads, lines)
        ]  # fmt: skip
    ends = {(place.rsplit("/", 1)[0], int(place.rsplit("/", 1)[1])): end for place, end in head["ends"].items()}
    expected = json.loads((path / EXPECTED).read_text(encoding="utf-8"))
    return Golden(path, head["prefix"], head["partitions"], ends, records, expected)
