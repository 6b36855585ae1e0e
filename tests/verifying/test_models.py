"""Models as of earlier steps: export to files, comparison, replay, and import into a new pipeline."""

import errno
import io
import itertools
import os
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from random import Random
from typing import Any, BinaryIO
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import orjson
import pytest

from consumers.learner.program import LearnerProgram
from onebit.models import time_ms
from onebit.simulation.faulty_broker import FaultyBroker
from producers.data import data_sizes
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import BrokerUnavailableError
from stream.learners import registered
from stream.programs.pipeline_settings import settings_for
from stream.recovery.model_files import Difference, Model, ModelError, compare_models, read_model, write_model
from stream.recovery.recover import pipeline_settings, rebuild
from stream.recovery.state import state_digest, task_digest
from stream.recovery.steps import UnrecoverableError
from stream.settings.definitions import SettingsError
from stream.settings.sources import load_settings
from stream.task.settings import Sharing, TaskSettings
from stream.task.stored_settings import SettingsDifferError
from stream.verifying.models import TooEarlyError, export_model, import_model, import_shared_model
from stream.verifying.reapply import Replay, replay_journal
from stream.wire.control import Replaced
from stream.wire.named_features import Kind, build, to_plain
from stream.wire.records import TopicPartition
from tests.pipeline import TOPICS, Pipeline, offered, plan, run_until_idle, small_synsep, small_task, synsep_task


def run_pipeline(learner: str = "soba-diag", events: int = 60, **changes: Any) -> tuple[Pipeline, LearnerProgram]:
    pipeline = Pipeline(synsep_task(learner, **changes))
    program = pipeline.learner(snapshot_interval_ms=20)
    dataset = small_synsep()
    pipeline.run(
        (pipeline.replay(dataset, events), pipeline.feedback(dataset, plan("lognormal:50ms,1.0", loss=0.1))), program
    )
    return pipeline, program


@pytest.fixture(scope="module")
def run() -> Pipeline:
    return run_pipeline()[0]


@pytest.mark.parametrize("number", [1, 2, 30, 57])
def test_model_at_a_step_equals_a_run_that_stopped_there(run: Pipeline, number: int) -> None:
    model = export_model(run.broker, TOPICS, 0, number=number)
    alone = rebuild(run.broker, TOPICS, 0, until=number, snapshots=False).task
    step = run.journal()[number - 1]
    assert model.meta["digest"] == state_digest([alone.learner.state()]) == state_digest([model.state])
    assert model.meta["position"] == {
        "topics": "test.", "partition": 0, "journal": number, "contexts": step.contexts[1],
        "feedback": step.feedback[1], "watermark_ms": alone.join.stream_ms,
    }  # fmt: skip
    assert (model.meta["learner"], model.meta["updates"]) == ("soba-diag", step.updates)


def test_model_at_a_time_is_that_of_the_last_step_until_this_time(run: Pipeline) -> None:
    records = run.records(TOPICS.journal)
    times = [record.append_ms for record in records]
    for at_ms in (times[0], times[7], times[20] + 1, times[-1], times[-1] + 1_000_000):
        expected = sum(time <= at_ms for time in times)
        assert export_model(run.broker, TOPICS, 0, at_ms=at_ms).meta["position"]["journal"] == expected
    with pytest.raises(TooEarlyError) as early:
        export_model(run.broker, TOPICS, 0, at_ms=999)
    assert (early.value.place, early.value.first_ms) == (f"{TOPICS.journal}/0", times[0])


def test_model_of_a_missing_step_is_rejected(run: Pipeline) -> None:
    with pytest.raises(ModelError):
        export_model(run.broker, TOPICS, 0, number=100_000)
    with pytest.raises(ModelError):
        export_model(Pipeline(small_task()).broker, TOPICS, 0)


def test_export_of_a_model_writes_no_records(run: Pipeline) -> None:
    before = run.ends()
    export_model(run.broker, TOPICS, 0)
    assert run.ends() == before


@pytest.mark.parametrize(
    "settings",
    [*(small_task(name) for name in sorted(registered())), small_task("late-ucb", scale="standard")],
    ids=lambda settings: f"{settings.learner}, scale {settings.scale}",
)
def test_model_that_is_read_from_a_file_equals_the_written_model(settings: TaskSettings, tmp_path: Path) -> None:
    pipeline = Pipeline(settings)
    pipeline.context("a", 1, 2, **offered(settings))
    run_until_idle(pipeline.learner())
    model = export_model(pipeline.broker, TOPICS, 0)
    write_model(tmp_path / "a.npz", model)
    again = read_model(tmp_path / "a.npz")
    assert again.meta == orjson.loads(orjson.dumps(model.meta))
    assert state_digest([again.state]) == state_digest([model.state])
    assert state_digest([again.learner().state()]) == state_digest([model.state])
    assert {name: type(value) for name, value in again.state.items()} == {
        name: type(value) for name, value in model.state.items()
    }


def test_invalid_or_modified_model_file_is_rejected(run: Pipeline, tmp_path: Path) -> None:
    model = export_model(run.broker, TOPICS, 0)
    (tmp_path / "text.npz").write_text("no")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    write_model(tmp_path / "later.npz", Model({**model.meta, "format": 2}, model.state))
    write_model(tmp_path / "changed.npz", Model(model.meta, {**model.state, "extra": np.ones(2)}))
    for name in ("missing", "text", "other", "later", "changed"):
        with pytest.raises(ModelError):
            read_model(tmp_path / f"{name}.npz")
    with pytest.raises(ModelError):
        write_model(tmp_path / "no" / "such.npz", model)


def test_missing_model_file_is_reported_in_the_words_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"got No such file or directory$"):
        read_model(tmp_path / "missing.npz")


def test_existing_model_file_remains_if_writing_fails(
    run: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    before = export_model(run.broker, TOPICS, 0, number=5)
    write_model(path, before)

    def full(file: BinaryIO, **arrays: Any) -> None:
        file.write(b"PK half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(ModelError):
        write_model(path, export_model(run.broker, TOPICS, 0))
    assert read_model(path).meta["digest"] == before.meta["digest"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npz"]


def test_export_at_a_time_fails_during_a_broker_outage(run: Pipeline) -> None:
    calls = itertools.count()

    def consult(call: str) -> None:
        assert next(calls) < 10_000, "the export does not stop polling"

    with pytest.raises(BrokerUnavailableError):
        export_model(FaultyBroker(run.broker, "export", consult, dry_every=1), TOPICS, 0, at_ms=2_000)


def test_comparison_of_models_reports_differing_arrays_and_the_maximum_difference() -> None:
    metas: list[dict[str, Any]] = [{"open_classes": True, "classes": classes} for classes in (["a", "b"], ["b", "a"])]
    first = Model(metas[0], {"W": np.array([[1.0, 2.0, np.nan]]), "n": 3, "only": np.ones(2), "zero": np.array([0.0])})
    second = Model(metas[1], {"W": np.array([[1.0, 2.5, np.nan]]), "n": 3, "W2": np.ones(2), "zero": np.array([-0.0])})
    found = {difference.name: difference for difference in compare_models(first, second)}
    assert found["W"] == Difference("W", ((1, 3), (1, 3)), 1, 0.5)
    assert found["n"] == Difference("n", ((), ()), 0, 0.0)
    assert (found["only"].shapes, found["only"].same) == (((2,), None), False)
    assert found["classes"].differing == 2
    assert (found["zero"].differing, found["zero"].greatest) == (1, 0.0)
    assert all(difference.same for difference in compare_models(first, first))


def imported(model: Model, **changes: Any) -> Pipeline:
    pipeline = Pipeline(synsep_task(**changes))
    import_model(pipeline.broker, TOPICS, 0, model, "import")
    return pipeline


def continue_run(pipeline: Pipeline, start: int, events: int) -> LearnerProgram:
    program = pipeline.learner(snapshot_interval_ms=20)
    dataset = small_synsep()
    sources = (pipeline.replay(dataset, start + events, start=start), pipeline.feedback(dataset, plan()))
    pipeline.run(sources, program)
    return program


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_learner_recovery_and_replay_begin_with_the_imported_model(scale: str) -> None:
    model = export_model(run_pipeline(scale=scale)[0].broker, TOPICS, 0)
    pipeline = imported(model, scale=scale)
    first = pipeline.learner()
    first.step(0)
    assert state_digest([first.tasks[0].learner.state()]) == model.meta["digest"]
    first.close()
    program = continue_run(pipeline, 60, 60)
    assert pipeline.values(TOPICS.predictions)[0]["model_version"] == model.meta["updates"]
    found = rebuild(pipeline.broker, TOPICS, 0)
    assert found.stored.newest is not None
    alone = rebuild(pipeline.broker, TOPICS, 0, snapshots=False)
    assert task_digest(alone.task) == task_digest(found.task) == task_digest(program.tasks[0])
    fresh = continue_run(Pipeline(synsep_task(scale=scale)), 60, 60)
    assert task_digest(fresh.tasks[0]) != task_digest(program.tasks[0])
    replay = replay_journal(pipeline.broker, TOPICS, 0)
    assert replay.ok
    assert replay.snapshot == found.stored.newest.number
    assert pipeline.audits()[0].ok


def test_model_without_a_learner_parameter_is_rejected(run: Pipeline) -> None:
    model = export_model(run.broker, TOPICS, 0)
    without = {name: value for name, value in model.meta["parameters"].items() if name != "margin"}
    with pytest.raises(ModelError):
        imported(model._replace(meta={**model.meta, "parameters": without}))


def test_model_can_be_imported_only_before_the_first_step(run: Pipeline) -> None:
    model = export_model(run.broker, TOPICS, 0)
    before = run.ends()
    with pytest.raises(ModelError):
        import_model(run.broker, TOPICS, 0, model, "import")
    assert run.ends() == before
    pipeline = imported(model)
    with pytest.raises(ModelError):
        import_model(pipeline.broker, TOPICS, 0, model, "import")


def test_learner_waits_for_an_import_in_progress() -> None:
    pipeline = Pipeline(synsep_task())
    producer = pipeline.broker.transactional_producer("import")
    producer.begin()
    producer.send(TOPICS.snapshots, 0, b"0/import/0", b"")
    program = pipeline.learner()
    program.step(0)
    assert program.tasks == {}
    producer.abort()
    program.step(0)
    assert list(program.tasks) == [0]


def test_idle_learner_uses_a_model_that_is_imported_before_its_first_event(run: Pipeline) -> None:
    model = export_model(run.broker, TOPICS, 0)
    pipeline = Pipeline(synsep_task())
    waiting = pipeline.learner()
    run_until_idle(waiting)
    import_model(pipeline.broker, TOPICS, 0, model, "import")
    pipeline.context("first", 1)
    run_until_idle(waiting)
    assert pipeline.values(TOPICS.predictions)[0]["model_version"] == model.meta["updates"]
    assert replay_journal(pipeline.broker, TOPICS, 0).ok


def test_learner_that_differs_from_the_imported_model_is_rejected(run: Pipeline) -> None:
    model = export_model(run.broker, TOPICS, 0)
    pipeline = imported(model)
    with pytest.raises(SettingsDifferError) as raised:
        run_until_idle(pipeline.learner(settings=synsep_task("banditron")))
    assert raised.value.differences == {"learner": Replaced("soba-diag", "banditron")}


NAMED: dict[str, Any] = {
    "class_names": ("hats", "shoes", "bags"),
    "features": to_plain(build({"age": (Kind.NUMERIC, None), "device": (Kind.CATEGORICAL, ["a", "b", "c"])}, 8)),
}


def named_model(learner: str = "banditron") -> Model:
    """The model of a pipeline whose classes and features have names."""
    pipeline = Pipeline(small_task(learner, **NAMED))
    pipeline.context("a", 1, 2)
    run_until_idle(pipeline.learner())
    return export_model(pipeline.broker, TOPICS, 0)


@pytest.mark.parametrize("model", ["own", "shared"])
def test_pipeline_with_an_imported_model_has_its_names_of_classes_and_features(model: Sharing, tmp_path: Path) -> None:
    write_model(tmp_path / "model.npz", named_model("late-ucb"))
    pipeline = Pipeline(small_task("late-ucb", model=model))
    import_into = {"own": import_model, "shared": import_shared_model}[model]
    import_into(pipeline.broker, TOPICS, 0 if model == "own" else 1, read_model(tmp_path / "model.npz"), "import")
    stored = pipeline_settings(pipeline.broker, TOPICS, 1).settings
    flags = {"learner": ["late-ucb"], "n_classes": 3, "n_features": 4}
    holdout = {"holdout": 0.5, "holdout_policy": f"model:{tmp_path / 'model.npz'}"}
    task = settings_for(load_settings({**flags, **holdout}), stored, "journal", sizes_of=data_sizes).task
    assert {name: getattr(task, name) for name in NAMED} == NAMED
    run_until_idle(pipeline.learner(settings=task, given=frozenset()))
    pipeline.send(TOPICS.contexts, b'{"id": "a", "x": {"age": 3, "device": "b"}, "eligible": ["bags"]}')
    run_until_idle(pipeline.learner(settings=task, given=frozenset()))
    assert pipeline.values(TOPICS.predictions)[0]["class"] == "bags"
    assert replay_journal(pipeline.broker, TOPICS, 0).ok


def test_imported_model_without_names_can_be_used_with_names() -> None:
    pipeline = Pipeline(small_task())
    pipeline.context("a", 1, 2)
    run_until_idle(pipeline.learner())
    named = Pipeline(small_task())
    import_model(named.broker, TOPICS, 0, export_model(pipeline.broker, TOPICS, 0), "import")
    run_until_idle(learner := named.learner(settings=small_task(**NAMED)))
    assert learner.tasks[0].settings.class_names == NAMED["class_names"]


def test_learner_with_other_class_names_than_the_imported_model_is_rejected() -> None:
    pipeline = Pipeline(small_task())
    import_model(pipeline.broker, TOPICS, 0, named_model(), "import")
    with pytest.raises(SettingsDifferError) as raised:
        run_until_idle(pipeline.learner(settings=small_task(**NAMED | {"class_names": ("shoes", "hats", "bags")})))
    assert list(raised.value.differences) == ["class_names"]


def test_imported_model_with_the_wrong_size_or_number_of_names_is_rejected(run: Pipeline) -> None:
    model = export_model(run.broker, TOPICS, 0)
    for wrong in ({"n_features": 7}, {"settings": {**model.meta["settings"], "class_names": ["a", "b"]}}):
        with pytest.raises(ModelError):
            import_model(
                Pipeline(small_task()).broker, TOPICS, 0, Model({**model.meta, **wrong}, model.state), "import"
            )


def test_recovery_fails_if_the_imported_model_is_missing(run: Pipeline) -> None:
    pipeline = imported(export_model(run.broker, TOPICS, 0))
    continue_run(pipeline, 60, 10)
    pipeline.broker.delete_topics([TOPICS.snapshots])
    pipeline.broker.create_topics(TOPICS.specs(1))
    with pytest.raises(UnrecoverableError) as raised:
        run_until_idle(pipeline.learner())
    assert raised.value.place == "test.journal/0"


def test_replay_of_the_whole_journal_equals_recovery() -> None:
    pipeline, program = run_pipeline(events=40)
    replay = replay_journal(pipeline.broker, TOPICS, 0)
    assert replay.ok
    assert replay.steps == pipeline.journal()[-1].number
    assert 0 < replay.snapshot <= replay.steps
    assert replay.replayed == task_digest(program.tasks[0])
    assert replay.state == state_digest([program.tasks[0].learner.state()])
    nothing = replay_journal(Pipeline(small_task()).broker, TOPICS, 0)
    assert nothing.ok
    assert nothing == Replay(0, 0, 0, "", "", "", "")


def test_replay_detects_a_snapshot_that_differs_from_the_journal() -> None:
    pipeline, program = run_pipeline(events=40)
    program.tasks[0].learner.update(*_right_answer(program))
    pipeline.clock.advance_to(pipeline.now_ms() + 1_000)
    pipeline.context("last", 1)
    run_until_idle(program)
    pipeline.context("very-last", 1)
    run_until_idle(program)
    assert not replay_journal(pipeline.broker, TOPICS, 0).ok


def test_replay_detects_a_prediction_that_differs_from_the_journal() -> None:
    pipeline, program = run_pipeline(events=40)
    program.close()
    program = pipeline.learner(snapshot_interval_ms=0)
    run_until_idle(program)
    program.tasks[0].learner.load({**program.tasks[0].learner.state(), "W": program.tasks[0].learner.weights() + 1.0})
    pipeline.context("after", 1)
    run_until_idle(program)
    replay = replay_journal(pipeline.broker, TOPICS, 0)
    assert replay.fault.startswith("test.predictions/0 offset 40: ")


@pytest.mark.parametrize("topic", [TOPICS.predictions, TOPICS.examples])
def test_replay_rejects_a_duplicate_of_a_published_record(topic: str) -> None:
    pipeline, _ = run_pipeline(events=40)
    last = pipeline.records(topic)[-1]
    pipeline.broker.producer().send(topic, 0, last.key, last.value, last.headers)
    added = pipeline.records(topic)[-1].offset
    assert f"{topic}/0 offset {added}: " in replay_journal(pipeline.broker, TOPICS, 0).fault


def _right_answer(program: LearnerProgram) -> Any:
    x = np.ones(program.tasks[0].learner.n_features)
    return x, program.tasks[0].learner.predict(x, 0.0), 1


def test_replay_after_deleted_inputs_starts_at_a_snapshot() -> None:
    pipeline, program = run_pipeline(events=40)
    pipeline.broker.delete_records(TopicPartition(TOPICS.contexts, 0), 3)
    replay = replay_journal(pipeline.broker, TOPICS, 0)
    assert replay.ok
    assert (replay.start, replay.steps) == (pipeline.generations()[-2], pipeline.journal()[-1].number - replay.start)
    assert replay.replayed == task_digest(program.tasks[0])


def test_replay_reports_deleted_inputs_that_no_snapshot_replaces() -> None:
    pipeline, _ = run_pipeline(events=40)
    pipeline.broker.delete_records(TopicPartition(TOPICS.contexts, 0), 3)
    pipeline.broker.delete_topics([TOPICS.snapshots])
    pipeline.broker.create_topics(TOPICS.specs(1))
    replay = replay_journal(pipeline.broker, TOPICS, 0)
    assert replay.fault.startswith("test.contexts/0: ")
    assert replay == Replay(0, 0, 0, "", "", "", replay.fault)


def test_time_can_be_given_with_a_zone_in_utc_or_in_milliseconds() -> None:
    assert (
        time_ms("2026-03-01T12:00:00Z")
        == time_ms("2026-03-01T13:00:00+01:00")
        == time_ms("2026-03-01T12:00")
        == 1_772_366_400_000
    )
    assert time_ms("1772366400000") == 1_772_366_400_000
    with pytest.raises(SettingsError):
        time_ms("noon")


@pytest.fixture(scope="module")
def model() -> Model:
    pipeline = Pipeline(small_task())
    pipeline.context("a", 1, 2)
    run_until_idle(pipeline.learner())
    return export_model(pipeline.broker, TOPICS, 0)


def rewritten(source: Path, target: Path, change: Callable[[ZipInfo, bytes], bytes], method: int = ZIP_STORED) -> Path:
    """Copy a model file, and change its members."""
    with ZipFile(source) as old, ZipFile(target, "w", method) as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member, old.read(member)))
    return target


def with_shape(shape: tuple[int, ...]) -> Callable[[ZipInfo, bytes], bytes]:
    def change(member: ZipInfo, content: bytes) -> bytes:
        if member.filename == "meta.npy":
            return content
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
        return header.getvalue() + b"\0" * 64

    return change


@pytest.mark.parametrize("shape", [(10**12,), (2**62,), (2**32, 2**32), (-1,), (7,)], ids=lambda _: "")
def test_array_whose_shape_does_not_fit_the_file_is_rejected(
    model: Model, shape: tuple[int, ...], tmp_path: Path
) -> None:
    write_model(tmp_path / "a.npz", model)
    with pytest.raises(ModelError):
        read_model(rewritten(tmp_path / "a.npz", tmp_path / "b.npz", with_shape(shape)))


@pytest.mark.parametrize("method", [ZIP_DEFLATED, ZIP_BZIP2, ZIP_LZMA])
def test_compressed_model_file_is_rejected_without_being_expanded(model: Model, method: int, tmp_path: Path) -> None:
    write_model(tmp_path / "a.npz", model)
    large = rewritten(tmp_path / "a.npz", tmp_path / "b.npz", lambda *_: b"\0" * 20_000_000, method)
    tracemalloc.start()
    with pytest.raises(ModelError):
        read_model(large)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5_000_000


def test_members_that_share_bytes_are_rejected(model: Model, tmp_path: Path) -> None:
    write_model(tmp_path / "a.npz", model)
    with ZipFile(tmp_path / "a.npz", "a") as archive:
        whole = archive.infolist()[0]
        for number in range(2_000):
            member = copy(whole)
            member.filename = f"state.{number}.npy"
            archive.filelist.append(member)
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(ModelError):
        read_model(tmp_path / "a.npz")


def test_damaged_model_file_is_rejected_or_unchanged(model: Model, tmp_path: Path) -> None:
    write_model(tmp_path / "a.npz", model)
    content, random = (tmp_path / "a.npz").read_bytes(), Random(0)
    path = tmp_path / "b.npz"
    for _ in range(500):
        damaged = bytearray(content)
        for _ in range(random.choice((1, 1, 2, 20))):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(damaged[: random.choice((len(damaged), random.randrange(len(damaged))))])
        with suppress(OnebitError):  # any other error fails the test
            found = read_model(path)
            found.learner()
            assert state_digest([found.state]) == model.meta["digest"]


@pytest.mark.parametrize(
    "meta",
    [
        {"n_features": 10**12}, {"n_classes": 10**9}, {"n_features": -1}, {"n_features": "4"}, {"n_features": None},
        {"n_classes": 10**30}, {"learner": 5}, {"learner": "none"}, {"parameters": 7}, {"parameters": {"gamma": []}},
        {"n_features": 2.5}, {"n_classes": True},
    ],
    ids=str,
)  # fmt: skip
def test_model_with_invalid_meta_is_rejected_before_memory_is_allocated(model: Model, meta: dict[str, Any]) -> None:
    tracemalloc.start()
    with pytest.raises(OnebitError) as raised:
        Model({**model.meta, **meta}, model.state).learner()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert raised.value.exit_code is ExitCode.USAGE
    assert peak_bytes < 5_000_000


def test_model_file_that_is_not_a_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(ModelError):
            read_model(path)
