"""docs/formats.md is true: a reader written from it alone finds in golden files what was recorded of them."""

import ast
import json
import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.golden import format_reader
from tests.golden.format_reader import (
    COLUMNS,
    FORMAT_1_LEDGER,
    LEDGER,
    NEEDED,
    OUTCOMES,
    SETTINGS,
    Array,
    Column,
    Generation,
    Journal,
    LaterVersionError,
    Section,
    dead_letter,
    entries,
    model_file,
    numbers,
    partition_of,
    rows,
    settings,
    state_digest,
    vectors,
    whole_generations,
)
from tests.golden.log_reader import UPDATE_COLUMNS, update
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


def journal(golden: Golden, partition: int) -> Journal:
    records = golden.of("journal", partition)
    return format_reader.journal((dict(record.headers)["onebit-version"], record.value or b"") for record in records)


def generations(golden: Golden, partition: int) -> list[Generation]:
    return list(whole_generations((record.key, record.value) for record in golden.of("snapshots", partition)))


def newest(golden: Golden, partition: int) -> Generation:
    return max(
        (found for found in generations(golden, partition) if found.slot in ("a", "b")), key=lambda found: found.number
    )


def step_of(record: GoldenRecord) -> int:
    return int(dict(record.headers)["onebit-step"])


def test_reader_uses_nothing_of_onebit_and_no_numpy() -> None:
    imported = set()
    for name in ("format_reader", "log_reader"):
        tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - {format_reader.__name__} == {
        "ast", "json", "struct", "zipfile", "collections.abc", "hashlib", "itertools", "pathlib", "typing",
    }  # fmt: skip


def test_every_section_names_golden_files_that_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    without = {section.split("\n", 1)[0] for section in sections if "*Held by:*" not in section}
    assert without == {"Conventions"}
    held_by = " ".join(re.findall(r"\*Held by:\*(.*?)(?:\n\n|\Z)", text, flags=re.DOTALL))
    named = set(re.findall(r"`([^`]+)`", held_by)) - {
        "model.PARTITION.npz", "model.npz", "expected.json", "import", "kept", "mismatched", "state_digest", "digest",
        "log", "replica",
    }  # fmt: skip
    there = {path.name for path in FOLDER.glob("*/*")} | {path.name for path in HERE.iterdir()}
    assert named - there == set()
    stored = {path.name for path in HERE.iterdir() if path.is_file() and path.suffix != ".py"}
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
        opening = fields(golden.of("journal", partition)[0])
        found = journal(golden, partition)
        steps, final = found.steps, expected["final"]
        assert opening == json.loads(expected["opening"])
        came_later = {
            "play": "own",
            "reward": "exclusive",
            "propensity_min": 0.0,
            "features": None,
            "class_names": None,
            "model": "own",
        }
        assert found.settings == came_later | {
            name: value for name, value in {**opening["settings"], **opening["settings"]["join"]}.items()
            if name != "join"
        }  # fmt: skip
        assert [step.n for step in steps] == list(range(1, final["step"] + 1))
        assert steps[-1].ledger == dict.fromkeys(LEDGER, 0) | final["ledger"]
        assert steps[-1].updates == final["updates"]
        assert (steps[-1].contexts[1], steps[-1].feedback[1]) == (final["contexts_offset"], final["feedback_offset"])
        assert {(step.rules, step.partitions, step.settings_from) for step in steps} == {(1, 1, 0)}
        for before, after in pairwise(steps):
            assert after.contexts[0] == before.contexts[1]
            assert after.feedback[0] == before.feedback[1]
            applies_none = after.contexts[0] == after.contexts[1] and after.feedback[0] == after.feedback[1]
            assert after.now_ms >= before.now_ms or (applies_none and after.now_ms == 0)
        for step in steps:
            count = step.ledger
            assert count["contexts"] == count["decided"] + count["context_duplicates"] + count["context_malformed"]
            assert count["decided"] == count["pending"] + count["matched"] + count["expired"] + count["unmatched"]
            assert count["contexts"] == sum(
                record.offset < step.contexts[1] for record in golden.of("contexts", partition)
            )
            assert count["feedback"] == sum(
                count[name]
                for name in (
                    "matched", "late", "feedback_duplicates", "mismatched", "orphans_waiting", "orphans_dropped",
                    "feedback_malformed", "feedback_unmatched",
                )
            )  # fmt: skip
            assert step.feedback_end_ms >= -1


def stored_journal(number: int) -> list[tuple[bytes, bytes]]:
    """The golden records of a format. Each stands for itself: together they are no journal."""
    return [(b"%d" % number, line) for line in (HERE / f"journal.format{number}").read_bytes().splitlines()]


def test_journal_records_of_both_formats_hold_the_same_settings_and_format_2_has_counts_by_name() -> None:
    of_1, of_2 = stored_journal(1), stored_journal(2)
    first, second = (format_reader.journal([records[0]]) for records in (of_1, of_2))
    assert first.settings["parameters"] == {"gamma": 0.25}, "a parameter that came later"
    assert second == first._replace(settings={**first.settings, "parameters": second.settings["parameters"]})
    assert (second.imported, second.settings["orphans_max"], second.settings["parameters"]) == (
        "c0ffee",
        80,
        {"gamma": 0.25, "margin": "feedback"},
    )
    assert format_reader.journal(of_1[1:2]).imported is None
    step = json.loads(of_2[2][1])
    assert format_reader.counts(step["ledger"]) == dict.fromkeys(LEDGER, 0) | {
        "contexts": 150, "decided": 149, "context_malformed": 1,
    }  # fmt: skip
    (_, change), (_, changed), (_, alarmed) = of_2[3:]
    assert (json.loads(change)["n"], json.loads(changed)["settings_from"]) == (8, 8)
    assert settings(json.loads(change)["settings"]) == second.settings
    assert [json.loads(step).get("alarms") for step in (changed, alarmed)] == [None, 2]


def small_journal() -> list[tuple[bytes, dict[str, Any]]]:
    """A journal that was begun in format 1, and whose settings change before its third step."""
    opening, step, first, change, changed, alarmed = (
        json.loads(line) for _, line in (*stored_journal(1)[1:], *stored_journal(2)[2:])
    )
    change["settings"]["window_ms"] = 300
    return [
        (b"1", opening), (b"1", {**step, "n": 1}), (b"2", {**first, "n": 2}), (b"2", {**change, "n": 3}),
        (b"2", {**changed, "n": 3, "settings_from": 3}), (b"2", {**alarmed, "n": 4, "settings_from": 3}),
    ]  # fmt: skip


def read_small(records: list[tuple[bytes, dict[str, Any]]]) -> Journal:
    return format_reader.journal((version, json.dumps(value).encode()) for version, value in records)


def test_journal_goes_on_in_format_2_and_each_step_has_the_settings_of_the_newest_change() -> None:
    found = read_small(small_journal())
    assert [(step.n, step.rules, step.settings["window_ms"], step.alarms) for step in found.steps] == [
        (1, 1, 1_000, 0), (2, 2, 1_000, 0), (3, 2, 300, 0), (4, 2, 300, 2),
    ]  # fmt: skip
    assert found.steps[0].ledger == dict(zip(LEDGER, [*range(1, 15), *[0] * 6], strict=True))


def test_reader_knows_when_a_step_or_the_record_of_a_change_is_missing() -> None:
    for missing in (2, 3, 4):
        with pytest.raises(AssertionError):
            read_small([record for place, record in enumerate(small_journal()) if place != missing])


def test_reader_refuses_what_a_later_version_has_written() -> None:
    with_setting = {"settings": {**small_journal()[3][1]["settings"], "newer": 0}}
    altered: list[tuple[int, bytes, dict[str, Any], str]] = [
        (1, b"3", {}, "format 3"), (2, b"2", {"ledger": {"newer": 0}}, "newer"), (3, b"2", with_setting, "newer"),
    ]  # fmt: skip
    for place, version, more, says in altered:
        records = small_journal()
        records[place] = (version, {**records[place][1], **more})
        with pytest.raises(LaterVersionError, match=says):
            read_small(records)
    chunk = (HERE / "snapshot.format3").read_bytes()
    for number in (0, 4):
        with pytest.raises(LaterVersionError, match=f"format {number}"):
            list(whole_generations([(b"0/a/0", chunk.replace(b'"format":3', b'"format":%d' % number))]))


def test_predictions_and_examples_are_of_the_records_and_steps_that_they_name(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        found = journal(golden, partition)
        steps = found.steps
        contexts = {record.offset: record for record in golden.of("contexts", partition)}
        feedback = {record.offset: record for record in golden.of("feedback", partition)}
        predictions = {}
        for record in golden.of("predictions", partition):
            prediction, step = fields(record), steps[step_of(record) - 1]
            first, end = step.contexts
            context = contexts[prediction["context_offset"]]
            assert first <= context.offset < end
            assert fields(context)["id"] == prediction["id"]
            assert prediction["decided_at_ms"] >= max(step.now_ms, context.append_ms)
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
                negative = found.settings["on_expiry"] == "negative"
                assert (example["reward"], example["delay_ms"], example["feedback_offset"]) == (
                    0 if negative else None, None, None,
                )  # fmt: skip
        assert outcomes == {name: expected["final"]["ledger"][name] for name in outcomes}


def test_dead_letters_hold_the_records_that_their_headers_name(golden: Golden) -> None:
    places = {record[:3]: record for record in golden.records}
    for partition, expected in expectations(golden):
        kinds = {"malformed": 0, "orphan": 0}
        for letter in golden.of("dead-letter", partition):
            assert [name for name, _ in letter.headers] == [
                "onebit-version", "onebit-step", "onebit-topic", "onebit-partition", "onebit-offset", "onebit-kind",
                "onebit-reason",
            ]  # fmt: skip
            found = dead_letter(letter.headers)
            assert found[6:] == (None, None, [], 0), "0.1.0 did not keep the record's own headers"
            record = places[found.topic, found.partition, found.offset]
            assert (letter.partition, letter.key, letter.value) == (found.partition, record.key, record.value)
            kinds[found.kind] += 1
        ledger = expected["final"]["ledger"]
        assert kinds["malformed"] == ledger["context_malformed"] + ledger["feedback_malformed"]
        assert kinds["orphan"] == ledger["orphans_dropped"]


def headers_of(name: str) -> list[tuple[str, bytes]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [(header, content.encode()) for header, content in (line.split(": ", 1) for line in lines)]


def test_dead_letters_of_before_and_of_now_name_their_record() -> None:
    reason = "id: expected a text; got 1"
    assert dead_letter(headers_of("dead-letter.headers")) == (
        None, "onebit.contexts", 2, 41, "malformed", reason, None, None, [], 0,
    )  # fmt: skip
    reason = "feedback for 'a': expected action 2, as it was decided; got 1"
    assert dead_letter(headers_of("dead-letter.own.headers")) == (
        None, "onebit.feedback", 2, 41, "mismatched", reason, 500_001, 500_002,
        [("onebit-version", b"1"), ("onebit-offset", b"5"), ("original-onebit-offset", b"6"), ("original-x", b"7"),
         ("trace", b"8")],
        6,
    )  # fmt: skip


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
        waiting = found.of("pending")
        assert [[entry[name] for name in ("id", "decided_at_ms", "action")] for entry in waiting] == expected["then"][
            "pending"
        ]
        kept = [{**entry["decision"], "id": entry["id"]} for entry in found.of("retained") if entry["decision"]]
        for decision in waiting + kept:
            prediction = published[decision["id"]]
            same = ("decided_at_ms", "action", "greedy", "propensity", "scores")
            assert [decision[name] for name in same] == [prediction[name] for name in same]
            assert decision["x"] == features(contexts[prediction["context_offset"]]["x"])
            assert decision["nnz"] == len(decision["x"])


def features(x: Any) -> dict[int, float]:
    if isinstance(x, list):
        return {index: value for index, value in enumerate(x) if value != 0}
    return dict(zip(x["i"], x.get("v", [1.0] * len(x["i"])), strict=True))


def test_newest_whole_snapshot_holds_the_orphans_with_their_records(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        feedback = {record.offset: record for record in golden.of("feedback", partition)}
        found = []
        for orphan in newest(golden, partition).of("orphans"):
            record = feedback[orphan["offset"]]
            same = ("topic", "partition", "offset", "append_ms", "key", "value")
            assert (*(orphan[name] for name in same), tuple(orphan["headers"])) == tuple(record)
            label = None if orphan["label"] < 0 else orphan["label"]
            found.append([orphan["id"], orphan["reward"], label, orphan["kept_at_ms"], orphan["offset"]])
            assert orphan["feedback_action"] == -1, "0.1.0 did not read it"
        assert found == expected["then"]["orphans"]


def test_newest_whole_snapshot_holds_the_settled_ids(golden: Golden) -> None:
    for partition, expected in expectations(golden):
        settled = newest(golden, partition).of("retained")
        assert [settled_id(entry) for entry in settled] == expected["then"]["retained"]
        assert {entry["decided_action"] for entry in settled} <= {-1}, "0.1.0 did not keep it"


def settled_id(entry: dict[str, Any]) -> list[Any]:
    reward = None if entry["reward"] < 0 else entry["reward"]
    return [entry["id"], OUTCOMES[entry["outcome"]], reward, entry["settled_at_ms"], entry["decision"] is not None]


def test_golden_pipelines_hold_every_case_of_the_snapshots_format() -> None:
    def entries_of(name: str, block: str) -> list[dict[str, Any]]:
        golden = read(f"0.1.0/{name}")
        return [
            found
            for partition in range(golden.partitions)
            for generation in generations(golden, partition)
            for found in generation.of(block)
        ]

    for name in ("banditron-correct", "kafka"):
        assert {entry["kept"] for entry in entries_of(name, "retained")} == {0, 1}
    assert any(entry["label"] >= 0 for entry in entries_of("perceptron-labels", "orphans"))
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
    (imported,) = [found for found in generations(golden, 0) if found.slot == "import"]
    assert journal(golden, 0).imported == imported.whole
    meta, state = model_file(source.path / "model.0.npz")
    assert imported.learner() == state
    assert imported.state["settings"] == {
        name: meta[name] for name in ("learner", "n_classes", "n_features", "parameters")
    }
    assert (imported.number, imported.state["updates"]) == (0, meta["updates"])
    others = [name for name in VERSION_0_1_0 if "imported" not in name]
    assert {journal(read(f"0.1.0/{name}"), 0).imported for name in others} == {None}


def test_records_of_updates_hold_entries_with_all_that_a_model_needs() -> None:
    head, found = update((HERE / "updates.format1").read_bytes())
    assert head == {"partition": 2, "step": 41, "part": 0, "follows": 39}
    x, scores = {0: 1.0, 3: 0.5, 9: -1e300}, [0.0, 1.5, -0.1, 1 / 3, 0.5]
    common = {"action": 2, "greedy": 1, "propensity": 0.25, "scores": scores}
    assert found == [
        {**common, "kind": 0, "reward": -1, "assumed": -1, "v": 0.0, "label": -1, "nnz": 3, "x": x},
        {**common, "kind": 1, "reward": 1, "assumed": -1, "v": 0.75, "label": 3, "nnz": 0, "x": {}},
        {**common, "kind": 2, "reward": 1, "assumed": 0, "v": 0.125, "label": -1, "nnz": 3, "x": x},
    ]
    head, found = update((HERE / "updates.format1.bare").read_bytes())
    assert head == {"partition": 0, "step": 1, "part": 0, "follows": 0}
    ones = {0: 1.0, 3: 1.0, 9: 1.0}
    assert found == [{**common, "kind": 1, "reward": 0, "assumed": -1, "v": 0.0, "label": -1, "nnz": 3, "x": ones}]


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


def golden_generation(number: int) -> Generation:
    (found,) = whole_generations([(b"0/a/0", (HERE / f"snapshot.format{number}").read_bytes())])
    assert (found.format, found.number) == (number, 7)
    return found


CAME_WITH_2 = {"taken_ms", "overflows"}
CAME_WITH_3 = {"settings_from"}


@pytest.mark.parametrize("number", [1, 2])
def test_chunks_of_all_formats_hold_one_state(number: int) -> None:
    found, now = golden_generation(number), golden_generation(3)
    absent = CAME_WITH_3 if number == 2 else CAME_WITH_2 | CAME_WITH_3
    assert now.state.keys() - found.state.keys() == absent
    same = found.state.keys() - {"settings", "ledger"}
    assert {name: now.state[name] for name in same} == {name: found.state[name] for name in same}
    # The settings of formats 1 and 2 do not name a parameter that has its default.
    assert {**settings(now.state["settings"]), "parameters": {}} == settings(found.state["settings"])
    assert "join" not in now.state["settings"]
    assert list(found.state["ledger"]) == list(FORMAT_1_LEDGER)
    assert format_reader.counts(found.state["ledger"]) == now.state["ledger"]
    assert found.learner() == now.learner()
    assert [{**entry, "logged": []} for entry in now.of("pending")] == found.of("pending")
    assert [entry["logged"] for entry in now.of("pending")] == [[0.5, n] for n in range(len(now.of("pending")))]
    assert found.of("orphans") == now.of("orphans"), "feedback that names no action"
    assert len(now.of("pending")) == now.state["ledger"]["pending"]
    assert [{**entry, "decided_action": -1} for entry in now.of("retained")] == found.of("retained")
    assert {entry["decided_action"] for entry in now.of("retained")} == {0, 1, 2}


def stored_columns(section: Section) -> set[str]:
    return {name.split(".")[0] for name in section.arrays}


def test_reader_knows_all_columns_that_are_written_and_no_others() -> None:
    blocks = {section.name: stored_columns(section) for section in golden_generation(3).sections if section.arrays}
    del blocks["learner"]
    assert blocks == {
        name: set(columns) - ({"kept"} if name == "retained" else set()) for name, columns in COLUMNS.items()
    }


def columns_of_the_page(name: str) -> dict[str, str]:
    """The columns in the page's table of a block or of updates, and what it says of their absence."""
    (section,) = re.findall(
        rf"^##+ `?{name}`?(?::|$).*?(?=^##)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    found: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, *_, absent = line.replace("\\|", "").strip("| ").split(" | ")
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), absent)
    return found


@pytest.mark.parametrize("name", COLUMNS)
def test_page_has_a_line_for_each_column_and_says_what_it_means_where_it_is_absent(name: str) -> None:
    expected = {
        column: "–" if absent is NEEDED else str(absent).replace("-", "−")
        for column, (_, absent) in COLUMNS[name].items()
    }
    assert columns_of_the_page(name) == expected


def test_page_has_a_line_for_each_column_of_updates_and_says_what_it_means_where_it_is_absent() -> None:
    lines = columns_of_the_page("Updates")
    for name in ("name", "values", "arrays"):  # the table of the head, which says nothing of absence
        del lines[name]
    expected = {
        column: "–" if absent is NEEDED else f"{absent:g}".replace("-", "−")
        for column, (_, absent) in UPDATE_COLUMNS.items()
    }
    assert lines == {**expected, "x.indices": "–", "x.values": "1"}


def test_page_has_a_line_for_each_setting_and_says_what_it_means_where_it_is_absent() -> None:
    (section,) = re.findall(r"^### Settings.*?(?=^##)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    found = {name: absent for names, _, absent in lines for name in re.findall(r"`([^`]+)`", names)}
    assert [found.pop(name) for name in ("features", "class_names")] == ["none", "none"]
    settings = {name: absent for name, absent in SETTINGS.items() if name not in ("features", "class_names")}
    assert found == {name: "–" if absent is NEEDED else f"`{absent}`" for name, absent in settings.items()}


def test_page_has_a_line_for_each_count() -> None:
    (section,) = re.findall(r"^### Counts.*?(?=^##)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert [name for line in lines for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])] == list(LEDGER)


def test_column_of_a_later_version_is_refused_and_one_that_is_declared_is_read_or_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (section,) = [section for section in golden_generation(3).sections if section.name == "pending"]
    count = len(entries(section))
    lengths = Array("<i4", (count,), struct.pack(f"<{count}i", *range(count)))
    total = sum(range(count))
    ways: list[tuple[Column, dict[str, Array], list[Any]]] = [
        (Column(numbers, 7), {"newer": lengths}, list(range(count))),
        (Column(rows, []), {"newer": Array("<f8", (count, 0), b"")}, [[]] * count),
        (
            Column(vectors, []),
            {
                "newer.lengths": lengths,
                "newer.values": Array("<f8", (total,), struct.pack(f"<{total}d", *range(total))),
            },
            [[float(sum(range(place)) + index) for index in range(place)] for place in range(count)],
        ),
    ]
    for column, arrays, expected in ways:
        with_it = section._replace(arrays={**section.arrays, **arrays})
        with pytest.raises(LaterVersionError, match="newer"):
            entries(with_it)
        with monkeypatch.context() as patch:
            patch.setitem(COLUMNS, "pending", {**COLUMNS["pending"], "newer": column})
            assert [entry["newer"] for entry in entries(with_it)] == expected
            assert [entry["newer"] for entry in entries(section)] == [column.absent] * count


def test_column_that_every_version_has_written_is_needed() -> None:
    (section,) = [section for section in golden_generation(3).sections if section.name == "pending"]
    without = {name: array for name, array in section.arrays.items() if name != "greedy"}
    with pytest.raises(KeyError, match="greedy"):
        entries(section._replace(arrays=without))
