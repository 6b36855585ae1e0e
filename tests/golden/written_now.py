"""What the present version writes, as Onebit reads it and as the reader of docs/formats.md does."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from stream.recovery.journal import JournalStep, Opening, SettingsChange, decode_step
from stream.recovery.snapshot_format import FORMAT
from stream.recovery.stored_settings import stored_settings
from stream.verifying.model_files import write_model
from stream.wire.codec import HEADERS
from tests.golden import format_reader, log_reader
from tests.golden.pipelines import Loaded, facts, overflows
from tests.golden.stored import Golden


class GoneOn(NamedTuple):
    """What a learner was given after a recording."""

    recorded: list[dict[str, Any]]  # for each partition
    answered: int  # decisions that had waited
    orphans: int  # feedback that had waited
    new: int  # contexts, all but one of them answered


def go_on(golden: Golden, loaded: Loaded) -> GoneOn:
    """Answer what waits, decide a few more, let one of those expire, and take a snapshot."""
    recorded = [golden.expected["partitions"][partition]["final"] for partition in golden.numbers()]
    pending = [event_id for final in recorded for event_id, *_ in final["pending"]]
    orphans = [event_id for final in recorded for event_id, *_ in final["orphans"]]
    assert pending, "a pipeline is recorded while decisions wait"
    assert orphans, "a pipeline is recorded while feedback waits"
    label = {"label": 1} if any(orphan[2] is not None for final in recorded for orphan in final["orphans"]) else {}
    settings = loaded.rebuild(0).task.settings
    program = loaded.learner(settings)
    new = [f"after-{number}" for number in range(4)]  # fewer than the limits take

    def work(wait_ms: int) -> None:
        loaded.clock.advance_to(loaded.clock.now_ms + wait_ms)
        while program.step(0):
            pass

    work(1)
    for event_id in pending:
        loaded.send(loaded.topics.feedback, event_id, {"reward": 1, **label})
    work(1)
    for event_id in orphans + new:
        loaded.send(loaded.topics.contexts, event_id, {"x": {"i": [0, 2], "v": [1.0, 0.5]}})
    work(1)
    for event_id in new[1:]:
        loaded.send(loaded.topics.feedback, event_id, {"reward": 0, **label})
    work(1)
    work(settings.join.window_ms + 1)
    work(1_000)
    program.close()
    return GoneOn(recorded, len(pending), len(orphans), len(new))


def goes_on(golden: Golden, loaded: Loaded) -> None:
    """Assert that a learner goes on from a recording, that its books balance and that its snapshots are whole."""
    recorded, answered, orphans, new = go_on(golden, loaded)
    steps = [loaded.last_step(partition) for partition in golden.numbers()]
    found = [step.ledger for step in steps if step is not None]
    assert [ledger.imbalances() for ledger in found] == [()] * golden.partitions

    def more(name: str) -> int:
        return int(sum(getattr(ledger, name) for ledger in found) - sum(final["ledger"][name] for final in recorded))

    assert more("contexts") == more("decided") == new + orphans
    assert more("feedback") == answered + new - 1
    assert more("matched") == answered + orphans + new - 1
    assert more("expired") == 1
    for partition in golden.numbers():
        assert loaded.audit(partition).faults == ()
        newest = loaded.rebuild(partition).stored.newest
        assert newest is not None
        assert newest.number > golden.expected["partitions"][partition]["generation"], "no snapshot was taken"
        with_snapshots, without = (loaded.rebuild(partition, snapshots=choice) for choice in (True, False))
        if golden.to_the_bit:
            assert facts(with_snapshots) == facts(without)


def do_what_is_new(loaded: Loaded) -> None:
    """Let the learner write what 0.1.0 did not: changed settings, actions of feedback, and feedback that is refused."""
    before = loaded.rebuild(0).task
    settings = replace(
        before.settings, join=replace(before.settings.join, window_ms=before.settings.join.window_ms + 1)
    )
    label = {"label": 1} if before.learner.needs_label else {}
    program = loaded.learner(settings, change_settings=True)

    def work(wait_ms: int) -> None:
        loaded.clock.advance_to(loaded.clock.now_ms + wait_ms)
        while program.step(0):
            pass

    work(1)
    named = ["named-right", "named-wrong"]
    for event_id in named:
        loaded.send(loaded.topics.contexts, event_id, {"x": {"i": [1]}})
    work(1)
    decided = {
        fields["id"]: fields["action"]
        for partition in range(loaded.golden.partitions)
        for record in loaded.records(loaded.topics.predictions, partition)
        for fields in [json.loads(record.value or b"")]
    }
    own = (*HEADERS, ("trace", b"8"))
    for event_id, wrong_by in zip(named, (0, 1), strict=True):
        action = (decided[event_id] + wrong_by) % before.settings.n_classes
        loaded.send(loaded.topics.feedback, event_id, {"reward": True, "action": action, **label}, own)
    loaded.send(loaded.topics.feedback, "named-early", {"reward": 1.0, "action": 2, **label})
    work(1)
    work(200)  # for a snapshot
    program.close()


def newest_generation(loaded: Loaded, partition: int) -> format_reader.Generation:
    """The newest snapshot, as the reader finds it."""
    chunks = ((record.key, record.value) for record in loaded.records(loaded.topics.snapshots, partition))
    found = [each for each in format_reader.whole_generations(chunks) if each.slot != "import"]
    return max(found, key=lambda each: each.number)


def same_journal(loaded: Loaded, partition: int) -> None:
    """Assert that the reader finds in a journal what Onebit does."""
    records = list(loaded.records(loaded.topics.journal, partition))
    entries = [decode_step(record) for record in records]
    steps = [entry for entry in entries if isinstance(entry, JournalStep)]
    found = format_reader.journal((dict(record.headers)["onebit-version"], record.value or b"") for record in records)
    opening = entries[0]
    assert isinstance(opening, Opening)
    assert found.imported == opening.imported
    same = ("contexts", "feedback", "now_ms", "feedback_end_ms", "updates", "settings_from", "alarms")
    assert [
        (step.n, *(getattr(step, name) for name in same), step.ledger, (step.rules, step.partitions))
        for step in found.steps
    ] == [(step.number, *(getattr(step, name) for name in same), step.ledger._asdict(), step.reading) for step in steps]
    (change,) = [entry for entry in entries if isinstance(entry, SettingsChange)]
    # Names are written only where there are some; to the reader there are none otherwise.
    unwritten = {"features": None, "class_names": None, "model": "own"}
    assert found.steps[-1].settings == {**unwritten, **stored_settings(change.settings)}
    assert found.steps[-1].settings_from == change.number
    assert {step.rules for step in found.steps} == {1, 2}, "begun by 0.1.0, gone on with now"


def same_snapshot(loaded: Loaded, partition: int, newest: format_reader.Generation) -> None:
    """Assert that the reader finds in a snapshot what Onebit does, and what the journal alone gives."""
    restored = loaded.rebuild(partition, until=newest.number)
    again = loaded.rebuild(partition, until=newest.number, snapshots=False)
    now, join = facts(again), again.task.join
    assert newest.format == FORMAT
    assert newest.state["settings"] == stored_settings(again.task.settings)
    assert newest.state["settings_from"] == again.settings_from > 0
    assert newest.state["overflows"] == overflows(again)
    assert newest.state["ledger"] == now["ledger"]
    assert format_reader.state_digest(newest.learner()) == facts(restored)["state_digest"]
    assert columns(newest.of("pending"), "id", "decided_at_ms", "action") == now["pending"]
    assert columns(newest.of("orphans"), "id", "reward", "feedback_action", "kept_at_ms", "headers") == [
        [event_id, feedback.reward, minus_1_for_none(feedback.action), kept_at_ms, list(record.headers)]
        for event_id, (feedback, record, kept_at_ms) in join.orphans.items()
    ]
    settled = newest.of("retained")
    assert [format_reader.OUTCOMES[entry["outcome"]] for entry in settled] == [
        str(kept.outcome) for kept in join.retained.values()
    ]
    assert columns(settled, "id", "reward", "settled_at_ms", "kept", "decided_action") == [
        [event_id, minus_1_for_none(reward), settled_at_ms, pending is not None, minus_1_for_none(action)]
        for event_id, (_, reward, settled_at_ms, pending, action) in join.retained.items()
    ]


def columns(entries: Sequence[format_reader.Entry], *names: str) -> list[list[Any]]:
    """Some columns of a block."""
    return [[entry[name] for name in names] for entry in entries]


def minus_1_for_none(number: int | None) -> int:
    """What a column of numbers has for None."""
    return -1 if number is None else number


def same_model(loaded: Loaded, partition: int, path: Path) -> None:
    """Assert that the reader finds in a model file what was exported to it."""
    model = loaded.export(partition)
    write_model(path, model)
    meta, state = format_reader.model_file(path)
    assert format_reader.state_digest(state) == meta["digest"]
    assert {name: value for name, value in meta.items() if name != "scalars"} == model.meta


def refused_feedback(loaded: Loaded) -> list[str]:
    """Ids of mismatched feedback, whose letters must hold all of it, its own headers too."""
    found = []
    for partition in range(loaded.golden.partitions):
        feedback = {record.offset: record for record in loaded.records(loaded.topics.feedback, partition)}
        for record in loaded.records(loaded.topics.dead_letter, partition):
            letter = format_reader.dead_letter(record.headers)
            if letter.kind == "mismatched":
                original = feedback[letter.offset]
                assert (letter.topic, letter.partition) == (loaded.topics.feedback, partition)
                assert (record.key, record.value) == (original.key, original.value)
                assert (letter.own, letter.own_count) == (list(original.headers), len(original.headers))
                assert len(letter.own) == 2, "as it was sent"
                found.append(json.loads(record.value or b"")["id"])
    return found


def same_log(golden: Golden, loaded: Loaded) -> None:
    """Assert that the reader finds in the log of a shared model what Onebit does."""
    found = log_reader.model_log(
        (record.offset, dict(record.headers).get("onebit-version"), record.value or b"")
        for record in loaded.records(loaded.topics.updates, 0)
    )
    replica = loaded.model_of_whole_log()
    assert (found[-1].version, found[-1].offset + 1) == (replica.version, replica.offset)
    for partition in golden.numbers():
        of_task = [update for update in found if update.partition == partition]
        decided = sum(entry["kind"] == 0 for update in of_task for entry in update.entries)
        assert (of_task[-1].step, of_task[-1].part + 1, decided) == replica.place_of(partition)
        records = loaded.records(loaded.topics.journal, partition)
        steps = [entry for entry in map(decode_step, records) if isinstance(entry, JournalStep)]
        assert [step.log.entries for step in steps if step.log is not None and step.log.entries] == [
            len(update.entries) for update in of_task
        ]
