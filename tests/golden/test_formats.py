"""docs/formats.md is true: a reader written from it alone finds in golden files what was recorded of them."""

import ast
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.golden import format_reader
from tests.golden.format_reader import (
    LEDGER,
    Generation,
    blobs,
    decisions,
    model_file,
    partition_of,
    settled_ids,
    state_digest,
    texts,
    whole_generations,
)
from tests.golden.stored import FOLDER, Golden, GoldenRecord, read

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "formats.md"

VERSION_0_1_0 = sorted(path.name for path in (FOLDER / "0.1.0").iterdir())


@pytest.fixture(params=VERSION_0_1_0)
def golden(request: pytest.FixtureRequest) -> Golden:
    return read(f"0.1.0/{request.param}")


def expectations(golden: Golden) -> Iterator[tuple[int, dict[str, Any]]]:
    assert golden.partitions == len(golden.expected["partitions"])
    yield from enumerate(golden.expected["partitions"])


def fields(record: GoldenRecord) -> dict[str, Any]:
    return dict(json.loads(record.value or b"null"))


def journal(golden: Golden, partition: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    opening, *steps = map(fields, golden.of("journal", partition))
    return opening, steps


def generations(golden: Golden, partition: int) -> list[Generation]:
    return list(whole_generations((record.key, record.value) for record in golden.of("snapshots", partition)))


def newest(golden: Golden, partition: int) -> Generation:
    return max(
        (found for found in generations(golden, partition) if found.slot in ("a", "b")), key=lambda found: found.number
    )


def step_of(record: GoldenRecord) -> int:
    return int(dict(record.headers)["onebit-step"])


def test_reader_uses_nothing_of_onebit_and_no_numpy() -> None:
    tree = ast.parse(Path(format_reader.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {
        "ast", "json", "struct", "zipfile", "collections.abc", "hashlib", "pathlib", "typing",
    }  # fmt: skip


def test_every_section_names_golden_files_that_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    without = {section.split("\n", 1)[0] for section in sections if "*Held by:*" not in section}
    assert without == {"Conventions"}
    held_by = " ".join(re.findall(r"\*Held by:\*(.*?)(?:\n\n|\Z)", text, flags=re.DOTALL))
    named = set(re.findall(r"`([^`]+)`", held_by)) - {
        "model.PARTITION.npz", "expected.json", "import", "kept", "state_digest", "digest",
    }  # fmt: skip
    there = set(VERSION_0_1_0) | {path.name for path in HERE.iterdir()}
    assert named - there == set()
    stored = {path.name for path in HERE.iterdir() if path.suffix in {".json", ".headers", ".format1", ".format2"}}
    assert stored - named == set(), "a golden file that the page does not name"


def test_every_record_has_the_key_the_headers_and_the_partition_that_the_page_says(golden: Golden) -> None:
    for record in golden.records:
        topic, names = record.topic.removeprefix(golden.prefix), [name for name, _ in record.headers]
        assert dict(record.headers).get("onebit-version", b"1") == b"1" or topic in ("contexts", "feedback")
        if topic in ("predictions", "examples"):
            assert names == ["onebit-version", "onebit-step"]
            assert record.key == str(fields(record)["id"]).encode()
        elif topic in ("journal", "snapshots"):
            assert names == ["onebit-version"]
            assert (record.key is None) == (topic == "journal")
        if topic not in ("journal", "snapshots"):
            assert record.partition == partition_of(record.key or b"", golden.partitions)


def test_journal_opens_with_the_settings_and_then_counts_the_steps(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        opening, steps = journal(golden, partition)
        final = expected["final"]
        assert opening == json.loads(expected["opening"])
        assert opening["n"] == 0
        assert [step["n"] for step in steps] == list(range(1, final["step"] + 1))
        assert dict(zip(LEDGER, steps[-1]["ledger"], strict=True)) == final["ledger"]
        assert steps[-1]["updates"] == final["updates"]
        assert [steps[-1]["contexts"][1], steps[-1]["feedback"][1]] == [
            final["contexts_offset"], final["feedback_offset"],
        ]  # fmt: skip
        for before, after in pairwise(steps):
            assert after["contexts"][0] == before["contexts"][1]
            assert after["feedback"][0] == before["feedback"][1]
            applies_none = after["contexts"][0] == after["contexts"][1] and after["feedback"][0] == after["feedback"][1]
            assert after["now_ms"] >= before["now_ms"] or (applies_none and after["now_ms"] == 0)
        for step in steps:
            count = dict(zip(LEDGER, step["ledger"], strict=True))
            assert count["contexts"] == count["decided"] + count["context_duplicates"] + count["context_malformed"]
            assert count["decided"] == count["pending"] + count["matched"] + count["expired"]
            assert count["contexts"] == sum(
                record.offset < step["contexts"][1] for record in golden.of("contexts", partition)
            )
            assert count["feedback"] == sum(
                count[name]
                for name in ("matched", "late", "feedback_duplicates", "orphans_waiting", "orphans_dropped")
            ) + count["feedback_malformed"]  # fmt: skip
            assert step["feedback_end_ms"] >= -1


def test_predictions_and_examples_are_of_the_records_and_steps_that_they_name(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        _, steps = journal(golden, partition)
        contexts = {record.offset: record for record in golden.of("contexts", partition)}
        feedback = {record.offset: record for record in golden.of("feedback", partition)}
        predictions = {}
        for record in golden.of("predictions", partition):
            prediction, step = fields(record), steps[step_of(record) - 1]
            first, end = step["contexts"]
            context = contexts[prediction["context_offset"]]
            assert first <= context.offset < end
            assert fields(context)["id"] == prediction["id"]
            assert prediction["decided_at_ms"] >= max(step["now_ms"], context.append_ms)
            assert len(prediction["scores"]) == 3
            predictions[prediction["id"]] = prediction
        assert len(predictions) == expected["final"]["ledger"]["decided"]
        outcomes = {"matched": 0, "expired": 0}
        for record in golden.of("examples", partition):
            example, decided = fields(record), predictions[fields(record)["id"]]
            outcomes[example["outcome"]] += 1
            assert (example["action"], example["propensity"]) == (decided["action"], decided["propensity"])
            if example["outcome"] == "matched":
                answer = feedback[example["feedback_offset"]]
                assert fields(answer)["id"] == example["id"]
                assert fields(answer)["reward"] == example["reward"]
                assert example["delay_ms"] == answer.append_ms - decided["decided_at_ms"]
            else:
                negative = journal(golden, partition)[0]["settings"]["on_expiry"] == "negative"
                assert (example["reward"], example["delay_ms"], example["feedback_offset"]) == (
                    0 if negative else None, None, None,
                )  # fmt: skip
        assert outcomes == {name: expected["final"]["ledger"][name] for name in outcomes}


def test_dead_letters_hold_the_records_that_their_headers_name(golden: Golden) -> None:
    places = {record[:3]: record for record in golden.records}
    for partition, expected in expectations(golden):
        kinds = {"malformed": 0, "orphan": 0}
        for letter in golden.of("dead-letter", partition):
            headers = {name: content.decode() for name, content in letter.headers}
            assert list(headers) == [
                "onebit-version", "onebit-step", "onebit-topic", "onebit-partition", "onebit-offset", "onebit-kind",
                "onebit-reason",
            ]  # fmt: skip
            place = (headers["onebit-topic"], int(headers["onebit-partition"]), int(headers["onebit-offset"]))
            assert (letter.partition, letter.key, letter.value) == (place[1], places[place].key, places[place].value)
            kinds[headers["onebit-kind"]] += 1
        ledger = expected["final"]["ledger"]
        assert kinds["malformed"] == ledger["context_malformed"] + ledger["feedback_malformed"]
        assert kinds["orphan"] == ledger["orphans_dropped"]


def test_newest_whole_snapshot_holds_the_recorded_place_counts_and_learner(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        found, then = newest(golden, partition), expected["then"]
        assert (found.number, found.format) == (expected["generation"], 2)
        assert {"name": "state", "values": found.state, "arrays": []} == json.loads(expected["snapshot"])
        assert found.state["settings"] == json.loads(expected["opening"])["settings"]
        assert found.state["overflows"].keys() == {"pending", "orphans", "retained"}
        assert found.state["number"] == then["step"]
        same = ("updates", "ledger", "decided_at_ms", "watermark_ms", "contexts_offset", "feedback_offset")
        assert {name: found.state[name] for name in same} == {name: then[name] for name in same}
        next_step = next(
            record.offset for record in golden.of("journal", partition) if fields(record)["n"] == found.number + 1
        )
        assert found.state["journal_offset"] <= next_step
        assert state_digest(found.learner()) == then["state_digest"]
        assert [section.name for section in found.sections][-1] == "end"


def test_newest_whole_snapshot_holds_the_decisions_as_they_were_published(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        published = {fields(record)["id"]: fields(record) for record in golden.of("predictions", partition)}
        contexts = {record.offset: fields(record) for record in golden.of("contexts", partition) if
                    record.offset in {prediction["context_offset"] for prediction in published.values()}}  # fmt: skip
        found = newest(golden, partition)
        waiting = [
            (event_id, decision)
            for section in found.of("pending")
            for event_id, decision in zip(texts(section, "id"), decisions(section), strict=True)
        ]
        assert [[event_id, entry.decided_at_ms, entry.action] for event_id, entry in waiting] == expected["then"][
            "pending"
        ]
        settled = [entry for section in found.of("retained") for entry in settled_ids(section)]
        kept = [(entry.id, entry.kept) for entry in settled if entry.kept is not None]
        for event_id, decision in waiting + kept:
            prediction = published[event_id]
            assert decision[:5] == tuple(
                prediction[name] for name in ("decided_at_ms", "action", "greedy", "propensity", "scores")
            )
            assert decision.x == features(contexts[prediction["context_offset"]]["x"])


def features(x: Any) -> dict[int, float]:
    if isinstance(x, list):
        return {index: value for index, value in enumerate(x) if value != 0}
    return dict(zip(x["i"], x.get("v", [1.0] * len(x["i"])), strict=True))


def test_newest_whole_snapshot_holds_the_orphans_with_their_records(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        feedback = {record.offset: record for record in golden.of("feedback", partition)}
        found = []
        for section in newest(golden, partition).of("orphans"):
            columns = {name: array.entries() for name, array in section.arrays.items()}
            ids, topics, keys = texts(section, "id"), texts(section, "topic"), blobs(section, "key")
            values, headers = blobs(section, "value"), blobs(section, "headers")
            for place, event_id in enumerate(ids):
                record = feedback[columns["offset"][place]]
                pairs = tuple((name, bytes.fromhex(value)) for name, value in json.loads(headers[place] or b""))
                assert tuple(record) == (
                    topics[place], columns["partition"][place], columns["offset"][place], columns["append_ms"][place],
                    keys[place], values[place], pairs,
                )  # fmt: skip
                label = columns["label"][place]
                found.append(
                    [
                        event_id,
                        columns["reward"][place],
                        None if label < 0 else label,
                        columns["kept_at_ms"][place],
                        record.offset,
                    ]
                )
        assert found == expected["then"]["orphans"]


def test_newest_whole_snapshot_holds_the_settled_ids(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        entries = [entry for section in newest(golden, partition).of("retained") for entry in settled_ids(section)]
        found = [[*entry[:4], entry.kept is not None] for entry in entries]
        assert found == expected["then"]["retained"]


def test_golden_pipelines_hold_every_case_of_the_snapshots_format() -> None:
    def sections_of(name: str, section: str) -> list[Any]:
        golden = read(f"0.1.0/{name}")
        return [
            found
            for partition in range(golden.partitions)
            for generation in generations(golden, partition)
            for found in generation.of(section)
        ]

    assert any("kept" in section.arrays for section in sections_of("banditron-correct", "retained"))
    assert any("kept" in section.arrays for section in sections_of("kafka", "retained"))
    assert any(label >= 0 for found in sections_of("perceptron-labels", "orphans")
               for label in found.arrays["label"].entries())  # fmt: skip
    small = read("0.1.0/soba-small-chunks")
    chunks = small.of("snapshots", 0)
    begun = [json.loads((record.value or b"")[4:].split(b"}")[0] + b"}")["generation"]
             for record in chunks if record.value is not None and record.key in (b"0/a/0", b"0/b/0")]  # fmt: skip
    whole = [found.number for found in generations(small, 0)]
    assert len(whole) > 2
    assert set(whole) < set(begun), "one is torn"
    assert any(record.value is None for record in chunks), "a chunk is taken away"
    assert len({record.append_ms for record in chunks}) > 2


def test_journal_of_an_imported_model_names_the_generation_that_holds_it() -> None:
    golden, source = read("0.1.0/pnewtron-imported"), read("0.1.0/pnewtron")
    opening, _ = journal(golden, 0)
    (imported,) = [found for found in generations(golden, 0) if found.slot == "import"]
    assert opening["import"] == imported.whole
    meta, state = model_file(source.path / "model.0.npz")
    assert imported.learner() == state
    assert imported.state["settings"] == {
        name: meta[name] for name in ("learner", "n_classes", "n_features", "parameters")
    }
    assert (imported.number, imported.state["updates"]) == (0, meta["updates"])
    assert all("import" not in journal(read(f"0.1.0/{name}"), 0)[0] for name in VERSION_0_1_0 if "imported" not in name)


def test_model_files_hold_the_recorded_state(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        meta, state = model_file(golden.path / f"model.{partition}.npz")
        final, settings = expected["final"], json.loads(expected["opening"])["settings"]
        assert meta["format"] == 1
        assert meta["settings"] == settings
        assert {name: meta[name] for name in ("learner", "n_classes", "n_features", "parameters")} == {
            name: settings[name] for name in ("learner", "n_classes", "n_features", "parameters")
        }
        assert meta["position"] == {
            "topics": golden.prefix,
            "partition": partition,
            "journal": final["step"],
            "contexts": final["contexts_offset"],
            "feedback": final["feedback_offset"],
            "watermark_ms": final["watermark_ms"],
        }
        assert (meta["updates"], meta["ledger"]) == (final["updates"], final["ledger"])
        assert state_digest(state) == meta["digest"] == final["state_digest"]


@pytest.mark.parametrize("number", [1, 2])
def test_chunks_of_both_formats_hold_one_state(number: int) -> None:
    (found,) = whole_generations([(b"0/a/0", (HERE / f"snapshot.format{number}").read_bytes())])
    (other,) = whole_generations([(b"0/a/0", (HERE / "snapshot.format2").read_bytes())])
    assert (found.format, found.number) == (number, 7)
    only_in_2 = {} if number == 2 else {name: other.state[name] for name in ("taken_ms", "overflows")}
    assert {**found.state, **only_in_2} == other.state
    assert ("taken_ms" in found.state, "overflows" in found.state) == (number == 2, number == 2)
    assert found.sections[1:] == other.sections[1:]
    assert (
        len([event_id for section in found.of("pending") for event_id in texts(section, "id")])
        == (found.state["ledger"]["pending"])
    )
