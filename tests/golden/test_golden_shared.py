"""A model that tasks share, as a version left it, is read, recovered, audited, made again, exported, and gone on with.

What is read must come out as it was written, on every machine; arithmetic that is done again, as in
`test_golden_pipelines`.
"""

import pytest

from tests.golden.pipelines import Loaded, facts, model_facts, overflows, same_facts, same_state, shared_model_file
from tests.golden.stored import Golden, names, read
from tests.golden.written_now import goes_on, same_log

NAMES = names(shared=True)


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return read(request.param)


@pytest.fixture
def loaded(golden: Golden) -> Loaded:
    return Loaded(golden)


def test_there_are_golden_pipelines_of_the_first_version_that_had_shared_models() -> None:
    assert NAMES == ["0.2.0/shared-banditron-correct", "0.2.0/shared-late-ucb"]


@pytest.mark.parametrize("snapshots", [True, False], ids=["with snapshots", "without"])
def test_recovery_reads_the_decisions_back_and_gives_the_recorded_tasks(
    golden: Golden, loaded: Loaded, snapshots: bool
) -> None:
    for partition in golden.numbers():
        expected = golden.expected["partitions"][partition]
        recovered = loaded.rebuild(partition, snapshots=snapshots)
        newest = recovered.stored.newest
        assert (newest.number if newest else 0) == (expected["generation"] if snapshots else 0)
        assert recovered.task.settings.model == "shared"
        same_facts(golden, facts(recovered), expected["final"])
        assert overflows(recovered) == expected["overflows"]


def test_audit_finds_the_recorded_ledger_and_one_model(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        finding = loaded.audit(partition)
        assert (finding.ok, finding.faults, finding.foreign) == (True, (), ())
        assert finding.audited._asdict() == golden.expected["partitions"][partition]["final"]["ledger"]
    log, expected = loaded.audit_log(), golden.expected["model"]
    assert (log.faults, log.warnings, log.version) == ((), (), expected["version"])
    assert [replica._asdict() for replica in log.replicas] == expected["replicas"]


def test_every_decision_is_made_again_on_its_version(golden: Golden, loaded: Loaded) -> None:
    for partition in golden.numbers():
        replay, expected = loaded.replay(partition), golden.expected["partitions"][partition]
        assert replay.ok, replay.fault
        if golden.to_the_bit:
            assert (replay.fault, replay.warning, replay.foreign) == ("", "", "")
            assert (replay.steps, replay.snapshot) == (expected["final"]["step"], expected["generation"])
            assert (replay.version, replay.state) == tuple(golden.expected["model"][k] for k in ("version", "sha256"))


def test_snapshot_of_the_model_is_read_as_written_and_is_what_the_log_makes(golden: Golden, loaded: Loaded) -> None:
    expected = golden.expected["model"]
    assert model_facts(loaded.model_snapshot()) == expected["snapshot"]
    for found in (model_facts(loaded.model_of_whole_log()), model_facts(loaded.export(0))):
        assert found | {"sha256": ""} == {name: expected[name] for name in found} | {"sha256": ""}
        if golden.to_the_bit:
            assert found["sha256"] == expected["sha256"]


def test_model_file_is_read_as_written_and_is_what_is_exported_now(golden: Golden, loaded: Loaded) -> None:
    recorded = shared_model_file(golden)
    assert recorded.meta["format"] == 2
    assert model_facts(recorded) == golden.expected["model"]["file"]
    assert recorded.meta["position"]["version"] < golden.expected["model"]["snapshot"]["version"]
    exported = loaded.export(1, version=recorded.meta["position"]["version"])
    assert {**exported.meta, "digest": ""} == {**recorded.meta, "digest": ""}
    same_state(golden, exported, recorded)
    same_state(golden, loaded.export(0, golden.expected["partitions"][0]["earlier"]["step"]), recorded)


def test_learner_goes_on_from_there_and_its_books_balance(golden: Golden, loaded: Loaded) -> None:
    goes_on(golden, loaded)
    log, expected = loaded.audit_log(), golden.expected["model"]
    assert (log.faults, log.warnings) == ((), ())
    assert loaded.model_snapshot().version > expected["version"], "the model's snapshot was gone on with"
    assert [replica.instance for replica in log.replicas] == ["golden", "learner-1", "learner-2"]
    same_log(golden, loaded)
    if golden.to_the_bit:
        for partition in golden.numbers():
            replay = loaded.replay(partition)
            assert (replay.fault, replay.warning, replay.version) == ("", "", log.version)
