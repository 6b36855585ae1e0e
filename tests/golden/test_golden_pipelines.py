"""What an earlier version wrote is read, recovered, audited, applied again, exported, and gone on from.

The bytes that are read must come out as they were written, on every machine: counts, ids, states in snapshots and
model files. Arithmetic that is done again gives the same bits on the machine of the recording (the same kind of
processor, numpy and numba); elsewhere the states must be equal to rounding.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.golden.pipelines import Loaded, Model, facts, model_file, overflows, same_facts, same_state
from tests.golden.stored import Golden, machine, names, read
from tests.golden.written_now import (
    do_what_is_new,
    go_on,
    goes_on,
    newest_generation,
    refused_feedback,
    same_journal,
    same_model,
    same_snapshot,
)

NAMES = names()


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return read(request.param)


@pytest.fixture
def loaded(golden: Golden) -> Loaded:
    return Loaded(golden)


def test_there_are_golden_pipelines_of_version_0_1_0() -> None:
    assert {name.removeprefix("0.1.0/") for name in NAMES if name.startswith("0.1.0/")} == {
        "banditron-correct", "confidit-variant-2", "kafka", "perceptron-labels", "pnewtron", "pnewtron-imported",
        "soba-diag-two-partitions", "soba-small-chunks",
    }  # fmt: skip


def test_records_stand_in_the_broker_where_they_stood_and_gaps_are_left_out(golden: Golden, loaded: Loaded) -> None:
    found = [
        tuple(record)
        for topic in loaded.topics
        for partition in golden.numbers()
        for record in loaded.records(topic, partition)
    ]
    assert sorted(found, key=lambda record: record[:3]) == sorted(map(tuple, golden.records), key=lambda r: r[:3])


@pytest.mark.parametrize("snapshots", [True, False], ids=["with snapshots", "without"])
def test_recovery_gives_the_recorded_state(golden: Golden, loaded: Loaded, snapshots: bool) -> None:
    for partition in golden.numbers():
        expected = golden.expected["partitions"][partition]
        recovered = loaded.rebuild(partition, snapshots=snapshots)
        newest = recovered.stored.newest
        assert (newest.number if newest else 0) == (expected["generation"] if snapshots else 0)
        same_facts(golden, facts(recovered), expected["final"])
        assert overflows(recovered) == expected["overflows"]


def test_settings_of_the_journal_are_those_of_the_task(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        begun = json.loads(golden.expected["partitions"][partition]["opening"])["settings"]
        found = loaded.export(partition).meta["settings"]
        join, parameters = begun.pop("join"), begun.pop("parameters")
        assert {name: found[name] for name in begun} == begun
        assert {name: found["join"][name] for name in join} == join
        assert {name: found["parameters"][name] for name in parameters} == parameters


def test_last_step_is_the_recorded_one(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        final = golden.expected["partitions"][partition]["final"]
        step = loaded.last_step(partition)
        assert step is not None
        assert (step.number, step.contexts[1], step.feedback[1]) == (
            final["step"], final["contexts_offset"], final["feedback_offset"],
        )  # fmt: skip
        assert step.updates == final["updates"]


def test_audit_finds_the_recorded_ledger_and_no_fault(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        ledger = golden.expected["partitions"][partition]["final"]["ledger"]
        finding = loaded.audit(partition)
        assert finding.faults == ()
        assert finding.gone == ()
        for found in (finding.learner, finding.audited):
            assert {name: found._asdict()[name] for name in ledger} == ledger
            assert sum(found) == sum(ledger.values()), "a count that came later is 0"


def test_journal_applied_again_publishes_what_stands_in_the_topics(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        expected = golden.expected["partitions"][partition]
        replay = loaded.replay(partition)
        if not golden.to_the_bit:  # then a score may differ in its last digit, and is named
            assert not replay.fault or "applied again publishes" in replay.fault
            continue
        assert replay.ok, replay.fault
        assert (replay.steps, replay.snapshot) == (expected["final"]["step"], expected["generation"])
        assert replay.state == expected["final"]["state_digest"]


def test_model_file_is_read_as_written_and_is_what_is_exported_now(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        final = golden.expected["partitions"][partition]["final"]
        recorded = model_file(golden, partition)
        assert recorded.meta["digest"] == final["state_digest"]
        assert (recorded.meta["format"], recorded.meta["updates"]) == (1, final["updates"])
        assert recorded.meta["ledger"] == final["ledger"]
        exported = loaded.export(partition)
        assert exported.meta["updates"] == final["updates"]
        assert exported.meta["position"] == recorded.meta["position"]
        same_state(golden, exported, recorded)


def test_model_of_an_earlier_step_is_the_recorded_one(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        earlier = golden.expected["partitions"][partition]["earlier"]
        model = loaded.export(partition, earlier["step"])
        assert model.meta["position"]["journal"] == earlier["step"]
        if golden.to_the_bit:
            assert model.meta["digest"] == earlier["state_digest"]


def test_learner_goes_on_from_there_and_its_books_balance(golden: Golden, loaded: Loaded) -> None:
    goes_on(golden, loaded)


def test_what_is_written_now_is_read_by_the_reader_of_the_formats_page(
    golden: Golden, loaded: Loaded, tmp_path: Path
) -> None:
    go_on(golden, loaded)
    do_what_is_new(loaded)
    early = set()
    for partition in golden.numbers():
        same_journal(loaded, partition)
        newest = newest_generation(loaded, partition)
        assert newest.number > golden.expected["partitions"][partition]["generation"]
        same_snapshot(loaded, partition, newest)
        same_model(loaded, partition, tmp_path / "model.npz")
        early |= {entry["feedback_action"] for entry in newest.of("orphans") if entry["id"] == "named-early"}
    assert early == {2}
    assert refused_feedback(loaded) == ["named-wrong"]


def test_state_that_is_off_by_rounding_is_one_elsewhere_and_not_on_the_machine_of_the_recording() -> None:
    golden = read("0.1.0/soba-small-chunks")
    model = model_file(golden, 0)
    here = golden._replace(expected={**golden.expected, "machine": machine()})
    elsewhere = golden._replace(expected={**golden.expected, "machine": {**machine(), "cpu": "another"}})

    def off_by(factor: float) -> Model:
        return model._replace(state={**model.state, "W": np.asarray(model.state["W"]) * factor})

    for place in (here, elsewhere):
        same_state(place, off_by(1.0), model)
        with pytest.raises(AssertionError):
            same_state(place, off_by(1.0 + 1e-6), model)
    same_state(elsewhere, off_by(1.0 + 1e-12), model)
    with pytest.raises(AssertionError):
        same_state(here, off_by(1.0 + 1e-12), model)


def test_offsets_are_left_out_by_aborted_steps_and_by_the_markers_of_a_kafka() -> None:
    def left_out(name: str) -> dict[str, int]:
        golden = read(f"0.1.0/{name}")
        missing = {topic.removeprefix(golden.prefix): 0 for topic, _ in golden.ends}
        for (topic, partition), end in golden.ends.items():
            found = len(golden.of(topic.removeprefix(golden.prefix), partition))
            missing[topic.removeprefix(golden.prefix)] += end - found
        return missing

    assert left_out("banditron-correct")["journal"] == 0
    assert left_out("soba-diag-two-partitions")["journal"] > 0
    steps = [partition["final"]["step"] for partition in read("0.1.0/kafka").expected["partitions"]]
    assert left_out("kafka")["journal"] >= sum(steps), "a marker for each commit"
