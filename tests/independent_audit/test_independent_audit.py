"""The audit from the documentation accepts what learners write, and names lost, altered and repeated records."""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from stream.settings.task_fields import JoinSettings, Play
from stream.task.join_table import TRANSITIONS, TableError, check_table
from stream.task.settings import TaskSettings
from stream.wire.codec import tick_headers
from stream.wire.records import Record
from stream.wire.topics import partition_for
from tests.independent_audit import Difference, audit
from tests.independent_audit.audit import audit_records
from tests.independent_audit.events import partition_of
from tests.pipeline import TOPICS, Pipeline, feedback_value, offered, run_until_idle, small_task
from tests.task.test_join_tables import Change, changes

PREFIX = "test."
LIMITS = JoinSettings(
    window_ms=200, activation_window_ms=60, orphan_window_ms=50, retain_ms=300, pending_max=5, orphans_max=3,
    retained_max=20,
)  # fmt: skip
CHANGED = JoinSettings(
    window_ms=20, orphan_window_ms=40, retain_ms=100, pending_max=3, orphans_max=2, retained_max=5
)  # fmt: skip
"""Windows and limits after a change. Each is smaller, so the change settles and evicts entries."""


def a_reward(pipeline: Pipeline, rng: Random) -> float:
    """Draw a bit or, with graded rewards, a number in the range."""
    graded = pipeline.settings.graded
    return rng.randrange(2) if graded is None else graded.value(rng.randrange(5) / 4)


def random_traffic(pipeline: Pipeline, rng: Random, numbers: range, **options: Any) -> None:
    """Run a learner on contexts, feedback, shown records, ticks and malformed records in random order."""
    learner = pipeline.learner(idle_ms=10, snapshot_interval_ms=20, given=(), **options)
    rule = pipeline.settings.feedback

    def of_several() -> dict[str, Any]:
        return {} if rule == "first" else {"part": f"p{rng.randrange(4)}", "final": rng.random() < 0.1}

    for number in numbers:
        event = f"e{number}"
        for _ in range(rng.choice((0, 1, 2))):
            logged = {"logged": {"action": rng.randrange(3), "propensity": 1 / 3}}
            fields = {**logged, **rng.choice(({}, {"deferred": True})), **offered(pipeline.settings)}
            if "actions" in fields:
                fields |= rng.choice(({}, {"eligible": ["item-1"]}, {"eligible": ["item-3"]}, {"actions": []}))
            pipeline.context(f"e{rng.randrange(number, number + 3)}", **fields)
            event = f"e{rng.randrange(max(0, number - 20), number + 3)}"
            actions = (None, None, 0, 1) if pipeline.settings.actions is None else (None, "item-0", "item-1", 1)
            pipeline.answer(event, a_reward(pipeline, rng), action=rng.choice(actions), **of_several())
            pipeline.show(f"e{rng.randrange(max(0, number - 20), number + 3)}")
            for _ in range(0 if rule == "first" else rng.choice((0, 1, 3))):
                pipeline.answer(
                    f"e{rng.randrange(max(0, number - 5), number + 2)}", a_reward(pipeline, rng), **of_several()
                )
            for part in range(70 if rule == "sum" and rng.random() < 0.05 else 0):
                pipeline.answer(event, -1, part=f"p{part}")
        if rng.random() < 0.2:
            key, partition = rng.choice((None, event.encode())), rng.randrange(pipeline.partitions)
            pipeline.send(TOPICS.feedback, feedback_value(event, 1), partition, key)
        if rng.random() < 0.1:
            value = rng.choice(
                (b"{", None, b'{"id": "a"}', b'{"id": "a", "reward": 2}', b'{"id": "a", "shown": false}')
            )
            pipeline.send(rng.choice((TOPICS.contexts, TOPICS.feedback)), value)
            headers = tick_headers(rng.randrange(number + 1))
            pipeline.broker.producer().send(TOPICS.feedback, 0, None, None, headers)
        moves_back = pipeline.settings.dated_by == "tick" and rng.random() < 0.1
        pipeline.clock.now_ms += -rng.choice((1, 15, 60)) if moves_back else rng.choice((0, 0, 1, 8, 40))
        if rng.random() < 0.7:
            learner.step(0)
    run_until_idle(learner)
    learner.close()


GRADED: dict[str, Any] = {"rewards": "graded", "reward_range": "-1,1"}

KINDS: Mapping[str, tuple[int, TaskSettings]] = {
    "own model": (1, small_task(join=LIMITS)),
    "negative, corrected": (1, small_task(join=LIMITS, on_expiry="negative", late="correct")),
    "dated by context": (1, small_task(join=LIMITS, dated_by="context")),
    "own models, misplaced": (2, small_task(join=LIMITS)),
    "challengers": (1, small_task("banditron", join=LIMITS, challengers={"late-ucb": {}})),
    "shared model": (2, small_task("late-ucb", join=LIMITS, model="shared", on_expiry="negative")),
    "graded, corrected": (1, small_task("late-ucb", join=LIMITS, on_expiry="negative", late="correct", **GRADED)),
    "graded, shared": (2, small_task("late-ucb", join=LIMITS, model="shared", on_expiry="negative", **GRADED)),
    "actions": (1, small_task("igw-log", parameters={"bits": 8}, join=LIMITS)),
    "actions, shared": (2, small_task("joint-ucb", parameters={"m": 4, "ids": 5}, join=LIMITS, model="shared")),
    "shared, holdout": (2, small_task(join=LIMITS, model="shared", holdout=0.3)),
    "maximum, corrected": (
        1, small_task("late-ucb", join=LIMITS, on_expiry="negative", late="correct", feedback="max", **GRADED),
    ),
    "maximum of bits, shared": (2, small_task("late-ucb", join=LIMITS, model="shared", feedback="max")),
    "sum": (2, small_task("late-ucb", join=LIMITS, on_expiry="negative", feedback="sum", **GRADED)),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_unaltered_topics_follow_the_documentation(kind: str, seed: int) -> None:
    partitions, settings = KINDS[kind]
    pipeline, rng = Pipeline(settings, partitions), Random(seed)
    random_traffic(pipeline, rng, range(60))
    champion = {"champion": "late-ucb"} if settings.challengers else {}
    pipeline.request(**asdict(CHANGED), **champion)
    pipeline.request(champion="nobody")
    random_traffic(pipeline, rng, range(60, 100))
    assert audit(pipeline.broker, PREFIX) == []
    assert len(pipeline.generations()) > 3  # each snapshot is compared with the simulation
    ledger = pipeline.ledger()
    assert 0 not in (ledger.matched, ledger.expired, ledger.unshown, ledger.late, ledger.mismatched)
    assert (ledger.conflicts > 0) == (settings.feedback != "max")
    assert (ledger.combined > 0) == (settings.feedback != "first")
    assert 0 not in (ledger.orphans_dropped, ledger.deferred_evicted, ledger.orphans_evicted, ledger.retained_evicted)
    assert (ledger.contexts_misplaced + ledger.feedback_misplaced > 0) == (partitions > 1)


@pytest.mark.parametrize("changes", [{}, {"propensity_min": 0.1}], ids=["every decision", "some rejected"])
def test_unaltered_topics_of_a_matched_log_follow_the_documentation(changes: dict[str, Any]) -> None:
    pipeline, rng = Pipeline(small_task(join=LIMITS, play="match", **changes)), Random(1)
    learner = pipeline.learner()
    for number in range(60):
        logged = {"action": rng.randrange(3), "propensity": 1 / 3}
        eligible = {"eligible": [0, 1]} if rng.random() < 0.2 else {}
        pipeline.context(
            f"e{number}", **eligible, logged=rng.choice((logged,) * 4 + (logged | {"propensity": 0.05}, None))
        )
        pipeline.answer(f"e{rng.randrange(number + 3)}", rng.randrange(2))
        pipeline.wait(3)
        learner.step(0)
    assert audit(pipeline.broker, PREFIX) == []
    ledger = pipeline.ledger()
    assert min(ledger.unmatched, ledger.matched, ledger.feedback_unmatched, ledger.context_malformed) > 0
    assert (ledger.propensities_floored > 0) == bool(changes)


def test_unaltered_topics_with_open_classes_follow_the_documentation() -> None:
    pipeline = Pipeline(small_task("late-ucb", join=LIMITS, open_classes=True, model="shared"), 2)
    learner = pipeline.learner()
    for number, eligible in enumerate((["a"], ["b", "a"], ["c"], ["d"], ["c", "b"], [], ["a", "a"])):
        pipeline.context(f"e{number}", eligible=eligible)
        run_until_idle(learner)
    assert audit(pipeline.broker, PREFIX) == []
    assert (pipeline.ledger().decided, pipeline.ledger().context_malformed) == (4, 3)


@pytest.mark.parametrize(
    ("settings", "names"),
    [({}, (0, 1, 2)), ({"class_names": ("a", "b", "c")}, "abc"), ({"open_classes": True}, "abc")],
    ids=["numbered", "named", "open"],
)
def test_unaltered_topics_with_retired_classes_and_features_follow_the_documentation(
    settings: dict[str, Any], names: Sequence[str | int]
) -> None:
    pipeline = Pipeline(small_task("late-ucb", join=LIMITS, **settings))
    learner = pipeline.learner()
    lists = (names, names[1:], names[:1], names[:2], names[2:], None, ())
    for step, retired in enumerate(((), names[:1], names[:2], names[1:])):
        pipeline.request(retired_classes=list(retired), retired_features=[step])
        for number, eligible in enumerate(lists):
            fields = {} if eligible is None else {"eligible": list(eligible)}
            pipeline.context(f"e{step}-{number}", **fields)
            run_until_idle(learner)
    assert audit(pipeline.broker, PREFIX) == []
    assert pipeline.ledger().context_malformed == 1 + 2 + 3 + 3


def test_audit_imports_nothing_of_ours_but_the_reader_of_kafka() -> None:
    files = [path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    imported = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    ours = {name for name in imported if name.split(".")[0] in ("onebit", "producers", "consumers", "stream")}
    assert ours == {"stream.kafka.port", "stream.kafka.reading", "stream.wire.records"}
    tests = {name for name in imported - ours if name.split(".")[0] == "tests"}
    assert all(name.startswith(("tests.independent_audit", "tests.golden.")) for name in tests)


@pytest.mark.parametrize("key", [b"", b"e", b"e1", b"e12", b"e123", "é–€".encode(), b"optdigits-0-001199"])
def test_partition_of_a_key_is_that_of_the_producers(key: bytes) -> None:
    assert partition_of(key, 7) == partition_for(key, 7)


def changed_rules() -> Mapping[str, Change]:
    """The first consistent change of each rule in the learner's join table that has one."""
    found: dict[str, Change] = {}
    for change in changes():
        with suppress(TableError):
            check_table(change.table)
            found.setdefault(change.name.partition(":")[0], change)
    return found


RULES = changed_rules()
LOGGED_ONLY = ("UNMATCHED", "ASIDE")
"""Rules with these names need a replay of logged decisions."""
SEVERAL_ONLY = ("PARTIAL", "ANSWERED", "REPEATED")
"""Rules with these names need rewards that depend on several records."""


@pytest.mark.parametrize("rule", RULES)
def test_learner_with_another_rule_does_not_follow_the_documentation(rule: str) -> None:
    play: Play = "match" if any(name in rule for name in LOGGED_ONLY) else "own"
    settings = small_task(join=LIMITS, play=play, on_expiry="negative", late="correct")
    if "EXCESS" in rule:
        settings = small_task("late-ucb", join=LIMITS, feedback="sum", **GRADED)
    elif any(name in rule for name in SEVERAL_ONLY):
        several: dict[str, Any] = {"on_expiry": "negative", "late": "correct", "feedback": "max", **GRADED}
        settings = small_task("late-ucb", join=LIMITS, play=play, **several)
    rng, found = Random(1), []
    for _ in range(20):  # some rules are rarely used
        pipeline = Pipeline(settings)
        with patch.dict(TRANSITIONS, RULES[rule].table):
            random_traffic(pipeline, rng, range(60))
        if found := audit(pipeline.broker, PREFIX):
            break
    assert found != []


# A run in which one record of each kind is altered


def steady_run(model: str = "own") -> Pipeline:
    """A run with one decision per step and every outcome. The window is 1 s."""
    pipeline = Pipeline(small_task("late-ucb", model=model, join=JoinSettings(window_ms=1_000, orphan_window_ms=500)))
    learner = pipeline.learner()

    def at(now_ms: int, *acts: Callable[[], None]) -> None:
        pipeline.clock.advance_to(now_ms)
        for act in acts:
            act()
        run_until_idle(learner)

    at(1_000, lambda: pipeline.context("matched"))  # step 1; its tick is feedback 0, applied in step 2
    at(1_100, lambda: pipeline.context("expired"))
    at(1_200, lambda: pipeline.answer("matched", 1))
    at(1_300, lambda: pipeline.answer("lost", 1), lambda: pipeline.send(TOPICS.contexts, b"{"))
    at(1_400, lambda: pipeline.context("deferred", deferred=True))
    at(2_150, lambda: pipeline.answer("another", 0))
    at(2_600, lambda: pipeline.answer("expired", 1))
    at(3_000, lambda: pipeline.context("pending"))
    learner.close()
    return pipeline


Alter = Callable[[list[Record]], list[Record]]


def changed(place: int, **members: Any) -> Alter:
    """Change members of the JSON value of a record. A negative place counts from the end."""

    def alter(records: list[Record]) -> list[Record]:
        value = json.loads(records[place].value or b"")
        records[place] = records[place]._replace(value=json.dumps({**value, **members}).encode())
        return records

    return alter


def counted(place: int, name: str, by: int = 1) -> Alter:
    """Change a count in a step's record."""

    def alter(records: list[Record]) -> list[Record]:
        ledger = json.loads(records[place].value or b"")["ledger"]
        return changed(place, ledger={**ledger, name: ledger.get(name, 0) + by})(records)

    return alter


def first_settings(**settings: Any) -> Alter:
    """Change settings in the first step, as if the learner had not followed them."""

    def alter(records: list[Record]) -> list[Record]:
        stored = json.loads(records[0].value or b"")["settings"]
        return changed(0, settings={**stored, **settings})(records)

    return alter


def moved(place: int, by_ms: int) -> Alter:
    """Change a record's append time."""

    def alter(records: list[Record]) -> list[Record]:
        records[place] = records[place]._replace(append_ms=records[place].append_ms + by_ms)
        return records

    return alter


def of_step(place: int, step: bytes | None) -> Alter:
    """Change or remove the header with the step's number."""

    def alter(records: list[Record]) -> list[Record]:
        headers = tuple(header for header in records[place].headers if header[0] != "onebit-step")
        added = () if step is None else (("onebit-step", step),)
        records[place] = records[place]._replace(headers=(*headers, *added))
        return records

    return alter


def without(place: int) -> Alter:
    return lambda records: [record for record in records if record is not records[place]]


def twice(place: int) -> Alter:
    """Repeat a record at the end."""
    return lambda records: [*records, records[place]._replace(offset=records[-1].offset + 1)]


EXAMPLE, EXAMPLES = "example", "examples"
ALTERED: Mapping[str, tuple[str, Alter, str, str]] = {
    # what is altered: (topic, alteration, topic of a difference, what differs)
    "example is lost": (EXAMPLES, without(0), "journal", EXAMPLE),
    "example is repeated": (EXAMPLES, twice(0), EXAMPLES, EXAMPLE),
    "example of another step": (EXAMPLES, of_step(0, b"1"), EXAMPLES, EXAMPLE),
    "example of no step": (EXAMPLES, of_step(0, None), EXAMPLES, "record in examples"),
    "wrong reward": (EXAMPLES, changed(0, reward=0), EXAMPLES, EXAMPLE),
    "wrong delay": (EXAMPLES, changed(0, delay_ms=199), EXAMPLES, EXAMPLE),
    "wrong outcome": (EXAMPLES, changed(0, outcome="expired"), EXAMPLES, EXAMPLE),
    "wrong feedback": (EXAMPLES, changed(0, feedback_offset=9), EXAMPLES, EXAMPLE),
    "wrong propensity": (EXAMPLES, changed(0, propensity=0.5), EXAMPLES, EXAMPLE),
    "expired example has a reward": (EXAMPLES, changed(1, reward=0), EXAMPLES, EXAMPLE),
    "prediction is lost": ("predictions", without(0), "contexts", "prediction"),
    "prediction is repeated": ("predictions", twice(0), "predictions", "prediction"),
    "prediction of a future step": ("predictions", of_step(0, b"99"), "predictions", "record in predictions"),
    "prediction has another id": ("predictions", changed(0, id="other"), "predictions", "id"),
    "prediction plays a class beyond K": ("predictions", changed(0, action=3), "predictions", "action is eligible"),
    "greedy class is not the best": ("predictions", changed(0, scores=[0, 0, 1], greedy=0), "predictions",
                                     "score of greedy"),
    "model is older": ("predictions", changed(-1, model_version=0), "journal", "model_version"),
    "dead letter is lost": ("dead-letter", without(0), "contexts", "dead letter"),
    "dead letter is repeated": ("dead-letter", twice(0), "dead-letter", "dead letter"),
    "dead letter has another value": ("dead-letter", changed(1, id="x"), "dead-letter", "content of a dead letter"),
    "count is one too high": ("journal", counted(2, "matched"), "journal", "matched"),
    "count is one too low": ("journal", counted(-1, "late", -1), "journal", "late"),
    "updates are too many": ("journal", changed(1, updates=1), "journal", "updates"),
    "step is lost": ("journal", without(2), "journal", "number"),
    "first step is lost": ("journal", without(0), "journal", "settings"),
    "ranges overlap": ("journal", changed(2, feedback=[0, 3]), "journal", "begin of feedback"),
    "range ends beyond the last record": ("journal", changed(-1, contexts=[4, 9]), "journal", "end of contexts"),
    "settings change without a record of them": ("journal", changed(2, settings_from=3), "journal", "settings_from"),
    "decision expired too early": ("journal", first_settings(window_ms=1_500), EXAMPLES, EXAMPLE),
    "decision expired too late": ("journal", first_settings(window_ms=50), "journal", "expired"),
    "feedback in time was ignored": ("journal", first_settings(window_ms=5_000), "journal", "late"),
    "orphan was dropped too late": ("journal", first_settings(orphan_window_ms=10), "journal", "orphans_dropped"),
    "limit was exceeded": ("journal", first_settings(pending_max=1), "journal", "pending_evicted"),
    "unshown decision expired too early": ("journal", first_settings(activation_window_ms=9_000), "journal", "unshown"),
    "context is lost": ("contexts", without(0), "journal", "contexts"),
    "feedback is lost": ("feedback", without(2), "journal", "feedback"),
    "feedback was late": ("feedback", moved(2, 900), "journal", "matched"),
    "tick was later": ("feedback", moved(0, 20), EXAMPLES, EXAMPLE),
}  # fmt: skip


def altered(pipeline: Pipeline, topic: str, alter: Alter) -> list[Difference]:
    """Audit the pipeline's records after one topic was altered."""

    def read(name: str, partition: int) -> list[Record]:
        records = pipeline.records(PREFIX + name, partition) if PREFIX + name in created else []
        return alter(records) if name == topic else records

    created = pipeline.broker.describe_topics([*TOPICS, f"{PREFIX}updates"])
    return audit_records(read, PREFIX, 1)


@pytest.mark.parametrize("case", ALTERED)
def test_altered_record_is_named(case: str) -> None:
    topic, alter, named, what = ALTERED[case]
    pipeline = steady_run()
    assert altered(pipeline, topic, lambda records: records) == []
    found = [(one.topic, one.what) for one in altered(pipeline, topic, alter)]
    assert (PREFIX + named, what) in found


ALTERED_SHARED: Mapping[str, tuple[str, Alter, str, str]] = {
    "prediction is altered": ("predictions", changed(0, propensity=0.5), "journal", "log.sha256"),
    "prediction has another version": ("predictions", changed(0, model_version=7), "journal", "model_version"),
    "version is not that of the offset": ("journal", changed(-1, updates=0), "journal", "updates"),
    "updates are lost": ("updates", without(1), "journal", "log.entries"),
    "record of another program": ("updates", lambda records: [records[0]._replace(value=b"x"), *records], "updates",
                                  "record"),
}  # fmt: skip


@pytest.mark.parametrize("case", ALTERED_SHARED)
def test_altered_record_of_a_shared_model_is_named(case: str) -> None:
    topic, alter, named, what = ALTERED_SHARED[case]
    pipeline = steady_run("shared")
    assert altered(pipeline, topic, lambda records: records) == []
    found = [(one.topic, one.what) for one in altered(pipeline, topic, alter)]
    assert (PREFIX + named, what) in found


def test_difference_names_the_record_and_both_values() -> None:
    (difference,) = altered(steady_run(), EXAMPLES, changed(0, reward=0))
    place = difference.topic, difference.partition, difference.offset, difference.what
    assert place == (TOPICS.examples, 0, 0, EXAMPLE)
    assert isinstance(difference.expected, dict)
    assert isinstance(difference.got, dict)
    assert difference.got == difference.expected | {"reward": 0}


def test_lost_output_is_reported_at_its_step() -> None:
    pipeline = steady_run()
    (difference,) = altered(pipeline, EXAMPLES, without(0))
    step = dict(pipeline.records(TOPICS.examples)[0].headers)["onebit-step"]
    assert difference.offset == pipeline.records(TOPICS.journal)[int(step) - 1].offset
    assert (difference.topic, difference.got) == (TOPICS.journal, None)
