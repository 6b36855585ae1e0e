"""Snapshots restore the exact state. Incomplete snapshots and snapshots in other formats are not used."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import MsgspecError, msgpack

from stream.learners import State, registered
from stream.recovery.chunks import CHUNK_BYTES, FORMAT, ChunkWriter, Generation, Stored
from stream.recovery.slices import finish
from stream.recovery.state import (
    Entries,
    Snapshot,
    Spare,
    decode,
    decode_block,
    encode,
    encode_block,
    restoring,
    take,
    task_digest,
)
from stream.recovery.steps import JournalError, JournalStep, LogStep, ReplicaDigest
from stream.settings.task_fields import JoinSettings
from stream.task.answers import Answer
from stream.task.join import Orphan, Pending, Retained
from stream.task.settings import TaskSettings
from stream.task.stored_settings import stored_settings
from stream.task.task import Task
from stream.wire.ledger import Ledger
from stream.wire.records import Decision, DecisionTime, Features, Feedback, Outcome, Record
from stream.wire.sections import headed
from tests.pipeline import TOPICS, Inputs, offered, small_task
from tests.task.test_frozen import model_of

GOLDEN = Path(__file__).parents[1] / "golden"


def step_of(task: Task, number: int = 7) -> JournalStep:
    return JournalStep(number, (100, 120), (80, 95), task.version, task.join.ledger())


def taken(task: Task, spare: Spare | None = None) -> Snapshot:
    return take(task, step_of(task), spare)


def restored(snapshot: Snapshot, settings: TaskSettings) -> Task:
    return finish(restoring(snapshot, settings, TOPICS.contexts, "snapshot"))


ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
times = st.integers(0, 2**53)
floats = st.floats(allow_nan=False)
bits = st.integers(0, 1)
UNDATED = (1, 700, 2**53)
blobs = st.none() | st.binary(max_size=6)


@st.composite
def decisions(draw: st.DrawFn) -> Pending:
    nnz = draw(st.integers(0, 4))
    indices = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=nnz, max_size=nnz)), np.int32)
    x = Features(indices, np.array(draw(st.lists(floats, min_size=nnz, max_size=nnz)), np.float64))
    scores = np.array(draw(st.lists(floats, min_size=3, max_size=3)))
    logged = np.array(draw(st.lists(floats, min_size=2, max_size=2)))
    action, greedy = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    time = DecisionTime(0, draw(times)) if draw(st.booleans()) else DecisionTime(draw(st.sampled_from(UNDATED)))
    return Pending(x, Decision(action, greedy, draw(floats), scores, logged), time)


classes = st.none() | st.integers(0, 2**31)
given_feedback = st.builds(Feedback, ids, bits, classes, classes, st.none() | ids, st.booleans())
feedback = st.none() | given_feedback
headers = st.lists(st.tuples(ids, st.binary(max_size=5)), max_size=2).map(tuple)
records = st.builds(Record, ids, st.integers(0, 999), times, times, blobs, blobs, headers)
orphans = st.builds(Orphan, feedback, records, times)
answers = st.builds(
    Answer,
    given_feedback,
    records.map(lambda record: record._replace(headers=())),
    st.dictionaries(ids, st.floats(allow_nan=False)),
)
retained = st.builds(
    Retained, st.sampled_from(Outcome), st.none() | bits, st.integers(0, 2**31), st.none() | decisions()
)


def entries(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[list[str], list[Any]]]:
    return st.dictionaries(ids, values, max_size=6).map(lambda kept: (list(kept), list(kept.values())))


@st.composite
def settled_ids(draw: st.DrawFn) -> tuple[list[str], list[Retained], list[int]]:
    names, kept = draw(entries(retained))
    return names, kept, draw(st.lists(times, min_size=len(names), max_size=len(names)))


states = st.fixed_dictionaries(
    {
        "W": st.lists(floats, min_size=6, max_size=6).map(lambda values: np.array(values).reshape(2, 3)),
        "rounds": st.integers(0, 2**62).map(lambda value: np.array([value])),
        "empty": st.just(np.zeros((0, 3))),
        "zero-dimensional": floats.map(np.array),
        "float": floats,
        "int": st.integers(-(2**53), 2**53),
        "text": st.text(st.characters(codec="utf-8"), max_size=5),
        "flags": st.lists(st.booleans(), min_size=1, max_size=5).map(np.array),
    }
)

ledgers = st.builds(Ledger, *[times] * len(Ledger._fields))
steps = st.builds(
    JournalStep, times, st.tuples(times, times), st.just((0, 2**53)), times, ledgers, st.just(5), st.just(3), times,
    st.none() | st.just(LogStep(0, 1, 2, 3, "c0ffee")), st.none() | st.just(ReplicaDigest("learner-1", "c0ffee")),
    st.none() | st.just(small_task().resolved()), ids, ids, st.none() | ids, st.integers(-(2**53), 2**53),
    times, st.lists(st.tuples(times, ids), max_size=2).map(tuple),
    st.tuples(times, times),
)  # fmt: skip
snapshots = st.builds(
    Snapshot, st.just(stored_settings(small_task())), steps, times,
    st.just({step: DecisionTime(step) for step in UNDATED}), times,
    st.lists(ids, max_size=3), states,
    entries(decisions()), entries(orphans), settled_ids(), entries(decisions()), entries(decisions()), entries(orphans),
    entries(answers),
)  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Return whether two values have the same type and are equal bit for bit."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, Snapshot):
        a, b = (
            {**each._asdict(), **{name: list(zip(*getattr(each, name), strict=True)) for name in BLOCKS}}
            for each in (a, b)
        )
    if isinstance(a, DecisionTime):
        return bool(a == b)  # once the time is known, the step is irrelevant
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def chunks(snapshot: Snapshot) -> list[bytes]:
    return [message.value or b"" for message in writer(snapshot).portion(10**12)]


def writer(snapshot: Snapshot, keys: str = "0", slot: str = "a", chunks_before: int = 0) -> ChunkWriter:
    return ChunkWriter(snapshot.step.number, encode(snapshot), keys, slot, chunks_before)


def message_key(keys: str, slot: str, index: int) -> bytes:
    return f"{keys}/{slot}/{index}".encode()


def stored(*values: bytes | None, slot: str = "a", number_max: int | None = None) -> Stored:
    found = Stored("0", number_max)
    for index, value in enumerate(values):
        found.add(chunk_record(message_key("0", slot, index), value))
    return found


def chunk_record(key: bytes | None, value: bytes | None) -> Record:
    return Record("snapshots", 0, 0, 1_000, key, value, ())


def whole(found: Stored) -> Generation:
    assert found.newest is not None
    return found.newest


@given(snapshots)
def test_snapshot_round_trips(snapshot: Snapshot) -> None:
    assert same(decode(whole(stored(*chunks(snapshot)))), snapshot)


def used_task(settings: TaskSettings, events: int = 40) -> Task:
    """Return a task with decisions in every state, late and orphaned feedback, and malformed and undated contexts.

    Each event has its own step. A step's tick arrives two steps later.
    """
    task, offer = Task(settings, TOPICS.contexts), offered(settings)
    for number in range(events):
        inputs = Inputs()
        now_ms = 1_000 + 100 * number
        inputs.tick(number - 1, now_ms)
        if number % 5:
            inputs.context(f"event-{number}", now_ms, number % 4, **offer)
        if number >= 3 and number % 3:
            inputs.feedback(f"event-{number - 3}", number % 2, now_ms, number % 3)
        if number % 4 == 1:
            inputs.context(f"deferred-{number}", now_ms, number % 4, deferred=True, **offer)
            if number % 8 == 5:
                inputs.shown(f"deferred-{number - 4}", now_ms)
            inputs.shown(f"deferred-{number + 100}", now_ms)  # the context never arrives
        if number % 7 == 0:
            inputs.add(TOPICS.contexts, now_ms, b"{")
        task.step(inputs.records, number + 1)
    return task


TASKS = (
    {name: small_task(name) for name in sorted(registered())}
    | {f"{name}, scaled": small_task(name, scale="standard") for name in ("late-ucb", "stack-igw")}
    | {"halving, floor": small_task("halving", floor=0.4)}
    | {"banditron, holdout": small_task("banditron", holdout=0.4, holdout_policy="constant:1")}
    | {"banditron, model": small_task(holdout=0.4, holdout_policy=model_of(small_task("late-ucb")).to_text())}
)


@pytest.mark.parametrize("settings", TASKS.values(), ids=TASKS)
def test_restored_task_equals_the_original_and_continues_identically(settings: TaskSettings) -> None:
    task = used_task(settings)
    ledger = task.join.ledger()
    assert ledger.pending
    assert ledger.expired
    assert ledger.orphans_waiting
    assert all((ledger.deferred, ledger.shown, ledger.unshown, task.join.shown))
    assert any(orphan.feedback is None for orphan in task.join.orphans.values())
    snapshot = taken(task)
    again = restored(decode(whole(stored(*chunks(snapshot)))), settings)
    assert task_digest(again) == task_digest(task)
    more = Inputs()
    for number in range(30):
        more.feedback(f"event-{30 + number % 12}", number % 2, 5_100 + number, number % 3)
        more.context(f"event-{32 + number}", 5_100 + number, number % 4, **offered(settings))
    for number in range(41):
        more.shown(f"deferred-{number}", 5_200)
    more.tick(40, 9_000)
    assert task.undated
    effects = [kept.step(more.records, 41) for kept in (task, again)]
    assert same(list(effects[0]), list(effects[1]))
    assert task_digest(again) == task_digest(task)


def test_snapshot_contains_correctable_decisions_and_eviction_counts() -> None:
    limits = JoinSettings(
        window_ms=100, orphan_window_ms=500, retain_ms=10_000, pending_max=3, orphans_max=1, retained_max=9
    )
    settings = small_task("soba-diag", join=limits, on_expiry="negative", late="correct")
    task = used_task(settings)
    snapshot = taken(task)
    assert any(entry.pending is not None for entry in snapshot.retained[1])
    ledger = snapshot.step.ledger
    assert min(ledger.pending_evicted, ledger.deferred_evicted, ledger.orphans_evicted, ledger.retained_evicted) > 0
    again = restored(decode(whole(stored(*chunks(snapshot)))), settings)
    assert again.join.ledger() == ledger
    assert same(taken(again), snapshot)


def test_snapshot_contains_the_complete_state_of_task_and_join() -> None:
    task = Task(small_task(), TOPICS.contexts)
    assert set(vars(task)) == {
        "settings", "model", "join", "undated", "classes",
        "_contexts_topic", "_draw_action", "_draw_update",
        "_draw_log", "_log", "_graded", "_is_randomised", "_propensity_min", "_decode_context",
        "_members", "_reading",  # derived from the settings
        "_time", "_is_broken", "_decoded",  # state of the current step
    }, "add new task state to the snapshot"  # fmt: skip
    assert set(vars(task.join)) == {
        "assumed_reward", "_correctable", "stream_ms", "dated_ms", "_counts",
        "pending", "deferred", "shown", "orphans", "more", "answers", "settled",
        "_unsettled", "_quiet_until_ms", "_more_count",  # derived from other fields
        "_settings", "_combination", "_is_combined",
        "_is_changed",  # never set between steps
    }, "add new join state to the snapshot"  # fmt: skip


@pytest.mark.parametrize("pending_max", [1, 1_000_000])
def test_later_steps_do_not_change_a_snapshot(pending_max: int) -> None:
    join = replace(small_task().join, pending_max=pending_max)
    task = used_task(small_task("soba-diag", join=join, on_expiry="negative", late="correct"))
    snapshot = taken(task)
    before = chunks(snapshot)
    assert task.undated
    task.step(used_inputs(), 41)
    assert not task.undated.keys() & {*snapshot.undated}
    assert chunks(snapshot) == before


def used_inputs() -> list[Record]:
    inputs = Inputs()
    inputs.tick(39, 6_000)
    inputs.tick(40, 6_000)
    for number in range(50):
        inputs.context(f"later-{number}", 6_000 + number, number % 4)
        inputs.feedback(f"later-{number}", number % 2, 6_000 + number)
    return inputs.records


@pytest.mark.parametrize("settings", TASKS.values(), ids=TASKS)
def test_state_copied_into_an_earlier_state_is_exact(settings: TaskSettings) -> None:
    task = Task(settings, TOPICS.contexts)
    spare = task.learner.state()
    task = used_task(settings)
    copied = task.learner.state_into(spare)
    assert same(copied, task.learner.state())
    assert not any(np.shares_memory(copied[name], array) for name, array in getattr(task.learner, "arrays", {}).items())


def test_snapshot_reuses_the_memory_of_an_earlier_snapshot() -> None:
    task = used_task(small_task())
    spare = task.learner.state()
    learner = taken(task, Spare(stored_settings(task.settings), spare)).learner
    arrays = {name: array for name, array in spare.items() if isinstance(array, np.ndarray)}
    assert arrays
    assert all(np.shares_memory(learner[name], array) for name, array in arrays.items())


def test_snapshot_does_not_reuse_the_memory_of_a_learner_with_other_settings() -> None:
    """Between the steps in which a change reaches two tasks of a process, the tasks have different settings."""
    before = TaskSettings("late-ucb", n_classes=3, n_features=4)
    task = Task(replace(before, n_features=6), TOPICS.contexts)
    spare = Spare(stored_settings(before), Task(before, TOPICS.contexts).learner.state())
    assert same(taken(task, spare).learner, task.learner.state())


def test_snapshot_keeps_arbitrary_header_names_of_orphans() -> None:
    headers = (("trace", b"\xff"), (b"\xff\xfe name".decode(errors="surrogateescape"), b""), ("ä", b"1"))
    task = used_task(small_task())
    record = Record(TOPICS.feedback, 0, 1, 5, None, b"value", headers)
    task.join.orphans["of another client"] = Orphan(Feedback("of another client", 1), record, 5)
    again = restored(decode(whole(stored(*chunks(taken(task))))), small_task())
    assert again.join.orphans["of another client"].record == record


def large() -> Snapshot:
    """A snapshot with five chunks."""
    state: State = {"W": np.arange(250_000.0), "sums": np.ones(3)}
    return taken(used_task(small_task()))._replace(learner=state)


CHUNKS = chunks(large())


def test_chunks_respect_the_size_limit_and_join_to_the_whole_snapshot() -> None:
    assert len(CHUNKS) == 5
    assert max(map(len, CHUNKS)) < CHUNK_BYTES + 500
    assert same(decode(whole(stored(*CHUNKS))), large())


def test_writer_returns_bounded_portions_and_deletes_surplus_chunks() -> None:
    writing = writer(large(), "3", "b", chunks_before=7)
    portions = []
    while not writing.done:
        portions.append(writing.portion(CHUNK_BYTES + 1_000))
    assert [len(portion) for portion in portions] == [2, 2, 3]
    messages = [message for portion in portions for message in portion]
    assert [message.key for message in messages] == [message_key("3", "b", index) for index in range(7)]
    assert [message.value for message in messages] == [*CHUNKS, None, None]


def test_portion_ends_after_the_chunk_that_reaches_its_limit() -> None:
    for bytes_max, count in ((1, 1), (len(CHUNKS[0]), 1), (len(CHUNKS[0]) + 1, 2)):
        assert len(writer(large()).portion(bytes_max)) == count


def damaged(chunk: bytes, at: int) -> bytes:
    return chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :]


OLDER = chunks(large()._replace(step=large().step._replace(number=3)))


@pytest.mark.parametrize(
    "values",
    [
        CHUNKS[:-1],
        CHUNKS[1:],
        [*CHUNKS[:2], *CHUNKS[3:]],
        [*CHUNKS[:2], damaged(CHUNKS[2], 5_000), *CHUNKS[3:]],
        [*CHUNKS[:2], damaged(CHUNKS[2], 20), *CHUNKS[3:]],
        [*CHUNKS[:-1], damaged(CHUNKS[-1], -3)],
        [*CHUNKS[:2], CHUNKS[2][:100], *CHUNKS[3:]],
        [*CHUNKS[:2], b"", *CHUNKS[3:]],
        [*CHUNKS[:2], b"\xff\xff\xff\xff{", *CHUNKS[3:]],
        [*CHUNKS[:2], *OLDER[2:]],
        [*OLDER[:2], *CHUNKS[2:]],
        [*CHUNKS[:2], CHUNKS[3], CHUNKS[2], CHUNKS[4]],
        [CHUNKS[0], *CHUNKS],
    ],
)  # fmt: skip
def test_previous_generation_is_used_if_the_newest_is_incomplete(values: list[bytes]) -> None:
    found = stored(*values)
    assert found.newest is None
    found = stored(*OLDER)
    for index, value in enumerate(values):
        found.add(chunk_record(message_key("0", "b", index), value))
    assert whole(found).number == 3
    assert found.next_slot == "b"


def test_newest_complete_generation_is_found_and_the_other_slot_is_next() -> None:
    found = stored(*OLDER)
    for index, value in enumerate(CHUNKS):
        found.add(chunk_record(message_key("0", "b", index), value))
    assert (whole(found).number, found.next_slot, found.chunks_in("a")) == (7, "a", 5)
    assert stored(*CHUNKS, number_max=6).newest is None
    assert whole(stored(*CHUNKS, number_max=7)).number == 7


def test_deleted_chunks_are_not_counted() -> None:
    found = stored(*CHUNKS)
    found.add(chunk_record(message_key("0", "a", 4), None))
    assert found.chunks_in("a") == 4
    assert found.chunks_in("b") == 0


@pytest.mark.parametrize("key", [None, b"", b"0/a", b"0/a/x", b"\xff/a/0", b"0/a/1/2"])
def test_record_with_another_key_is_skipped(key: bytes | None) -> None:
    found = Stored("0")
    found.add(chunk_record(key, CHUNKS[0]))
    assert (found.newest, found.chunks_in("a")) == (None, 0)


@pytest.mark.parametrize(
    "head",
    [
        {"format": "x", "generation": 1, "index": 0},
        {"format": 1, "generation": "1", "index": 0, "count": 1},
        {"format": 1, "generation": 1, "index": "0"},
        {"format": 1, "generation": 1, "index": 0, "count": "1"},
    ],
)
def test_foreign_record_with_the_key_of_a_chunk_is_skipped(head: dict[str, object]) -> None:
    found = stored(*CHUNKS)
    nothing = sha256(b"").hexdigest()
    strangers = headed({**head, "sha256": nothing, "whole": sha256(sha256(b"").digest()).hexdigest()})
    for value in (strangers, b"hello"):
        found.add(chunk_record(message_key("0", "b", 0), value))
        found.add(chunk_record(message_key("0", "b", 3_000_000), value))
    assert whole(found).number == 7
    assert found.chunks_in("b") == 0, "expected no records for the next snapshot to delete"


def test_chunk_with_a_far_too_large_index_is_not_counted() -> None:
    far = 10**12
    chunk = headed({"format": FORMAT, "generation": 7, "index": far, "sha256": sha256(b"").hexdigest()})
    found = stored(*CHUNKS)
    found.add(chunk_record(message_key("0", "a", far), chunk))
    assert (whole(found).number, found.chunks_in("a")) == (7, 5)


def test_snapshot_with_an_excessive_entry_count_is_rejected_with_its_offset() -> None:
    for name in (b'"W"', b'"entries"'):
        state = b"".join(encode(taken(used_task(small_task()))))
        at = state.index(b"[" + name)
        shape = state[at : state.index(b"]", at)]
        claimed = shape[: shape.rindex(b"[") + 1] + b"1000000000000,3"
        start = max(state.rfind(b'{"name"', 0, at) - 4, 0)
        length = int.from_bytes(state[start : start + 4], "little") + len(claimed) - len(shape)
        changed = state[:start] + length.to_bytes(4, "little") + state[start + 4 :].replace(shape, claimed, 1)
        with pytest.raises(JournalError) as raised:
            decode(Generation(7, "a", "snapshots/0 offset 3", [memoryview(changed)]))
        assert raised.value.place == "snapshots/0 offset 3"


def test_imported_model_is_separate_from_the_generations() -> None:
    found = stored(*CHUNKS, slot="import")
    assert found.newest is None
    assert found.imported is not None
    assert found.imported.number == 7


def logging(kept: Entries) -> Entries:
    """Return the same decisions with logged values."""
    return kept[0], [
        pending._replace(decision=pending.decision._replace(logged=np.array([0.5, number])))
        for number, pending in enumerate(kept[1])
    ]


def golden_snapshot() -> Snapshot:
    snapshot = taken(used_task(small_task()))
    return snapshot._replace(pending=logging(snapshot.pending))


SUMMED = small_task("igw-logistic", rewards="graded", reward_range="0,5", feedback="sum", dated_by="context")


def golden_snapshot_of_several() -> Snapshot:
    """A snapshot of a pipeline that sums rewards, with feedback for an undecided and for a decided event."""
    task, inputs = Task(SUMMED, TOPICS.contexts), Inputs()
    records = [
        inputs.feedback("before", 1, 10, part="p"),
        inputs.feedback("before", 2, 11, part="q", final=True),
        inputs.context("a", 20),
        inputs.feedback("a", 2, 30, part="p"),
        inputs.feedback("a", -0.75, 31, part="q"),
    ]
    task.step(records, 1)
    return taken(task)


def test_restored_task_counts_all_feedback_that_waits_for_a_context() -> None:
    snapshot = golden_snapshot_of_several()
    again = restored(snapshot, SUMMED)
    assert again.join.ledger() == snapshot.step.ledger
    assert same(taken(again), snapshot)


@pytest.mark.parametrize(
    ("suffix", "made"), [("", golden_snapshot), (".several", golden_snapshot_of_several)], ids=["first", "sum"]
)
def test_snapshot_equals_the_golden_file(suffix: str, made: Callable[[], Snapshot]) -> None:
    # If this fails, the format has changed and existing snapshots can no longer be read.
    (chunk,) = chunks(made())
    assert chunk == (GOLDEN / f"snapshot.format{FORMAT}{suffix}").read_bytes()
    assert same(decode(whole(stored(chunk))), made())


def test_snapshot_of_a_pipeline_that_uses_the_first_reward_has_no_sections_for_several() -> None:
    found = b"".join(encode(taken(used_task(small_task()))))
    assert b'"name":"orphans"' in found
    assert b'"name":"more"' not in found
    assert b'"name":"answers"' not in found


@pytest.mark.parametrize("late", ["ignore", "correct"])
def test_tick_after_a_snapshot_sets_the_time_of_settled_decisions(late: Any) -> None:
    settings = small_task("soba-diag", join=JoinSettings(pending_max=0), on_expiry="negative", late=late)
    task, inputs = Task(settings, TOPICS.contexts), Inputs()
    task.step([inputs.context("a", 10)], 1)
    again = restored(decode(whole(stored(*chunks(taken(task))))), settings)
    for each in (task, again):
        each.step([inputs.tick(1, 30)], 2)
    assert task.join.dated_ms == 30
    assert task_digest(again) == task_digest(task)


@pytest.mark.parametrize("other", [b"0", b"2"])
def test_snapshot_of_another_format_is_rejected_with_its_offset(other: bytes) -> None:
    with pytest.raises(JournalError) as raised:
        stored(CHUNKS[0].replace(b'"format":1', b'"format":' + other))
    assert raised.value.place == "snapshots/0 offset 0"


ENTRY = Pending(Features(np.array([1], np.int32), np.ones(1)), Decision(1, 2, 0.5, np.zeros(3)), DecisionTime(1, 9))
RECORD = Record("f", 0, 3, 1_000, b"k", None, ())
BLOCKS: dict[str, tuple[Any, ...]] = {
    "pending": ("a", ENTRY),
    "deferred": ("a", ENTRY),
    "shown": ("a", ENTRY),
    "orphans": ("a", Orphan(Feedback("a", 1), RECORD, 900)),
    "retained": ("a", Retained(Outcome.MATCHED, 1, 2, ENTRY), 900),
    "more": ("a", Orphan(Feedback("a", 1.0, part="p"), RECORD, 900)),
    "answers": ("a", Answer(Feedback("a", 2.5, part="p"), RECORD, {"p": 1.0, "q": 1.5})),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_with_wrong_field_count_or_truncated_bytes_is_rejected(name: str) -> None:
    block = encode_block(name, [BLOCKS[name]])
    assert same(decode_block(name, block, {}), [BLOCKS[name]])
    (plain,) = msgpack.decode(block)
    endless = b"\xdd\xff\xff\xff\xff" + block[1:]
    for wrong in (block[:-1], endless, msgpack.encode([plain[:-1]]), msgpack.encode([[*plain, 0]])):
        with pytest.raises(MsgspecError):
            decode_block(name, wrong, {})


def rewritten(old: bytes, new: bytes) -> Generation:
    """Return a generation in the current format with some bytes of its state replaced and the length adjusted."""
    state = b"".join(encode(taken(used_task(small_task()))))
    assert state.count(old) == 1
    length = int.from_bytes(state[:4], "little") + len(new) - len(old)
    changed = length.to_bytes(4, "little") + state[4:].replace(old, new)
    return Generation(7, "a", "snapshots/0 offset 3", [memoryview(changed)])


def test_missing_count_is_0_and_an_unknown_count_is_rejected() -> None:
    ledger = taken(used_task(small_task())).step.ledger
    assert ledger.expired > 0
    found = decode(rewritten(b'"expired":%d,' % ledger.expired, b""))
    assert found.step.ledger == ledger._replace(expired=0)
    with pytest.raises(JournalError):
        decode(rewritten(b'"matched":', b'"newer":'))


def test_state_of_another_learner_is_rejected() -> None:
    snapshot = taken(used_task(small_task()))
    with pytest.raises(JournalError) as raised:
        restored(snapshot, small_task("soba-diag"))
    assert raised.value.place == "snapshot"
