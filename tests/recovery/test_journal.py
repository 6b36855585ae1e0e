"""Reading and validating journal records, resolving settings, and reading decisions back from predictions."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import orjson
import pytest

from stream.kafka.embedded import EmbeddedBroker
from stream.learners import check_parameters, registered
from stream.recovery import steps as journal
from stream.recovery.commit import predictions_digest
from stream.recovery.recover import Published, recover
from stream.recovery.steps import (
    JournalError,
    JournalFollower,
    JournalStep,
    LogStep,
    ReplicaDigest,
    UnrecoverableError,
    decode_step,
    encode_step,
    last_step,
    read_from_step,
)
from stream.settings.model import Change
from stream.settings.task_fields import JoinSettings, shared_values
from stream.task.settings import TaskSettings
from stream.task.stored_settings import (
    ONLY_REQUESTED,
    PARAMETER,
    STORED,
    Given,
    SettingsDifferError,
    check_settings,
    model_settings,
    resolve,
    restored_settings,
    stored_settings,
)
from stream.verifying.audit import audit_partition
from stream.verifying.reapply import replay_journal
from stream.wire.codec import encode_prediction, step_headers
from stream.wire.control import Replaced
from stream.wire.ledger import Ledger
from stream.wire.named_features import Kind, build, to_plain
from stream.wire.records import Decision, Foreign, Headers, Prediction, Record, TopicPartition
from tests.pipeline import TOPICS, Pipeline, run_until_idle, small_task

GOLDEN = Path(__file__).parents[1] / "golden"

SETTINGS = TaskSettings(
    "banditron",
    3,
    4,
    {"gamma": 0.25, "margin": "feedback"},
    seed=7,
    join=JoinSettings(
        window_ms=1_000, orphan_window_ms=500, retain_ms=10_000, pending_max=90, orphans_max=80, retained_max=70
    ),
    on_expiry="negative",
)
STEP = JournalStep(7, (120, 150), (80, 95), 31, Ledger(contexts=150, decided=149, context_malformed=1))
FIRST = JournalStep(1, (0, 0), (0, 1), 0, Ledger(contexts=1, decided=1), settings=SETTINGS)
STEPS = [
    FIRST._replace(imported="c0ffee"),
    FIRST,
    STEP,
    STEP._replace(number=8, settings_from=8, settings=SETTINGS),
    STEP._replace(
        number=9,
        settings_from=8,
        alarms=2,
        last_context="00c0ffee00c0ffee",
        last_feedback="5eb65eb65eb65eb6",
        skipped=(0, 1),
    ),
    STEP._replace(log=LogStep(6, 5, 40, 20, "5eb6"), replica=ReplicaDigest("learner-1", "9f86")),
    STEP._replace(log=LogStep(6, 5, 40, 20, "5eb6", ("news", "offers"), ("help",))),
]
COUNTS = STEP._replace(ledger=Ledger(*range(1, len(Ledger._fields) + 1)))


def read(value: bytes | None, headers: Headers = journal.HEADERS) -> JournalStep:
    return decode_step(Record("journal", 2, 7, 0, None, value, headers))


@pytest.mark.parametrize("step", [*STEPS, COUNTS])
def test_journal_record_round_trips(step: JournalStep) -> None:
    assert read(encode_step(step)) == step


def test_journal_records_equal_the_golden_file() -> None:
    golden = (GOLDEN / "journal.format1").read_bytes().splitlines()
    assert [encode_step(step) for step in STEPS] == golden
    assert dict(journal.HEADERS) == {"onebit-version": b"1"}


@pytest.mark.parametrize("headers", [(), *((("onebit-version", other),) for other in (b"0", b"2", b"", b"01"))])
def test_record_of_another_format_is_rejected(headers: Headers) -> None:
    with pytest.raises(JournalError) as raised:
        read(encode_step(STEP), headers)
    assert raised.value.place == "journal/2 offset 7"


def test_missing_counts_are_0_and_unknown_counts_are_rejected() -> None:
    fields = orjson.loads(encode_step(STEP))
    assert fields["ledger"] == {"contexts": 150, "decided": 149, "context_malformed": 1}
    fields["ledger"]["newer"] = 3
    with pytest.raises(JournalError):
        read(orjson.dumps(fields))


UNKNOWN_SETTING = encode_step(FIRST).replace(b'"seed"', b'"newer"')


@pytest.mark.parametrize(
    "value", [b"", None, b"{", b"[]", b"3", b'{"number": 2}', b'{"settings": {}}', UNKNOWN_SETTING]
)
def test_unreadable_record_is_rejected_with_its_offset(value: bytes | None) -> None:
    with pytest.raises(JournalError) as raised:
        read(value)
    assert raised.value.place == "journal/2 offset 7"


def write(pipeline: Pipeline, *steps: JournalStep) -> None:
    for step in steps:
        pipeline.broker.producer().send(TOPICS.journal, 0, None, encode_step(step), journal.HEADERS)


JOURNAL = TopicPartition(TOPICS.journal, 0)


@pytest.mark.parametrize("steps", [1, 2, 99, 100, 101, 350])
def test_last_step_is_found_from_the_end(steps: int) -> None:
    pipeline = Pipeline(small_task())
    assert last_step(pipeline.broker, JOURNAL) is None
    write(pipeline, *(STEP._replace(number=number) for number in range(1, steps + 1)))
    assert last_step(pipeline.broker, JOURNAL) == STEP._replace(number=steps)


@pytest.mark.parametrize("gaps", [0, 3])
def test_journal_is_read_from_any_step_number(gaps: int) -> None:
    pipeline = Pipeline(small_task())
    producer = pipeline.broker.transactional_producer("gaps")

    def aborted() -> None:
        for _ in range(gaps):
            producer.begin()
            producer.send(TOPICS.journal, 0, None, b"gap")
            producer.abort()

    for number in range(1, 21):
        aborted()
        write(pipeline, STEP._replace(number=number))
    aborted()
    for kept_from in (1, 7):
        last = last_step(pipeline.broker, JOURNAL)
        assert last is not None
        for number in (*range(1, 22), 100):
            found = [step.number for _, step in read_from_step(pipeline.broker, JOURNAL, number, last)]
            assert found == [*range(max(number, kept_from), 21)]
        pipeline.broker.delete_records(JOURNAL, pipeline.records(TOPICS.journal)[6].offset)


FOREIGN_RECORDS: list[tuple[bytes | None, Headers]] = [
    (None, ()),
    (b"not JSON", (("trace", b"1"),)),
    (b"[1, 2]", ()),
    (encode_step(FIRST), ()),
]


@pytest.mark.parametrize(("value", "headers"), FOREIGN_RECORDS)
def test_record_of_another_program_is_rejected_with_its_offset(value: bytes | None, headers: Headers) -> None:
    pipeline = Pipeline(small_task())
    learner = pipeline.learner()
    pipeline.context("a")
    run_until_idle(learner)
    learner.close()
    pipeline.broker.producer().send(TOPICS.journal, 0, b"key", value, headers)
    place = f"{TOPICS.journal}/0 offset {pipeline.records(TOPICS.journal)[-1].offset}"
    for read_it in (
        lambda: recover(pipeline.broker, TOPICS, 0, small_task()),
        lambda: audit_partition(pipeline.broker, TOPICS, 0),
        lambda: replay_journal(pipeline.broker, TOPICS, 0),
        lambda: JournalFollower(pipeline.broker, TOPICS, 1).read(0),
    ):
        with pytest.raises(JournalError) as raised:
            read_it()
        assert raised.value.place == place


def test_journal_with_a_foreign_first_record_is_not_restarted() -> None:
    pipeline = Pipeline(small_task())
    pipeline.broker.producer().send(TOPICS.journal, 0, None, b"hello", ())
    with pytest.raises(JournalError) as raised:
        recover(pipeline.broker, TOPICS, 0, small_task())
    assert raised.value.place == f"{TOPICS.journal}/0 offset 0"


PLACE = "test.journal/0"
INITIAL = TaskSettings(
    "banditron",
    3,
    4,
    {"gamma": 0.25, "margin": "feedback"},
    seed=7,
    join=JoinSettings(
        window_ms=1_000, orphan_window_ms=500, retain_ms=10_000, pending_max=90, orphans_max=80, retained_max=70
    ),
    on_expiry="negative",
)
CURRENT = TaskSettings("soba-diag", 10, 64)


def resolved(requested: TaskSettings, given: Given) -> TaskSettings:
    return resolve(stored_settings(INITIAL), requested, given, place=PLACE)


def test_new_pipeline_uses_given_settings_and_defaults() -> None:
    assert resolve({}, INITIAL, ("seed",), place=PLACE) == INITIAL
    assert resolve({}, TaskSettings("banditron", 3, 4), None, place=PLACE).parameters.keys() == {"gamma", "margin"}


def test_unset_settings_are_taken_from_the_pipeline() -> None:
    assert resolved(CURRENT, ()) == INITIAL


def test_given_settings_may_equal_those_of_the_pipeline() -> None:
    assert resolved(INITIAL, None) == INITIAL
    assert resolved(replace(CURRENT, learner="banditron", seed=7), ("learner", "seed")) == INITIAL
    parameter = replace(CURRENT, learner="banditron", parameters={"gamma": 0.25, "margin": "feedback"})
    assert resolved(parameter, ("learner", "parameters.gamma")) == INITIAL


def another(value: Any, annotation: Any) -> Any:
    """Return a value other than the given one that the annotated field accepts."""
    choices = get_args(annotation.__origin__)
    if choices and all(isinstance(choice, str) for choice in choices):
        return next(choice for choice in choices if choice != value)
    if isinstance(value, float):
        return value + 0.125
    if isinstance(value, str):
        return f"{value}5"  # a range of rewards
    return 600 if value is None else value + 1


OTHERS: dict[str, Any] = {
    **{
        name: another(shown, hint)
        for kind, values in ((TaskSettings, shared_values(INITIAL)), (JoinSettings, asdict(INITIAL.join)))
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if (shown := values.get(name, ...)) is not ...
    },
    "learner": "soba-diag", "n_classes": 4, "n_features": 5, "parameters.margin": "decision",
    "features": to_plain(build({"price": (Kind.NUMERIC, None)}, None)), "class_names": ["a", "b", "c"],
    "model": "shared", "dated_by": "context", "holdout_policy": "constant:1",
    "challengers": {"late-ucb": check_parameters("late-ucb", {})}, "open_classes": True,
}  # fmt: skip


def test_the_tests_cover_every_setting() -> None:
    assert {*OTHERS, "parameters.gamma", *ONLY_REQUESTED} == stored_settings(INITIAL).keys()


def with_other(name: str) -> TaskSettings:
    if name == "learner":
        return replace(INITIAL, learner="soba-diag", parameters={})
    return restored_settings({**stored_settings(INITIAL), name: OTHERS.get(name, 0.5)})


@pytest.mark.parametrize("name", [*OTHERS, "parameters.gamma"])
@pytest.mark.parametrize("all_given", [True, False])
def test_error_for_a_different_setting_names_the_setting(name: str, all_given: bool) -> None:
    stored = stored_settings(INITIAL)
    requested = with_other(name)
    with pytest.raises(SettingsDifferError) as raised:
        resolved(requested, None if all_given else (name,))
    assert raised.value.differences == {name: Replaced(stored[name], OTHERS.get(name, 0.5))}
    assert raised.value.can_change == (name.startswith(PARAMETER) or STORED[name].change is not Change.REFUSED)
    others = [other for other in OTHERS if other != name]
    assert resolved(requested, others if name != "learner" else ("seed",)) == INITIAL


def test_several_differences_are_listed_unless_the_learner_differs() -> None:
    requested = replace(INITIAL, seed=8, join=replace(INITIAL.join, window_ms=5))
    with pytest.raises(SettingsDifferError) as raised:
        resolved(requested, None)
    assert list(raised.value.differences) == ["seed", "window_ms"]
    assert not raised.value.can_change
    with pytest.raises(SettingsDifferError) as raised:
        resolved(CURRENT, None)
    assert list(raised.value.differences) == ["learner"]


def test_parameter_unknown_to_the_pipelines_learner_is_rejected() -> None:
    foreign = next(
        name
        for name in stored_settings(CURRENT)
        if name.startswith("parameters.") and name not in stored_settings(INITIAL)
    )
    with pytest.raises(SettingsDifferError) as raised:
        resolved(CURRENT, (foreign,))
    assert {name: one.old for name, one in raised.value.differences.items()} == {foreign: None}


def test_imported_model_determines_only_its_own_settings() -> None:
    model = check_settings(model_settings(INITIAL))
    assert model.keys() == {
        "learner",
        "n_classes",
        "n_features",
        "scale",
        "open_classes",
        "rewards",
        "reward_range",
        "parameters.gamma",
        "parameters.margin",
    }
    taken = resolve(model, replace(CURRENT, seed=5), ("seed",), place=PLACE)
    assert taken == TaskSettings("banditron", 3, 4, {"gamma": 0.25, "margin": "feedback"}, seed=5)
    with pytest.raises(SettingsDifferError) as raised:
        resolve(model, CURRENT, ("n_features",), place=PLACE)
    assert raised.value.differences == {"n_features": Replaced(4, 64)}


def test_settings_round_trip() -> None:
    assert restored_settings(stored_settings(INITIAL)) == INITIAL
    full = restored_settings(stored_settings(CURRENT))
    assert full.parameters.keys() == {parameter.name for parameter in registered()["soba-diag"].parameters}


@pytest.mark.parametrize("change", [{"newer": 1}, {"parameters.newer": 1}, {"learner": "newest"}], ids=str)
def test_unknown_settings_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"newe"):
        check_settings({**stored_settings(INITIAL), **change})


@pytest.mark.parametrize("missing", stored_settings(INITIAL))
def test_each_setting_is_required(missing: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        check_settings({name: value for name, value in stored_settings(INITIAL).items() if name != missing})


PUBLISHED_STEPS = {2: ["a", "b"], 3: [], 4: ["c"], 5: ["d", "e", "f"]}


def value(event_id: str) -> bytes:
    return encode_prediction(Prediction(event_id, Decision(1, 1, 0.5, np.zeros(3)), 0), 0)


def journal_step(number: int, ids: list[str]) -> JournalStep:
    log = LogStep(0, 0, 0, len(ids), predictions_digest(map(value, ids)))
    return JournalStep(number, (0, 0), (0, 0), 0, Ledger(), log=log)


def written() -> EmbeddedBroker:
    """Return a broker with the predictions from all steps."""
    broker = EmbeddedBroker()
    broker.create_topics(TOPICS.specs(1, shares_model=True))
    for number, ids in PUBLISHED_STEPS.items():
        for event_id in ids:
            send(broker, number, event_id)
    return broker


def send(broker: EmbeddedBroker, number: int, event_id: str) -> None:
    broker.producer().send(TOPICS.predictions, 0, event_id.encode(), value(event_id), step_headers(number))


def read_back(published: Published, number: int) -> list[str]:
    return [event_id for event_id, _ in published.decisions(journal_step(number, PUBLISHED_STEPS[number]))]


@pytest.mark.parametrize(("first", "steps"), [(0, [2, 3, 4, 5]), (0, [4, 5]), (2, [3, 4, 5]), (1, [5])])
def test_decisions_are_read_back_from_any_step(first: int, steps: list[int]) -> None:
    published = Published(written(), TOPICS, 0, first)
    assert [read_back(published, number) for number in steps] == [PUBLISHED_STEPS[number] for number in steps]


def test_predictions_without_a_step_number_are_skipped_and_counted() -> None:
    broker = written()
    broker.producer().send(TOPICS.predictions, 0, None, b"{}", ())
    after = journal_step(6, ["g"])
    send(broker, 6, "g")
    published = Published(broker, TOPICS, 0, 0)
    assert [event_id for event_id, _ in published.decisions(after)] == ["g"]
    assert published.foreign == Foreign(1, f"{TOPICS.predictions}/0 offset 6")


@pytest.mark.parametrize("ids", [["a", "b", "c"], ["b", "a"], ["a", "x"]], ids=["additional", "reordered", "different"])
def test_predictions_that_differ_from_the_digest_are_rejected(ids: list[str]) -> None:
    published = Published(written(), TOPICS, 0, 0)
    with pytest.raises(UnrecoverableError):
        published.decisions(journal_step(2, ids))


def test_deleted_predictions_are_reported() -> None:
    broker = written()
    broker.delete_topics([TOPICS.predictions])
    broker.create_topics(TOPICS.specs(1, shares_model=True))
    with pytest.raises(UnrecoverableError):
        read_back(Published(broker, TOPICS, 0, 0), 2)


def test_duplicate_predictions_do_not_hide_a_step() -> None:
    broker = written()
    for number in (4, 2, 3, 2):
        for _ in range(5):
            send(broker, number, "again")
    after = {6: ["g"], 7: ["h", "i"]}
    for number, ids in after.items():
        for event_id in ids:
            send(broker, number, event_id)
    for first in (5, 6, 7):
        published = Published(broker, TOPICS, 0, first)
        for number, ids in {5: PUBLISHED_STEPS[5], **after}.items():
            if number >= first:
                assert [event_id for event_id, _ in published.decisions(journal_step(number, ids))] == ids
