"""docs/formats.md is true of a shared model: a reader written from it alone finds in golden files what was recorded."""

import json
from hashlib import sha256
from typing import Any

import pytest

from tests.golden import format_reader
from tests.golden.format_reader import Generation, Journal, LaterVersionError, model_file, state_digest
from tests.golden.log_reader import PartsMissingError, Update, model_log
from tests.golden.stored import Golden, GoldenRecord, names, read

NAMES = names(shared=True)


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return read(request.param)


def fields(record: GoldenRecord) -> dict[str, Any]:
    return dict(json.loads(record.value or b"null"))


def journals(golden: Golden) -> list[Journal]:
    return [
        format_reader.journal(
            (dict(record.headers)["onebit-version"], record.value or b"") for record in golden.of("journal", partition)
        )
        for partition in golden.numbers()
    ]


def raw_log(golden: Golden) -> list[tuple[int, bytes | None, bytes]]:
    return [
        (record.offset, dict(record.headers).get("onebit-version"), record.value or b"")
        for record in golden.of("updates", 0)
    ]


def log(golden: Golden) -> list[Update]:
    return model_log(raw_log(golden))


def newest(golden: Golden) -> Generation:
    chunks = ((record.key, record.value) for record in golden.of("snapshots", 0))
    return max(format_reader.whole_generations(chunks, of_model=True), key=lambda found: found.number)


def test_records_of_updates_have_no_key_and_the_header_of_their_format(golden: Golden) -> None:
    records = golden.of("updates", 0)
    assert {(record.key, record.headers) for record in records} == {(None, (("onebit-version", b"1"),))}
    assert {topic for topic, partition in golden.ends if partition == 0} - {
        topic for topic, partition in golden.ends if partition == 1
    } == {f"{golden.prefix}updates"}


def test_log_holds_what_the_journals_say_of_it(golden: Golden) -> None:
    found, version_at = log(golden), {0: 0}
    version_at |= {update.offset + 1: update.version for update in found}
    assert found[-1].version == golden.expected["model"]["version"]
    wrote = {(update.partition, update.step): len(update.entries) for update in found}
    told = {}
    for partition, journal in enumerate(journals(golden)):
        assert journal.settings["model"] == "shared"
        follows = 0
        for step in journal.steps:
            assert step.log is not None
            assert step.log["follows"] == follows
            assert step.updates == max(
                version for offset, version in version_at.items() if offset <= step.log["offset"]
            )
            if step.log["entries"]:
                told[partition, step.n] = step.log["entries"]
                follows = step.n
    assert wrote == told


def test_journals_know_the_predictions_of_each_step_and_the_version_that_they_were_made_on(golden: Golden) -> None:
    for partition, journal in enumerate(journals(golden)):
        for step in journal.steps:
            records = [
                record for record in golden.of("predictions", partition)
                if dict(record.headers)["onebit-step"] == b"%d" % step.n
            ]  # fmt: skip
            digest = sha256(b"".join(record.value or b"" for record in records)).hexdigest()
            assert step.log is not None
            assert (step.log["predictions"], step.log["sha256"]) == (len(records), digest)
            assert {fields(record)["model_version"] for record in records} <= {step.updates}


def test_entries_are_what_the_steps_decided_and_settled(golden: Golden) -> None:
    kinds: dict[int, int] = {0: 0, 1: 0, 2: 0}
    for partition in golden.numbers():
        entries = [entry for update in log(golden) if update.partition == partition for entry in update.entries]
        decided = [fields(record) for record in golden.of("predictions", partition)]
        examples = [fields(record) for record in golden.of("examples", partition)]
        of_kind = {kind: [entry for entry in entries if entry["kind"] == kind] for kind in kinds}
        for kind in kinds:
            kinds[kind] += len(of_kind[kind])
        same = ("action", "greedy", "propensity")
        published = [
            [*(made[name] for name in same), made["scores"] + made.get("logged", []), features(golden, partition, made)]
            for made in decided
        ]
        if "late-ucb" in golden.path.name:  # whose decisions move the model
            assert [[*(entry[name] for name in (*same, "scores", "x"))] for entry in of_kind[0]] == published
            assert {entry["reward"] for entry in of_kind[0]} == {-1}
        taught = [example for example in examples if example["reward"] is not None]
        assert [(entry["action"], entry["reward"]) for entry in of_kind[1]] == [
            (example["action"], example["reward"]) for example in taught
        ]
        assert all([*(entry[name] for name in (*same, "scores", "x"))] in published for entry in of_kind[1])
        assert {(entry["assumed"], entry["reward"]) for entry in of_kind[2]} <= {(0, 1), (0, 0)}
        late = journals(golden)[partition].steps[-1].ledger["late"]
        assert len(of_kind[2]) <= late
    assert bool(kinds[0]) == ("late-ucb" in golden.path.name)
    assert bool(kinds[2]) == ("correct" in golden.path.name)


def features(golden: Golden, partition: int, prediction: dict[str, Any]) -> dict[int, float]:
    (context,) = [
        record for record in golden.of("contexts", partition) if record.offset == prediction["context_offset"]
    ]
    x = fields(context)["x"]
    if isinstance(x, list):
        return {index: value for index, value in enumerate(x) if value != 0}
    return dict(zip(x["i"], x.get("v", [1.0] * len(x["i"])), strict=True))


def test_journals_tell_the_replicas_which_are_equal_at_equal_versions(golden: Golden) -> None:
    told = [
        (step.replica, step.updates)
        for journal in journals(golden)
        for step in journal.steps
        if step.replica is not None
    ]
    assert {frozenset(replica) for replica, _ in told} == {frozenset({"instance", "sha256", "processor", "versions"})}
    assert {replica["instance"] for replica, _ in told} == {"learner-1", "learner-2"}
    assert all(journal.steps[0].replica is not None for journal in journals(golden))
    by_version = {version: replica["sha256"] for replica, version in told}
    assert {(version, replica["sha256"]) for replica, version in told} == set(by_version.items())
    expected = golden.expected["model"]
    for known in (expected, expected["snapshot"], expected["file"]):
        assert by_version.get(known["version"], known["sha256"]) == known["sha256"]
    assert [(replica["version"], replica["sha256"]) for replica in expected["replicas"]] == [
        max((version, replica["sha256"]) for replica, version in told if replica["instance"] == instance)
        for instance in ("learner-1", "learner-2")
    ]


def test_newest_snapshot_of_the_model_holds_its_version_and_the_place_in_the_log(golden: Golden) -> None:
    found, expected = newest(golden), golden.expected["model"]["snapshot"]
    state = found.state
    assert (found.number, found.format) == (state["version"], 3)
    assert [section.name for section in found.sections][:: len(found.sections) - 1] == ["model", "end"]
    assert {**{name: state[name] for name in ("version", "offset", "updates")},
            "sha256": state_digest(found.learner())} == expected  # fmt: skip
    settings = journals(golden)[0].settings
    assert state["settings"] == {name: settings[name] for name in format_reader.MODEL_SETTINGS}
    before = [update for update in log(golden) if update.offset < state["offset"]]
    assert before[-1].version == state["version"]
    places = []
    for partition in golden.numbers():
        of_task = [update for update in before if update.partition == partition]
        decided = sum(entry["kind"] == 0 for update in of_task for entry in update.entries)
        places.append([partition, of_task[-1].step, of_task[-1].part + 1, decided])
    assert state["places"] == places


def test_model_file_of_format_2_holds_a_version_of_the_model(golden: Golden) -> None:
    meta, state = model_file(golden.path / "model.npz")
    expected, settings = golden.expected["model"]["file"], journals(golden)[0].settings
    assert (meta["format"], meta["updates"], meta["digest"]) == (2, expected["updates"], expected["sha256"])
    assert meta["position"] == {
        "topics": golden.prefix, "version": expected["version"], "offset": expected["offset"]
    }  # fmt: skip
    assert "ledger" not in meta
    assert state_digest(state) == meta["digest"]
    assert format_reader.settings(meta["settings"]) == settings
    assert expected["version"] in {update.version for update in log(golden)}


def test_reader_passes_over_what_came_twice_or_from_others_and_knows_when_records_are_missing() -> None:
    golden = read(NAMES[0])
    records = raw_log(golden)
    found = model_log(records)
    foreign = (records[3][0], None, b"hello")
    assert model_log([*records[:5], records[4], foreign, *records[5:]]) == found
    with pytest.raises(PartsMissingError):
        model_log(records[1:])
    with pytest.raises(LaterVersionError, match="format 2"):
        model_log([*records, (records[-1][0] + 1, b"2", records[-1][2])])
