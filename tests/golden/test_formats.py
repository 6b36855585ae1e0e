"""docs/formats.md is correct: a reader that was written from that page alone can read the golden files."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream.recovery.model_files import write_model
from stream.recovery.recover import rebuild
from stream.recovery.state import state_digest
from stream.recovery.steps import decode_step, encode_step
from stream.settings.task_fields import JoinSettings
from stream.task.settings import TaskSettings
from stream.task.stored_settings import stored_settings
from stream.verifying.models import export_model
from stream.wire.control import encode_request
from stream.wire.updates import encode_updates
from tests.golden import format_reader
from tests.golden.format_reader import (
    FIELDS,
    LEDGER,
    SETTINGS,
    Generation,
    Journal,
    UnknownError,
    dead_letter,
    entries,
    model_file,
    settings,
    tick,
    whole_generations,
)
from tests.golden.log_reader import NEEDED, UPDATE_COLUMNS, update
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task
from tests.recovery.test_journal import STEPS
from tests.recovery.test_model_snapshot import SNAPSHOT as MODEL_SNAPSHOT
from tests.recovery.test_model_snapshot import model_writer
from tests.recovery.test_snapshot import chunks, golden_snapshot, golden_snapshot_of_several
from tests.wire.test_codec import GOLDEN_VALUES
from tests.wire.test_control import MODEL_HEADERS, MOVED, REQUEST
from tests.wire.test_dead_letters import GOLDEN_HEADERS, lines_of
from tests.wire.test_updates import GOLDEN_STEPS

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "formats.md"


def write_golden_files() -> None:
    """Rewrite all golden files except `runs.format1.json`. The values come from each format's tests.

    Run this function only after intentionally changing a format:

        python -c "from tests.golden.test_formats import write_golden_files; write_golden_files()"
    """
    files = {f"{name}.json": value + b"\n" for name, value in GOLDEN_VALUES.items()}
    files |= {name: lines_of(headers).encode() for name, headers in GOLDEN_HEADERS.items()}
    files["control.json"] = encode_request(REQUEST) + b"\n"
    files["control.moved.json"] = encode_request(MOVED) + b"\n"
    files["control.model.headers"] = lines_of(MODEL_HEADERS).encode()
    files["journal.format1"] = b"".join(encode_step(step) + b"\n" for step in STEPS)
    (files["snapshot.format1"],) = chunks(golden_snapshot())
    (files["snapshot.format1.several"],) = chunks(golden_snapshot_of_several())
    (message,) = model_writer(MODEL_SNAPSHOT, "b").portion(10**9)
    files["snapshot.format1.model"] = message.value or b""
    for name, step in GOLDEN_STEPS.items():
        (files[name],) = encode_updates(*step, control=6)
    for name, content in files.items():
        (HERE / name).write_bytes(content)


def test_reader_imports_neither_onebit_nor_numpy() -> None:
    imported = set()
    for name in ("format_reader", "log_reader"):
        tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - {format_reader.__name__} == {
        "ast", "json", "struct", "zipfile", "msgspec", "collections.abc", "hashlib", "itertools", "pathlib", "typing",
    }  # fmt: skip


def test_page_names_every_golden_file_and_no_missing_file() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    without = {section.split("\n", 1)[0] for section in sections if "*Covered by:*" not in section}
    assert without == {"Conventions"}
    covered_by = " ".join(re.findall(r"\*Covered by:\*(.*?)(?:\n\n|\Z)", text, flags=re.DOTALL))
    named = set(re.findall(r"`([^`]+)`", covered_by))
    there = {path.name for path in HERE.iterdir()}
    assert named - there == set()
    stored = {path.name for path in HERE.iterdir() if path.is_file() and path.suffix != ".py"}
    assert stored - named == set(), "expected the page to name every golden file"


def test_request_contains_values_before_and_after() -> None:
    assert json.loads((HERE / "control.json").read_bytes()) == {
        "id": "7f3a", "by": "ann@ops1", "changes": {"window_ms": {"from": 300_000, "to": 120_000}},
    }  # fmt: skip


def test_record_of_a_move_names_the_other_pipeline_and_the_balance() -> None:
    assert json.loads((HERE / "control.moved.json").read_bytes())["moved_to"] == {
        "bootstrap": "localhost:9092", "prefix": "shop2.", "partitions": 12,
        "balance": {"pending": 14, "deferred": 0, "orphans_waiting": 3},
    }  # fmt: skip


def stored_journal() -> list[bytes]:
    """The golden journal records. The steps are unrelated and do not form one journal."""
    return (HERE / "journal.format1").read_bytes().splitlines()


def test_journal_records_contain_settings_counts_and_alarms() -> None:
    imported, first, step, changed, alarmed, shared, named = map(json.loads, stored_journal())
    assert (imported["imported"], "imported" in first) == ("c0ffee", False)
    assert settings(first["settings"])["parameters.margin"] == "feedback"
    assert format_reader.counts(step["ledger"]) == dict.fromkeys(LEDGER, 0) | {
        "contexts": 150, "decided": 149, "context_malformed": 1,
    }  # fmt: skip
    assert (changed["number"], changed["settings_from"]) == (8, 8)
    assert changed["settings"] == first["settings"]
    assert [step.get("alarms") for step in (changed, alarmed)] == [None, 2]
    assert (shared["log"]["entries"], shared["replica"]["instance"]) == (40, "learner-1")
    assert ("names" in shared["log"], named["log"]["names"], named["log"]["adds"]) == (
        False,
        ["news", "offers"],
        ["help"],
    )


def small_journal() -> list[tuple[bytes, dict[str, Any]]]:
    """A journal whose second step changes the settings."""
    first, _, changed, alarmed, *_ = map(json.loads, stored_journal()[1:])
    changed["settings"]["window_ms"] = 300
    records = [first, changed | {"number": 2, "settings_from": 2}, alarmed | {"number": 3, "settings_from": 2}]
    return [(b"1", record) for record in records]


def read_small_journal(records: list[tuple[bytes, dict[str, Any]]]) -> Journal:
    return format_reader.journal((version, json.dumps(value).encode()) for version, value in records)


def test_each_step_has_the_settings_of_the_latest_change() -> None:
    found = read_small_journal(small_journal())
    assert [(step.number, step.settings["window_ms"], step.alarms) for step in found.steps] == [
        (1, 1_000, 0), (2, 300, 0), (3, 300, 2),
    ]  # fmt: skip


def test_reader_detects_a_missing_step() -> None:
    for missing in (0, 1):
        with pytest.raises(AssertionError):
            read_small_journal([record for place, record in enumerate(small_journal()) if place != missing])


def test_reader_rejects_unknown_versions_counts_and_settings() -> None:
    with_setting = {"settings": {**small_journal()[1][1]["settings"], "newer": 0}}
    altered: list[tuple[int, bytes, dict[str, Any]]] = [
        (1, b"2", {}), (1, b"1", {"ledger": {"newer": 0}}), (1, b"1", with_setting),
    ]  # fmt: skip
    for place, version, more in altered:
        records = small_journal()
        records[place] = (version, {**records[place][1], **more})
        with pytest.raises(UnknownError):
            read_small_journal(records)
    chunk = (HERE / "snapshot.format1").read_bytes()
    for number in (0, 2):
        with pytest.raises(UnknownError):
            list(whole_generations([(b"0/a/0", chunk.replace(b'"format":1', b'"format":%d' % number))]))


def headers_of(name: str) -> list[tuple[str, bytes]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [(header, content.encode()) for header, content in (line.split(": ", 1) for line in lines)]


def test_dead_letter_identifies_its_original_record() -> None:
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


def test_tick_contains_its_step() -> None:
    assert tick(headers_of("feedback.tick.headers")) == 12


def test_update_records_contain_complete_entries() -> None:
    head, found = update((HERE / "updates.format1").read_bytes())
    assert head == {"partition": 2, "step": 41, "part": 0, "follows": 39, "control": 6, "names": ["news", "7"]}
    x, scores = {0: 1.0, 3: 0.5, 9: -1e300}, [0.0, 1.5, -0.1, 1 / 3, 0.5]
    without = {"scores": [0.0] * 5, "reward": -1, "assumed": -1, "v": 0.0, "nnz": 0, "x": {}}
    common = {"action": 2, "greedy": 1, "propensity": 0.25, "scores": scores}
    assert found == [
        {**common, "kind": 0, "reward": -1, "assumed": -1, "v": 0.0, "label": -1, "nnz": 3, "x": x},
        {**common, "kind": 1, "reward": 1, "assumed": -1, "v": 0.75, "label": 3, "nnz": 0, "x": {}},
        {**common, "kind": 2, "reward": 1, "assumed": 0, "v": 0.125, "label": -1, "nnz": 3, "x": x},
        {**common, **without, "kind": 4, "label": -1},
        {**common, **without, "kind": 3, "label": -1},
    ]
    head, found = update((HERE / "updates.format1.bare").read_bytes())
    assert head == {"partition": 0, "step": 1, "part": 0, "follows": 0, "control": 6, "names": []}
    ones = {0: 1.0, 3: 1.0, 9: 1.0}
    assert found == [{**common, "kind": 1, "reward": 0, "assumed": -1, "v": 0.0, "label": -1, "nnz": 3, "x": ones}]


def test_update_records_with_graded_rewards_contain_shares() -> None:
    _, found = update((HERE / "updates.format1.graded").read_bytes())
    assert [(entry["kind"], entry["reward"], entry["assumed"]) for entry in found] == [
        (0, -1.0, -1.0), (1, 0.7, -1.0), (2, 1.0, 0.0),
    ]  # fmt: skip


def golden_generation() -> Generation:
    (found,) = whole_generations([(b"0/a/0", (HERE / "snapshot.format1").read_bytes())])
    assert (found.format, found.number) == (1, 7)
    return found


def test_snapshot_chunk_contains_settings_counts_learner_and_decisions() -> None:
    found = golden_generation()
    assert (found.state["step"]["number"], found.state["undated"]) == (7, [39, 40])
    assert settings(found.state["settings"])["learner"] == "banditron"
    pending = format_reader.counts(found.state["step"]["ledger"])["pending"] - len(found.of("shown"))
    assert [entry["logged"] for entry in found.of("pending")] == [[0.5, n] for n in range(pending)]
    assert [entry["decided_ms"] for entry in found.of("pending")][-2:] == [-39, -40]
    assert {entry["decided_action"] for entry in found.of("retained")} == {0, 1, 2}
    assert found.learner()


def fields_of_the_page(name: str) -> dict[str, str]:
    """The fields in a block or in update records, with their defaults, from a table in docs/formats.md."""
    (section,) = re.findall(
        rf"^##+ `?{name}`?(?::|$).*?(?=^##)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    found: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, *_, absent = line.replace("\\|", "").strip("| ").split(" | ")
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), absent)
    return found


def test_snapshot_chunk_contains_feedback_that_other_feedback_can_follow() -> None:
    (found,) = whole_generations([(b"0/a/0", (HERE / "snapshot.format1.several").read_bytes())])
    assert [(entry["id"], entry["part"], entry["final"]) for entry in (*found.of("orphans"), *found.of("more"))] == [
        ("before", "p", False), ("before", "q", True),
    ]  # fmt: skip
    assert [(entry["id"], entry["reward"], entry["parts"]) for entry in found.of("answers")] == [
        ("a", 1.25, {"p": 2.0, "q": -0.75}),
    ]  # fmt: skip
    assert format_reader.counts(found.state["step"]["ledger"])["answered"] == 1


@pytest.mark.parametrize("name", ["pending", "orphans", "answers", "retained"])
def test_page_documents_each_field_of_a_block(name: str) -> None:
    assert sorted(fields_of_the_page(name)) == sorted(FIELDS[name])


def test_page_documents_each_update_column_and_its_default() -> None:
    lines = fields_of_the_page("Updates")
    for name in ("name", "values", "arrays"):  # these fields belong to the head, not to the columns
        del lines[name]
    expected = {
        column: "–" if absent is NEEDED else f"{absent:g}".replace("-", "−")
        for column, (_, absent) in UPDATE_COLUMNS.items()
    }
    assert lines == {**expected, "x.indices": "–", "x.values": "1"}


def test_page_documents_each_setting() -> None:
    (section,) = re.findall(r"^### Settings.*?(?=^##)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    named = [name for names, *_ in lines for name in re.findall(r"`([^`]+)`", names)]
    assert sorted(named) == sorted((*SETTINGS, "parameters.NAME"))


def test_page_documents_each_count() -> None:
    (section,) = re.findall(r"^### Counts.*?(?=^##)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    assert [name for line in lines for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])] == list(LEDGER)


def test_block_entry_without_a_required_field_is_rejected() -> None:
    (section,) = [section for section in golden_generation().sections if section.name == "pending"]
    entry, *_ = msgspec.msgpack.decode(section.arrays["entries"].content)
    without = section.arrays["entries"]._replace(content=msgspec.msgpack.encode([entry[:-1]]))
    with pytest.raises(TypeError, match="decision"):
        entries(section._replace(arrays={"entries": without}))


def pipeline_of(settings: TaskSettings) -> Pipeline:
    """A pipeline that has decisions in every state, orphans, a settings change, and snapshots."""
    pipeline = Pipeline(settings)
    for first in range(2):
        if first:
            pipeline.request(window_ms=settings.join.window_ms + 1)
        program = pipeline.learner(given=(), snapshot_interval_ms=1)
        for number in range(20 * first, 20 * first + 20):
            pipeline.clock.advance_to(pipeline.now_ms() + 100)
            pipeline.context(f"event-{number}", number % 4)
            pipeline.context(f"deferred-{number}", deferred=True)
            if number % 2:
                pipeline.show(f"deferred-{number}")
            pipeline.answer(f"event-{number - number % 3 * 5 + number % 4}", number % 2)
            run_until_idle(program)
        program.close()
    return pipeline


@pytest.fixture(scope="module")
def present() -> Pipeline:
    join = JoinSettings(
        window_ms=1_000, orphan_window_ms=900, retain_ms=9_000, pending_max=99, orphans_max=9, retained_max=99
    )
    return pipeline_of(small_task("soba-diag", join=join, on_expiry="negative", late="correct"))


def test_reader_agrees_with_onebit_on_a_journal(present: Pipeline) -> None:
    records = present.records(TOPICS.journal)
    steps = [decode_step(record) for record in records]
    found = format_reader.journal((dict(record.headers)["onebit-version"], record.value or b"") for record in records)
    same = ("contexts", "feedback", "updates", "partitions", "settings_from", "alarms")
    assert [(step.number, *(getattr(step, name) for name in same), step.ledger) for step in found.steps] == [
        (step.number, *(getattr(step, name) for name in same), step.ledger._asdict()) for step in steps
    ]
    for topic, name, place in (
        (TOPICS.contexts, "last_context", "contexts"),
        (TOPICS.feedback, "last_feedback", "feedback"),
    ):
        digests = {
            record.offset + 1: format_reader.input_digest(record.append_ms, record.key, record.value, record.headers)
            for record in present.records(topic)
        }
        assert [getattr(step, name) for step in found.steps] == [
            digests.get(getattr(step, place)[1]) for step in found.steps
        ]
    initial, changed = (step.settings for step in steps if step.settings is not None)
    assert [found.steps[place].settings for place in (0, -1)] == [stored_settings(initial), stored_settings(changed)]


def test_reader_agrees_with_onebit_on_a_snapshot(present: Pipeline) -> None:
    chunks = ((record.key, record.value) for record in present.records(TOPICS.snapshots))
    newest = max(format_reader.whole_generations(chunks), key=lambda each: each.number)
    task = rebuild(present.broker, TOPICS, 0, until=newest.number, snapshots=False).task
    join = task.join
    assert newest.state["settings"] == stored_settings(task.settings)
    assert format_reader.counts(newest.state["step"]["ledger"]) == join.ledger()._asdict()
    assert format_reader.state_digest(newest.learner()) == state_digest([task.learner.state()])
    for name, decisions in (("pending", join.pending), ("deferred", join.deferred), ("shown", join.shown)):
        assert [(entry["id"], entry["decided_ms"]) for entry in newest.of(name)] == [
            (event_id, -pending.time.step if pending.time.ms is None else pending.time.ms)
            for event_id, pending in decisions.items()
        ]
    assert newest.state["undated"] == list(task.undated)
    assert [(entry["id"], entry["offset"], entry["value"]) for entry in newest.of("orphans")] == [
        (event_id, orphan.record.offset, orphan.record.value) for event_id, orphan in join.orphans.items()
    ]
    assert [(entry["id"], entry["decided_action"]) for entry in newest.of("retained")] == [
        (event_id, settled.action) for event_id, settled in join.retained.items()
    ]
    kept = [entry["decision"] for entry in newest.of("retained") if entry["decision"]]
    assert [(entry["id"], entry["values"]) for entry in kept] == [
        (event_id, settled.pending.x.values.tolist()) for event_id, settled in join.retained.items() if settled.pending
    ]
    assert all((join.pending, join.deferred, join.shown, join.orphans, join.retained, kept))


def test_reader_agrees_with_onebit_on_a_model_file(present: Pipeline, tmp_path: Path) -> None:
    model = export_model(present.broker, TOPICS, 0)
    write_model(tmp_path / "model.npz", model)
    meta, state = model_file(tmp_path / "model.npz")
    assert {name: value for name, value in meta.items() if name != "scalars"} == model.meta
    assert format_reader.state_digest(state) == meta["digest"]
