"""`onebit change --from`: challengers that start with a model file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import onebit as api
from stream.errors import ExitCode
from stream.kafka.port import Broker
from stream.recovery.control import read_requests
from stream.recovery.model_files import read_model, write_model
from stream.recovery.recover import rebuild, recover
from stream.recovery.state import state_digest, task_digest
from stream.task.carry import members_of
from stream.task.stored_settings import NAMES
from stream.verifying.models import replica_at
from stream.verifying.reapply import replay_journal
from stream.verifying.shared_log import audit_log
from stream.wire.codec import HEADERS
from stream.wire.control import MODEL_HEADER, encode_model, model_digest
from tests.cli.conftest import Onebit
from tests.pipeline import N_CLASSES, N_FEATURES, TOPICS, Pipeline, run_until_idle, small_task
from tests.recovery.test_live_changes import dense, traffic

NAME = "late-ucb:m=2"
ADD = ("--challenger", NAME, "--yes", "--no-wait")


def model_file(path: Path, n_features: int = N_FEATURES) -> Path:
    """Write a model that was trained with labels."""
    x = np.random.default_rng(5).normal(size=(200, n_features))
    labels = x[:, :N_CLASSES].argmax(axis=1)
    write_model(path, api.train((x, labels), "late-ucb", param=["m=2"]).model)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return model_file(tmp_path / "start.npz")


@pytest.fixture
def pipeline(on_broker: Callable[[Broker], None]) -> Pipeline:
    made = Pipeline(small_task("banditron", floor=0.1))
    made.context("first", 1)
    run_until_idle(made.learner())
    on_broker(made.broker)
    return made


def parts(pipeline: Pipeline) -> list[int]:
    """Return the sizes of the model files' records."""
    return [len(one.value or b"") for one in pipeline.records(TOPICS.control) if MODEL_HEADER in dict(one.headers)]


def listed(onebit: Onebit) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(onebit("changes", "--json").out)
    return found


def test_challenger_starts_with_the_file(pipeline: Pipeline, onebit: Onebit, path: Path) -> None:
    result = onebit("change", *ADD, "--from", str(path))
    assert result.code == ExitCode.OK, result.err
    assert f"{path.stat().st_size:,} bytes" in " ".join(result.out.split())
    assert sum(parts(pipeline)) == path.stat().st_size
    run_until_idle(pipeline.learner(given=()))
    challenger = members_of(rebuild(pipeline.broker, TOPICS, 0).task.learner)[1]
    assert state_digest([challenger.state()]) == read_model(path).meta["digest"]
    (change,) = listed(onebit)
    assert change["changes"]["started_from"] == {"from": {}, "to": {NAME: model_digest(path.read_bytes())}}
    assert (change["steps"].keys(), change["refusal"]) == ({"0"}, None)


def test_file_has_the_names_of_the_pipeline(
    on_broker: Callable[[Broker], None], onebit: Onebit, tmp_path: Path
) -> None:
    rows = [{"c": ("a", "b", "c")[number % 3], "price": number % 3 - 1.0} for number in range(30)]
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    model = api.train(log, "late-ucb", map="label=c,numeric=price", param=["m=2"]).model
    write_model(tmp_path / "start.npz", model)
    named = replace(model.start().settings, learner="banditron", parameters={})
    made = Pipeline(replace(small_task(), **{name: getattr(named, name) for name in ("n_features", *NAMES)}))
    made.send(TOPICS.contexts, b'{"id": "a", "x": {"price": 1}}')
    run_until_idle(made.learner())
    on_broker(made.broker)
    result = onebit("change", *ADD, "--from", str(tmp_path / "start.npz"))
    assert result.code == ExitCode.OK, result.err
    run_until_idle(made.learner(given=()))
    assert made.journal()[-1].refused == ()


def test_recovery_replay_and_audit_follow_a_challenger_with_a_model_until_it_decides_alone(
    pipeline: Pipeline, onebit: Onebit, path: Path
) -> None:
    traffic(pipeline, range(60), dense)
    assert onebit("change", *ADD, "--from", str(path)).code == ExitCode.OK
    traffic(pipeline, range(60, 130), dense)
    flags = ("--champion", NAME, "--remove-learner", "banditron", "--yes", "--no-wait")
    assert onebit("change", *flags).code == ExitCode.OK
    traffic(pipeline, range(130, 190), dense)
    started = [step.settings.started_from for step in pipeline.journal() if step.settings is not None]
    assert started == [{}, {NAME: model_digest(path.read_bytes())}, {}]
    replayed = replay_journal(pipeline.broker, TOPICS, 0)
    assert replayed.ok, replayed
    (finding,) = pipeline.audits()
    assert finding.ok, finding


def test_shared_model_has_a_challenger_with_a_model_in_all_replicas(
    on_broker: Callable[[Broker], None], onebit: Onebit, path: Path
) -> None:
    pipeline = Pipeline(small_task("banditron", model="shared"), partitions=2)
    on_broker(pipeline.broker)
    for begin in (0, 20, 40):
        program = pipeline.learner(given=())
        for number in range(begin, begin + 20):
            pipeline.context(f"event-{number}", number % 4)
            run_until_idle(program)
            pipeline.answer(f"event-{max(0, number - 3)}", number % 2)
        run_until_idle(program)
        program.close()
        if begin == 0:
            assert onebit("change", *ADD, "--from", str(path)).code == ExitCode.OK
    for partition in range(2):
        replayed = replay_journal(pipeline.broker, TOPICS, partition)
        assert replayed.ok, replayed
        settings = rebuild(pipeline.broker, TOPICS, partition).task.settings
        assert settings.started_from == {NAME: model_digest(path.read_bytes())}
    assert audit_log(pipeline.broker, TOPICS, 2).ok
    replica = replica_at(pipeline.broker, TOPICS, pipeline.settings)
    challenger = members_of(replica.learner)[1]
    counts = [np.sum(state["N"]) for state in (challenger.state(), read_model(path).state)]
    assert counts[0] > counts[1] > 0


def test_new_task_begins_with_the_model(pipeline: Pipeline, onebit: Onebit, path: Path) -> None:
    assert onebit("change", *ADD, "--from", str(path)).code == ExitCode.OK
    requests = read_requests(pipeline.broker, TOPICS)
    begin = requests.after(pipeline.settings, 0)
    other = Pipeline(begin.settings)
    for record in pipeline.records(TOPICS.control):
        other.broker.producer().send(TOPICS.control, 0, record.key, record.value, record.headers)
    new = recover(other.broker, TOPICS, 0, begin.settings, given=(), begin=begin)
    assert state_digest([members_of(new.task.learner)[1].state()]) == read_model(path).meta["digest"]
    other.context("a", 1)
    program = other.learner(begin=begin)
    run_until_idle(program)
    assert task_digest(rebuild(other.broker, TOPICS, 0, snapshots=False).task) == task_digest(program.tasks[0])


def test_file_is_sent_once(pipeline: Pipeline, onebit: Onebit, path: Path) -> None:
    for flags in (ADD, ("--remove-learner", NAME, "--yes", "--no-wait"), ADD):
        start = ("--from", f"{NAME}={path}") if flags is ADD else ()
        assert onebit("change", *flags, *start).code == ExitCode.OK
    assert sum(parts(pipeline)) == path.stat().st_size
    run_until_idle(pipeline.learner(given=()))
    assert [one["refusal"] for one in listed(onebit)] == [None] * 3


@pytest.mark.parametrize(
    "flags",
    [
        ("--from", "{path}"),  # no challenger is added
        ("--challenger", "late-ucb", "--from", "{path}"),  # the model has m=2
        ("--challenger", "igw-logistic", "--from", "{path}"),
        ("--challenger", NAME, "--from", "{path}", "--from", "{path}"),
        ("--challenger", NAME, "--challenger", "igw-logistic", "--from", "{path}"),
        ("--challenger", NAME, "--from", "{wide}"),
        ("--challenger", NAME, "--from", "{path}.missing"),
    ],
    ids=str,
)
def test_file_that_does_not_fit_is_rejected_before_it_is_sent(
    pipeline: Pipeline, onebit: Onebit, path: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    wide = model_file(tmp_path / "wide.npz", N_FEATURES + 1) if "{wide}" in flags else path
    given = [flag.format(path=path, wide=wide) for flag in flags]
    assert onebit("change", *given, "--yes", "--no-wait").code == ExitCode.USAGE
    assert pipeline.records(TOPICS.control) == []


@pytest.mark.parametrize("content", ["missing part", "other content", "part out of order", "later", "no model"])
def test_tasks_refuse_a_request_whose_model_they_cannot_read(pipeline: Pipeline, onebit: Onebit, content: str) -> None:
    data = bytes(1_200_000)
    sent = list(encode_model(data))
    if content == "missing part":
        del sent[1]
    elif content == "other content":
        sent[1] = (sent[1][0], b"x", sent[1][2])
    elif content == "part out of order":
        sent[0], sent[1] = sent[1], sent[0]

    def send() -> None:
        for key, value, headers in sent:
            pipeline.broker.producer().send(TOPICS.control, 0, key, value, headers)

    if content != "later":
        send()
    request = pipeline.request(
        challengers={NAME: {"m": 2}}, started_from={NAME: model_digest(data)}, champion="banditron"
    )
    send()
    run_until_idle(pipeline.learner(given=()))
    (one,) = listed(onebit)
    assert (one["id"], one["refusal"] is None) == (request.id, False)
    assert pipeline.journal()[-1].refused
    (finding,) = pipeline.audits()
    assert finding.ok, finding


def test_interrupted_upload_can_be_repeated(pipeline: Pipeline) -> None:
    data = bytes(1_200_000)
    sent = list(encode_model(data))
    for key, value, headers in (*sent[:2], *sent):
        pipeline.broker.producer().send(TOPICS.control, 0, key, value, headers)
    requests = read_requests(pipeline.broker, TOPICS)
    assert requests.has_model(model_digest(data))
    assert (requests.all, requests.due, requests.end) == ([], 0, 5)


def test_part_without_a_position_is_refused(pipeline: Pipeline, onebit: Onebit) -> None:
    headers = (*HEADERS, (MODEL_HEADER, b"1"))
    pipeline.broker.producer().send(TOPICS.control, 0, b"a", b"", headers)
    run_until_idle(pipeline.learner(given=()))
    assert [one["refusal"] is None for one in listed(onebit)] == [False]
