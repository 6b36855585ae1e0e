"""Record golden pipelines: what the programs of this version write, and what this version says of it.

    python -m tests.golden.record_pipelines VERSION [NAME ...]

writes `pipelines/VERSION/NAME` for each pipeline, see `tests/golden/stored.py`. It is run with the code of the
version whose files it records, once, before that version's formats change: what stands there is never written again.
Pipelines in the embedded broker come out the same in every run; the one on a real Kafka, which is started for it, has
that run's times.

The pipelines are small, and have something of everything: sparse, valued and dense contexts; feedback that is late,
lost, doubled, contradicting, early or for nobody; records that cannot be read; limits that overflow; several snapshots,
some of which are written in several steps; learners that die in a commit, so that offsets are left out. Where tasks
share a model, two processes run them.
"""

import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import stream.cli  # noqa: F401  # one BLAS thread, before numpy is imported: the last bits depend on their number
from consumers.learner import LearnerOptions, LearnerProgram
from producers.datasets.base import Known
from producers.feedback import FeedbackOptions, FeedbackProgram
from stream.brokers.clocks import VirtualClock
from stream.brokers.embedded import EmbeddedBroker
from stream.brokers.kafka_python.broker import KafkaBroker
from stream.brokers.local_kafka import local_kafka
from stream.brokers.partitioner import partition_for
from stream.brokers.port import Broker, BrokerError
from stream.joining.join import JoinSettings
from stream.joining.task_settings import TaskSettings
from stream.randomness.delays import FeedbackPlan, parse_delay
from stream.recovery.snapshot_chunks import Stored
from stream.recovery.snapshot_format import FORMAT
from stream.verifying.model_files import Model, read_model, write_model
from stream.verifying.models import export_model, import_model
from stream.wire.codec import HEADERS
from stream.wire.records import Headers, TopicPartition
from stream.wire.topics import Topics, TopicSpec
from tests.golden.pipelines import Loaded, facts, model_facts, overflows
from tests.golden.stored import EXPECTED, FOLDER, RECORDS, SHARED, Golden, GoldenRecord, encoded, machine

PREFIX = "golden."
TOPICS = Topics.with_prefix(PREFIX)
N_CLASSES, N_FEATURES = 3, 6
STARTED_MS = 1_700_000_000_000


class CrashError(Exception):
    """The learner dies here."""


@dataclass(frozen=True)
class Recipe:
    """What makes a pipeline."""

    task: TaskSettings
    partitions: int = 1
    options: LearnerOptions = field(default_factory=lambda: LearnerOptions(snapshot_interval_ms=500, idle_ms=100))
    with_label: bool = False
    crashes: frozenset[tuple[int, int]] = frozenset()  # (which commit, after which of its steps)
    imports: str | None = None  # the pipeline whose model is imported
    delay: str = "exponential:150ms"
    event_ms: int = 10  # from one context to the next
    on_kafka: bool = False
    events: int = 240
    learners: int = 1  # processes

    @property
    def shares_model(self) -> bool:
        """Whether the tasks decide on one model."""
        return self.task.model == "shared"


LIMITS = JoinSettings(window_ms=400, orphan_ms=300, retain_ms=900, pending_max=14, orphans_max=3, retained_max=70)


def task(learner: str, **changes: Any) -> TaskSettings:
    """Settings of a small task."""
    return TaskSettings(learner, N_CLASSES, N_FEATURES, **{"seed": 11, "join": LIMITS, **changes})


OFTEN = LearnerOptions(snapshot_interval_ms=250, idle_ms=100)

RECIPES = {
    "banditron-correct": Recipe(task("banditron", on_expiry="negative", late="correct")),
    "soba-diag-two-partitions": Recipe(task("soba-diag"), partitions=2, crashes=frozenset({(30, 4)})),
    "perceptron-labels": Recipe(task("perceptron"), with_label=True),
    "confidit-variant-2": Recipe(task("confidit", parameters={"variant": 2})),
    "pnewtron": Recipe(task("pnewtron")),
    "pnewtron-imported": Recipe(task("pnewtron"), imports="pnewtron"),
    "soba-small-chunks": Recipe(
        task("soba"),
        # So that a generation has fewer chunks than the one before in its slot; the second crash tears one.
        options=LearnerOptions(
            snapshot_interval_ms=400, idle_ms=100, snapshot_chunk_bytes=1_910, snapshot_bytes_max=4_000
        ),
        crashes=frozenset({(25, 3), (65, 4)}),
    ),
    "kafka": Recipe(
        task("soba-diag", on_expiry="negative", late="correct", join=replace(LIMITS, window_ms=2_000, orphan_ms=1_500)),
        partitions=2,
        options=LearnerOptions(snapshot_interval_ms=2_500, idle_ms=200, poll_ms=20),
        crashes=frozenset({(12, 4)}),
        delay="exponential:800ms",
        event_ms=60,
        on_kafka=True,
    ),
    # So many events that the learners have made a step after all that was written.
    SHARED + "late-ucb": Recipe(
        task("late-ucb", parameters={"project": 4}, model="shared"),
        partitions=2, options=OFTEN, crashes=frozenset({(9, 3), (17, 4)}), events=58, learners=2,
    ),
    SHARED + "banditron-correct": Recipe(
        task("banditron", model="shared", on_expiry="negative", late="correct"),
        partitions=2, options=OFTEN, events=83, delay="exponential:350ms", learners=2,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sending:
    """A record that is written at a time."""

    at_ms: int  # after the start
    topic: str
    key: str
    value: bytes | None
    headers: Headers = HEADERS


def label_of(event_id: str) -> int:
    """The true class of an event."""
    return sum(event_id.encode()) % N_CLASSES


def context(event_id: str, random: Random, form: int) -> bytes:
    """A context in one of the forms of x: with values, ones, or a dense list."""
    label = label_of(event_id)
    on = [index for index in range(N_FEATURES) if random.random() < (0.9 if index % N_CLASSES == label else 0.15)]
    values = [round(random.uniform(0.25, 2.0), 3) for _ in on]
    dense = [dict(zip(on, values, strict=True)).get(index, 0) for index in range(N_FEATURES)]
    forms: list[Any] = [{"i": on, "v": values}, {"i": on}, dense]
    return json.dumps({"id": event_id, "x": forms[form]}, ensure_ascii=False).encode()


def feedback(event_id: str, with_label: bool, reward: Any = 1) -> bytes:
    """A feedback by another program than Onebit's."""
    fields = {"id": event_id, "reward": reward}
    return json.dumps({**fields, "label": label_of(event_id)} if with_label else fields, ensure_ascii=False).encode()


def sendings(recipe: Recipe) -> list[Sending]:
    """All that is written to the inputs, but for the feedback program's answers."""
    random = Random(17)
    step_ms, labelled = recipe.event_ms, recipe.with_label
    length_ms = recipe.events * step_ms

    def answer(at: float, event_id: str, reward: Any = 1, headers: Headers = HEADERS) -> Sending:
        value = feedback(event_id, labelled, reward)
        return Sending(int(at * length_ms), TOPICS.feedback, event_id, value, headers)

    def raw(at: float, topic: str, key: str, value: bytes | None, headers: Headers = HEADERS) -> Sending:
        return Sending(int(at * length_ms), topic, key, value, headers)

    sent = []
    for number in range(recipe.events):
        event_id = f"événement-{number:04}" if number % 40 == 3 else f"event-{number:04}"
        value = context(event_id, random, number % 3)
        sent.append(Sending(number * step_ms, TOPICS.contexts, event_id, value, HEADERS if number % 5 else ()))
        if number % 30 == 5:
            sent.append(Sending((number + 2) * step_ms, TOPICS.contexts, event_id, value))  # a duplicate
        if number % 20 == 7:  # both bits for one id, soon and somewhat later: one of them contradicts
            sent += [answer((number + wait) / recipe.events, event_id, wait % 2) for wait in (3, 8, 50)]
    early = [f"early-{number}" for number in range(4)]
    for number, event_id in enumerate(early):
        at = 0.2 * number + 0.15
        sent += [
            answer(at, event_id),
            raw(at + 0.03, TOPICS.contexts, event_id, context(event_id, random, number % 3)),
        ]
    sent += [answer(0.365, early[1], 0), answer(0.37, early[1], 1)]  # while it waits
    strangers = [0.1, 0.3, 0.31, 0.312, 0.315, 0.318, 0.5, 0.7, 0.8, 0.99, 0.995]  # five at once overflow
    for number, at in enumerate(strangers):
        sent.append(answer(at, f"stranger-{number}", number % 2, (*HEADERS, ("trace", b"\x00\xff%d" % number))))
    later_version: Headers = (("onebit-version", b"2"),)
    return sorted(
        [
            *sent,
            raw(0.05, TOPICS.contexts, "broken", b'{"id": "broken"'),
            raw(0.25, TOPICS.contexts, "outside", b'{"id": "outside", "x": {"i": [0, 6]}}'),
            raw(0.45, TOPICS.contexts, "nothing", None),
            raw(0.65, TOPICS.contexts, "later", b'{"id": "later", "x": {"i": [0]}}', later_version),
            raw(0.07, TOPICS.feedback, "bytes", b"\xff\xfe\x00"),
            raw(0.27, TOPICS.feedback, "other key", feedback("event-0001", labelled)),
            answer(0.47, "event-0002", 2),
            answer(0.67, "event-0003", "yes"),
        ],
        key=lambda sending: sending.at_ms,
    )


class Sender:
    """Writes what is due."""

    def __init__(self, broker: Broker, recipe: Recipe, started_ms: int) -> None:
        self._producer = broker.producer()
        self._waiting = sendings(recipe)
        self._partitions = recipe.partitions
        self._started_ms = started_ms

    def step(self, now_ms: int) -> None:
        """Write what is due by now."""
        while self._waiting and self._started_ms + self._waiting[0].at_ms <= now_ms:
            due = self._waiting.pop(0)
            key = due.key.encode()
            self._producer.send(due.topic, partition_for(key, self._partitions), key, due.value, due.headers)
        self._producer.flush()


class Mortal:
    """A learner that dies where the recipe says so, and is made anew."""

    def __init__(self, broker: Broker, recipe: Recipe, now_ms: Callable[[], int], number: int = 1) -> None:
        self._broker = broker
        self._recipe = recipe
        self._options = replace(recipe.options, instance=f"learner-{number}")
        self._now_ms = now_ms
        self._commits = 0
        self._dead: list[LearnerProgram] = []
        self._program = self._made()

    def _made(self) -> LearnerProgram:
        recipe = self._recipe
        return LearnerProgram(
            self._broker, TOPICS, recipe.task, self._options, self._now_ms, crash_point=self._crash_point
        )

    def _crash_point(self, number: int) -> None:
        self._commits += number == 1
        if (self._commits, number) in self._recipe.crashes:
            raise CrashError

    @property
    def runs(self) -> bool:
        """Whether it has its partitions."""
        return bool(self._program.tasks)

    def step(self, timeout_ms: int) -> int:
        """One step of the learner."""
        try:
            return self._program.step(timeout_ms)
        except CrashError:
            self._dead.append(self._program)
            self._program = self._made()
            return 1

    def close(self) -> None:
        """Release the one that lives, and those that do not."""
        for program in (self._program, *self._dead):
            with suppress(BrokerError):
                program.close()


def answers(broker: Broker, recipe: Recipe, now_ms: Callable[[], int]) -> FeedbackProgram:
    """The program that answers the predictions."""
    plan = FeedbackPlan(5, parse_delay(recipe.delay), loss=0.05, duplicates=0.1)
    options = FeedbackOptions(with_label=recipe.with_label)
    return FeedbackProgram(broker, TOPICS, lambda event_id: Known(label_of(event_id)), plan, options, now_ms)


def imported(broker: Broker, recipe: Recipe, folder: Path) -> None:
    """Import the model that the recipe names."""
    if recipe.imports is not None:
        model = read_model(folder / recipe.imports / "model.0.npz")
        import_model(broker, TOPICS, 0, model, "onebit-import")


def specs(recipe: Recipe) -> list[TopicSpec]:
    """What its topics must be."""
    return TOPICS.specs(recipe.partitions, shares_model=recipe.shares_model)


def run_embedded(recipe: Recipe, folder: Path) -> Broker:
    """Run in virtual time, and stop while decisions and feedback wait."""
    clock = VirtualClock(STARTED_MS)
    broker = EmbeddedBroker(clock)
    broker.create_topics(specs(recipe))
    imported(broker, recipe, folder)

    def now_ms() -> int:
        return clock.now_ms

    sender, feedback_program = Sender(broker, recipe, STARTED_MS), answers(broker, recipe, now_ms)
    learners = [Mortal(broker, recipe, now_ms, number) for number in range(1, recipe.learners + 1)]
    for at_ms in range(0, recipe.events * recipe.event_ms + 50, 5):
        clock.advance_to(STARTED_MS + at_ms)
        sender.step(clock.now_ms)
        feedback_program.step(0)
        while at_ms % 25 == 0 and sum(learner.step(0) for learner in learners) > 0:
            pass
    return broker


def run_on_kafka(broker: Broker, recipe: Recipe, folder: Path) -> None:
    """Run in real time on a Kafka of this machine, whose clock is this process's."""

    def now_ms() -> int:
        return int(time.time() * 1_000)

    broker.create_topics(specs(recipe))
    imported(broker, recipe, folder)
    recipe.task.warm_up()
    learner = Mortal(broker, recipe, now_ms)
    feedback_program = answers(broker, recipe, now_ms)
    while not learner.runs:
        learner.step(100)
    started_ms = now_ms()
    sender = Sender(broker, recipe, started_ms)
    while now_ms() < started_ms + recipe.events * recipe.event_ms + 50:
        sender.step(now_ms())
        feedback_program.step(5)
        learner.step(recipe.options.poll_ms)
    feedback_program.close()
    learner.close()


def record(broker: Broker, recipe: Recipe, path: Path) -> None:
    """Write a pipeline's files."""
    path.mkdir(parents=True)
    tps = [TopicPartition(spec.name, partition) for spec in specs(recipe) for partition in range(spec.partitions)]
    ends = {(tp.topic, tp.partition): end.high_watermark for tp, end in broker.ends(tps).items()}
    records = [GoldenRecord(*found) for tp in tps for found in read_whole(broker, tp)]
    write_records(path / RECORDS, Golden(path, PREFIX, recipe.partitions, ends, records, {}))
    loaded = Loaded(Golden(path, PREFIX, recipe.partitions, ends, records, {}))
    partitions = []
    for partition in range(recipe.partitions):
        expected = expectations(loaded, partition)
        recovered = loaded.rebuild(partition, snapshots=False)
        if facts(recovered) != expected["final"]:
            raise SystemExit(f"{path.name}: recovery with snapshots and without do not agree")
        if not recipe.shares_model:
            write_model(path / f"model.{partition}.npz", export_model(broker, TOPICS, partition))
        partitions.append(expected)
    expected = {"machine": machine(), "snapshot_format": FORMAT, "partitions": partitions}
    if recipe.shares_model:
        past = export_model(broker, TOPICS, 0, number=partitions[0]["earlier"]["step"])
        write_model(path / "model.npz", past)
        expected["model"] = shared_expectations(loaded, past)
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (path / EXPECTED).write_text(text + "\n", encoding="utf-8")


def read_whole(broker: Broker, tp: TopicPartition) -> Iterator[Any]:
    """All committed records of a partition."""
    reader = broker.reader([tp])
    end = broker.ends([tp])[tp].stable
    while reader.position(tp) < end:
        yield from reader.poll(100, 1_000)
    reader.close()


def expectations(loaded: Loaded, partition: int) -> dict[str, Any]:
    """What this version says of a partition."""
    recovered = loaded.rebuild(partition)
    stored = Stored()
    for chunk in loaded.records(TOPICS.snapshots, partition):
        stored.add(chunk.key, chunk.value)
    newest = stored.newest
    if newest is None:
        raise SystemExit(f"partition {partition} has no snapshot")
    state = b"".join(newest.payloads)
    opening = next(loaded.records(TOPICS.journal, partition))
    middle = recovered.number // 2
    return {
        "opening": (opening.value or b"").decode(),
        "snapshot": state[4 : 4 + int.from_bytes(state[:4], "little")].decode(),
        "generation": newest.number,
        "then": facts(loaded.rebuild(partition, until=newest.number, snapshots=False)),
        "overflows": overflows(recovered),
        "final": facts(recovered),
        "earlier": {"step": middle, "state_digest": loaded.export(partition, middle).meta["digest"]},
    }


def shared_expectations(loaded: Loaded, past: Model) -> dict[str, Any]:
    """What this version says of a shared model."""
    return {
        **model_facts(loaded.export(0)),
        "snapshot": model_facts(loaded.model_snapshot()),
        "file": model_facts(past),
        "replicas": [replica._asdict() for replica in loaded.audit_log().replicas],
    }


def write_records(path: Path, golden: Golden) -> None:
    """Write the records; the same ones give the same file."""
    ends = {f"{topic}/{partition}": end for (topic, partition), end in golden.ends.items()}
    lines: list[Any] = [{"prefix": golden.prefix, "partitions": golden.partitions, "ends": ends}]
    for found in golden.records:
        headers = [[name, encoded(content)] for name, content in found.headers]
        lines.append([*found[:4], encoded(found.key), encoded(found.value), headers])
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main(arguments: list[str]) -> None:
    """Record the pipelines that are named, or all."""
    folder = FOLDER / arguments[0]
    for name in arguments[1:] or RECIPES:
        recipe, path = RECIPES[name], folder / name
        if path.exists():
            raise SystemExit(f"{path} stands; what a version wrote is recorded once: give another VERSION")
        if recipe.on_kafka:
            with local_kafka() as kafka:
                broker = KafkaBroker(kafka.bootstrap)
                run_on_kafka(broker, recipe, folder)
                record(broker, recipe, path)
                broker.close()
        else:
            record(run_embedded(recipe, folder), recipe, path)
        size = sum(file.stat().st_size for file in path.iterdir())
        print(f"{path.relative_to(FOLDER)}: {size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
