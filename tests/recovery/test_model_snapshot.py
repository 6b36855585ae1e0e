"""The binary format of a shared model's snapshot."""

from pathlib import Path

import numpy as np
import pytest

from stream.recovery.chunks import CHUNK_BYTES, MODEL_KEYS, ChunkWriter, Stored
from stream.recovery.state import ModelSnapshot, decode_model, encode
from stream.recovery.steps import JournalError
from stream.shared.replica import Place
from stream.task.settings import TaskSettings
from stream.task.stored_settings import stored_settings
from stream.wire.control import Replaced
from stream.wire.records import Record
from tests.golden import format_reader

GOLDEN = Path(__file__).parents[1] / "golden" / "snapshot.format1.model"
SETTINGS = TaskSettings(
    "banditron", 2, 3, scale="standard", open_classes=True, parameters={"gamma": 0.25}, model="shared"
)
SNAPSHOT = ModelSnapshot(
    stored_settings(SETTINGS),
    version=41,
    updates=17,
    offset=12,
    control=3,
    places={0: Place(7, 1, 20), 2: Place(5, 2, 0)},
    classes=["news", "offers"],
    learner={"W": np.array([[0.0, 1.5, -0.1], [1 / 3, 0.0, -1e300]]), "note": "text", "rate": 0.5},
    changes=[(0, {"floor": Replaced(0.25, 0.0)}), (2, {"window_ms": Replaced(1_000, 300_000)})],
)


def model_writer(snapshot: ModelSnapshot, slot: str, chunk_bytes: int = CHUNK_BYTES) -> ChunkWriter:
    return ChunkWriter(snapshot.version, encode(snapshot), MODEL_KEYS, slot, 0, chunk_bytes)


def read_back(writer: ChunkWriter) -> Stored:
    stored = Stored(MODEL_KEYS)
    for key, value in writer.portion(10**9):
        stored.add(Record("snapshots", 0, 5, 0, key, value, ()))
    return stored


def test_model_snapshot_equals_the_golden_file_of_format_1() -> None:
    # If this fails, the format has changed and existing snapshots can no longer be read.
    (message,) = model_writer(SNAPSHOT, "b").portion(10**9)
    assert message == (b"0/model/b/0", GOLDEN.read_bytes())


def test_model_snapshot_round_trips_with_any_number_of_chunks() -> None:
    for chunk_bytes in (10, 100, 10_000):
        newest = read_back(model_writer(SNAPSHOT, "a", chunk_bytes)).newest
        assert newest is not None
        found = decode_model(newest)
        assert found._replace(learner={}) == SNAPSHOT._replace(learner={})
        assert found.learner.keys() == SNAPSHOT.learner.keys()
        np.testing.assert_array_equal(np.asarray(found.learner["W"]), np.asarray(SNAPSHOT.learner["W"]))
        assert [found.learner[name] for name in ("note", "rate")] == ["text", 0.5]


def test_documented_reader_distinguishes_model_and_task_snapshots() -> None:
    record = b"0/model/b/0", GOLDEN.read_bytes()
    assert list(format_reader.whole_generations([record])) == []
    (found,) = format_reader.whole_generations([record], of_model=True)
    assert (found.number, found.slot) == (41, "b")
    assert found.state == {
        "settings": SNAPSHOT.settings,
        "version": 41,
        "updates": 17,
        "offset": 12,
        "control": 3,
        "places": [[0, 7, 1, 20], [2, 5, 2, 0]],
        "classes": ["news", "offers"],
        "changes": [[0, {"floor": [0.25, 0.0]}], [2, {"window_ms": [1_000, 300_000]}]],
    }
    assert found.learner().keys() == {"W", "note", "rate"}


def test_incomplete_model_snapshot_is_rejected() -> None:
    newest = read_back(model_writer(SNAPSHOT._replace(settings={}), "a")).newest
    assert newest is not None
    cut = newest._replace(payloads=[payload[:200] for payload in newest.payloads])
    with pytest.raises(JournalError) as raised:
        decode_model(cut)
    assert raised.value.place == "snapshots/0 offset 5"
