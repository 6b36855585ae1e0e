"""Long runs with dozens of faults on a real Kafka broker: `make test-faults`. Short runs are in tests/real_kafka.

Each run ends with the same checks: the audit passes, every context is decided and settled once, a replay of the whole
journal produces the same model, and the topics follow the documentation. A seed determines when the faults occur, but
not what each process is doing when they occur.
"""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onebit.testing.processes import Program, wait_for
from stream.devkafka.local_kafka import LocalKafka
from stream.verifying.shared_log import audit_log
from tests.processes import Pipeline, Watch, kill_broker

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

SEED = 20_26
STREAM = {
    "data": "synsep",
    "shuffle": "true",
    "delay": "lognormal:300ms,1.0",
    "loss": 0.01,
    "duplicates": 0.01,
    "snapshot_interval": "2s",  # so short that many faults interrupt a snapshot, and most recoveries load a snapshot
}
WINDOW = "3s"
"""The window is shorter than some delays, so some feedback is late."""


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[list[Pipeline]]:
    """A list of pipelines whose programs are killed after the test."""
    made: list[Pipeline] = []
    yield made
    for pipeline in made:
        pipeline.close()


def test_learner_that_is_killed_twenty_times_loses_and_repeats_nothing(
    kafka: LocalKafka, prefix: str, tmp_path: Path, pipelines: list[Pipeline]
) -> None:
    events = 50_000
    pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, **STREAM, events=events, rate=800, window=WINDOW)
    pipelines.append(pipeline)
    pipeline.create_topics()
    draw = random.Random(SEED)
    # Each kill occurs shortly after the number of decided contexts has reached a random value. By then, the learner has
    # decided at least one context since its last start. In about a quarter of cases, the learner is killed again during
    # its recovery.
    kills = ["learn"] * 20 + ["replay"] * 4 + ["feedback"] * 4
    moments = sorted((draw.randrange(500, events - 5_000), name) for name in kills)
    running = {name: start(pipeline, name) for name in ("learn", "feedback", "replay")}
    decided_before = 0
    with pipeline.watch() as watch:
        for decided, name in moments:
            watch.wait_until_decided(min(max(decided, decided_before + 1), events))
            time.sleep(draw.uniform(0, 0.3))
            if running[name].process.poll() is None or name != "replay":  # the replay may already have finished
                running[name].kill()
            running[name] = start(pipeline, name)
            if name == "learn" and draw.random() < 0.25:
                running[name].wait_until_it_says("started as instance")
                time.sleep(draw.uniform(0, 0.5))
                running[name].kill()
                running[name] = start(pipeline, name)
            if name == "learn":
                decided_before = watch.ledger().decided
        assert running["replay"].wait(300) == 0, running["replay"].said()
        watch.wait_until_decided(events)
        pipeline.assert_every_context_is_decided_and_settled_once(events)
        ledger = watch.ledger()
        assert (ledger.late > 0, ledger.expired > 0, ledger.feedback_duplicates > 0) == (True, True, True)
    assert [running[name].stop() for name in ("learn", "feedback")] == [0, 0]
    pipeline.assert_model_equals_replay()
    pipeline.assert_topics_follow_the_documentation()


def test_nothing_is_lost_or_repeated_while_learners_join_leave_and_die(
    kafka: LocalKafka, prefix: str, tmp_path: Path, pipelines: list[Pipeline]
) -> None:
    events = 16_000
    pipeline = Pipeline(
        kafka.bootstrap, prefix, tmp_path, **STREAM, events=events, rate=400, window=WINDOW, partitions=4, model="own"
    )
    pipelines.append(pipeline)
    pipeline.create_topics()
    draw = random.Random(SEED + 1)
    instances = ("a", "b", "c")
    learners: dict[str, Program] = {}
    changes = [
        *("joins", "joins", "joins", "leaves", "joins", "dies", "joins", "leaves", "dies", "joins", "joins", "freezes"),
        *("leaves", "joins", "dies", "joins"),
    ]
    start(pipeline, "feedback")
    replay = start(pipeline, "replay")
    with pipeline.watch() as watch:
        for number, change in enumerate(changes):
            present, absent = sorted(learners), sorted(set(instances) - learners.keys())
            if change == "joins":
                instance = draw.choice(absent)
                learners[instance] = pipeline.start("learn", "--instance", instance)
                learners[instance].wait_until_it_says("started as instance")  # from now on, the learner handles SIGTERM
            elif change == "leaves":
                assert learners.pop(draw.choice(present)).stop() == 0
            elif change == "dies":
                learners.pop(draw.choice(present)).kill()
            else:
                instance = draw.choice(present)
                watch.wait_until_assigned(present)  # the group would not remove a learner that is still joining
                freeze_past_session(watch, learners.pop(instance), others=sorted(learners))
            watch.wait_until_decided(min(events, (number + 1) * events // (len(changes) + 4)))
        assert replay.wait(300) == 0, replay.said()
        pipeline.assert_every_context_is_decided_and_settled_once(events)
    for instance, learner in learners.items():
        assert learner.stop() == 0, (instance, learner.said())
    pipeline.assert_model_equals_replay()
    pipeline.assert_topics_follow_the_documentation()


def freeze_past_session(watch: Watch, learner: Program, others: list[str]) -> None:
    """Freeze a learner until the other learners have its partitions, resume it, and check that it exits."""
    assert others
    learner.signal(signal.SIGSTOP)
    watch.wait_until_assigned(others)
    learner.signal(signal.SIGCONT)
    assert learner.wait() == 3, learner.said()
    assert "was removed from group" in learner.said()


def test_zombie_writes_nothing_after_its_replacement_has_started(
    kafka: LocalKafka, prefix: str, tmp_path: Path, pipelines: list[Pipeline]
) -> None:
    events = 12_000
    pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, **STREAM, events=events, rate=400, window=WINDOW)
    pipelines.append(pipeline)
    pipeline.create_topics()
    draw = random.Random(SEED + 2)
    start(pipeline, "feedback")
    replay = start(pipeline, "replay")
    learner = start(pipeline, "learn")
    with pipeline.watch() as watch:
        for zombies in range(1, 5):
            watch.wait_until_decided(zombies * events // 6)
            time.sleep(draw.uniform(0, 0.2))
            zombie = learner
            zombie.signal(signal.SIGSTOP)
            frozen_s = time.monotonic()
            learner = start(pipeline, "learn")
            decided = watch.ledger().decided
            watch.wait_until_decided(min(decided + 200, events))
            time.sleep(max(0.0, frozen_s + 4 - time.monotonic()))  # the session lasts 3 s
            zombie.signal(signal.SIGCONT)
            assert zombie.wait() == 3, zombie.said()
            assert "any uncommitted step was discarded" in zombie.said()
        assert replay.wait(300) == 0, replay.said()
        pipeline.assert_every_context_is_decided_and_settled_once(events)
    assert learner.stop() == 0
    pipeline.assert_model_equals_replay()
    pipeline.assert_topics_follow_the_documentation()


def kill_unless_expelled(learner: Program) -> None:
    """Kill a learner. If it has already exited, check that it did so because of a session timeout."""
    if learner.process.poll() is None:
        learner.kill()
    else:
        assert learner.wait() == 3, learner.said()
        assert "was removed from group" in learner.said()


def test_shared_model_survives_kills_of_three_learners_and_their_broker(
    own_kafka: LocalKafka, tmp_path: Path, pipelines: list[Pipeline]
) -> None:
    events, instances = 20_000, "abc"
    pipeline = Pipeline(
        own_kafka.bootstrap, "shared.", tmp_path, **STREAM | {"learner": "late-ucb"}, events=events, rate=400,
        window=WINDOW, partitions=3, model="shared",
    )  # fmt: skip
    pipelines.append(pipeline)
    pipeline.create_topics()
    draw = random.Random(SEED + 3)
    learners = {name: pipeline.start("learn", "--instance", name) for name in instances}
    faults = ["freeze", *(instances * 2), "broker", *(instances * 3)]
    with pipeline.watch() as watch:
        watch.wait_until_assigned(instances)
        start(pipeline, "feedback")
        replay = start(pipeline, "replay")
        for number, fault in enumerate(faults, start=1):
            watch.wait_until_decided(number * events // (len(faults) + 2))
            time.sleep(draw.uniform(0, 0.3))
            if fault == "broker":
                kill_broker(own_kafka)
                continue
            name = draw.choice(instances) if fault == "freeze" else fault
            if fault == "freeze":
                watch.wait_until_assigned(instances)
                freeze_past_session(watch, learners[name], others=[one for one in instances if one != name])
            elif "broker" in faults[:number]:
                kill_unless_expelled(learners[name])
            else:
                learners[name].kill()
            learners[name] = pipeline.start("learn", "--instance", name)
        assert replay.wait(300) == 0, replay.said()
        pipeline.assert_every_context_is_decided_and_settled_once(events)
        wait_for(
            lambda: len({replica.version for replica in audit_log(watch.broker, pipeline.topics, 3).replicas}) == 1,
            "all replicas have reported the same model version",
        )
    for name, learner in learners.items():
        assert learner.stop() == 0, (name, learner.said())
    found = pipeline.verify("--replay", timeout_s=300)
    assert found["ok"], found
    pipeline.assert_topics_follow_the_documentation()
    assert [replica["instance"] for replica in found["replicas"]] == [f"learner-{name}" for name in instances]
    assert {replica["version"] for replica in found["replicas"]} == {found["model_version"]}
    assert len({replica["sha256"] for replica in found["replicas"]}) == 1
    assert {one["state"] for one in found["replay"]} == {found["replicas"][0]["sha256"]}


def test_programs_survive_a_broker_outage_longer_than_a_request(
    own_kafka: LocalKafka, tmp_path: Path, pipelines: list[Pipeline]
) -> None:
    events = 8_000
    pipeline = Pipeline(
        own_kafka.bootstrap,
        "run.",
        tmp_path,
        **STREAM,
        events=events,
        rate=400,
        window=WINDOW,
        partitions=2,
        model="own",
    )
    pipelines.append(pipeline)
    pipeline.create_topics()
    programs = [start(pipeline, name) for name in ("learn", "feedback", "replay")]
    with pipeline.watch() as watch:
        watch.wait_until_decided(events // 2)
        kill_broker(own_kafka, down_s=20.0)
        assert programs[2].wait(300) == 0, programs[2].said()
        watch.wait_until_decided(events)
    pipeline.assert_every_context_is_decided_and_settled_once(events)
    assert [program.stop() for program in programs[:2]] == [0, 0]
    pipeline.assert_model_equals_replay()
    pipeline.assert_topics_follow_the_documentation()


def start(pipeline: Pipeline, name: str) -> Program:
    """Start a program. The new process continues where the previous process stopped."""
    return pipeline.start(name, *(["--resume"] if name == "replay" else []))
