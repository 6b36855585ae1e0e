"""What the tests on a real Kafka share: Onebit's programs as a user runs them, each in a process of its own.

A test tells them what to do by settings and signals, and hears of them by their output, their exit codes and the
topics. What is in the topics is read by a plain client, which knows nothing of Onebit.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.structs import TopicPartition as KafkaTopicPartition

from stream.brokers.kafka_python.broker import KafkaBroker
from stream.brokers.port import BrokerError
from stream.recovery.journal_reading import JournalFollower
from stream.wire.ledger import Ledger
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

WAIT_S = 120.0

CLIENTS = tuple(os.environ.get("ONEBIT_TEST_CLIENTS", "kafka-python").split(","))
"""The clients of the tests on a real Kafka beyond the contract; more by `make test CLIENTS=kafka-python,confluent`."""


def wait_for(
    claim: Callable[[], bool], what: str, timeout_s: float = WAIT_S, otherwise: Callable[[], str] = str
) -> None:
    """Wait until something holds; `otherwise` tells how things stand when it did not come to hold."""
    deadline_s = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"this did not come to hold within {timeout_s:g} s: {what}\n{otherwise()}")
        time.sleep(0.02)


class Program:
    """A process of one of Onebit's programs."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stream.cli", *arguments],
                cwd=log.parent,  # where no onebit.toml lies
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """All that it has written."""
        return self.log.read_text(errors="replace")

    def wait_until_it_says(self, pattern: str, timeout_s: float = WAIT_S) -> None:
        """Wait for its output; a process that has ended will say nothing more."""
        wait_for(lambda: bool(re.search(pattern, self.said())) or self._ended(pattern), pattern, timeout_s)

    def _ended(self, pattern: str) -> bool:
        code = self.process.poll()
        assert code is None or re.search(pattern, self.said()), f"ended with exit code {code}:\n{self.said()}"
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; it must still run."""
        assert self.process.poll() is None, f"ended with exit code {self.process.returncode}:\n{self.said()}"
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, as a machine that goes down would."""
        self.signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Its exit code, when it has ended."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        raise AssertionError(f"did not end within {timeout_s:g} s:\n{self.said()}")


class Pipeline:
    """The topics of one pipeline on a Kafka, and the programs that work on them."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path, **settings: object) -> None:
        """Settings are those of every program, by their names."""
        self.topics = Topics.with_prefix(prefix)
        self.partitions = int(str(settings.get("partitions", 1)))
        self.programs: list[Program] = []
        self._bootstrap = bootstrap
        self._directory = directory
        self._numbers = count()
        own = {name: value for name, value in os.environ.items() if not name.startswith("ONEBIT_")}
        given = {"bootstrap": bootstrap, "topic_prefix": prefix, "session_timeout": "3s", **settings}
        self._environment = own | {f"ONEBIT_{name.upper()}": str(value) for name, value in given.items()}

    def start(self, *arguments: str) -> Program:
        """Start a program; what it says goes to a file."""
        log = self._directory / f"{next(self._numbers)}-{arguments[0]}.log"
        self.programs.append(Program(list(arguments), self._environment, log))
        return self.programs[-1]

    def create_topics(self) -> None:
        """Make the topics."""
        broker = self.broker()
        broker.create_topics(self.topics.specs(self.partitions))
        broker.close()

    def said(self) -> str:
        """The last that each program has said, and whether it still runs."""
        return "\n".join(
            f"--- {program.log.name}, exit code {program.process.poll()}:\n{program.said()[-2_000:]}"
            for program in self.programs
        )

    def broker(self) -> KafkaBroker:
        """A connection of the test's own."""
        return KafkaBroker(self._bootstrap)

    @contextmanager
    def watch(self) -> Iterator["Watch"]:
        """Follow the journals."""
        broker = self.broker()
        try:
            yield Watch(broker, self._bootstrap, self.topics, self.partitions, self.said)
        finally:
            broker.close()

    def verify(self, *arguments: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """What `onebit verify --json` finds."""
        done = subprocess.run(
            [sys.executable, "-m", "stream.cli", "verify", "--json", *arguments],
            cwd=self._directory, env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.stdout, f"verify ended with exit code {done.returncode} and said only:\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == found["ok"]
        return found

    def committed_records(self, topic: str) -> list[Any]:
        """All records of a topic that a reader of committed records sees, by a plain client."""
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        tps = [KafkaTopicPartition(topic, partition) for partition in range(self.partitions)]
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        records: list[Any] = []
        deadline_s = time.monotonic() + WAIT_S
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline_s, f"{topic} could not be read to its end"
            for polled in consumer.poll(200).values():
                records += polled
        consumer.close()
        return records

    def committed_ids(self, topic: str) -> Counter[str]:
        """How often each event id stands in a topic."""
        return Counter(json.loads(record.value)["id"] for record in self.committed_records(topic))

    def assert_every_context_is_decided_and_settled_once(self, events: int, *verify: str) -> None:
        """The books are exact, nothing is left, and every event has one prediction and one example."""
        found = self.verify("--wait-events", str(events), "--timeout", "90s", *verify)
        assert found["ok"], found
        once = Counter(self.committed_ids(self.topics.contexts).keys())
        assert len(once) == events
        assert self.committed_ids(self.topics.predictions) == once
        assert self.committed_ids(self.topics.examples) == once

    def assert_model_is_that_of_the_journal(self) -> None:
        """The journal applied again from its first step, without a snapshot, gives the model that there is."""
        found = self.verify("--replay", timeout_s=300)
        assert found["ok"], found

    def close(self) -> None:
        """Kill what is left."""
        for program in self.programs:
            if program.process.poll() is None:
                with suppress(ProcessLookupError):
                    program.process.send_signal(signal.SIGCONT)
                program.process.kill()
                program.process.wait(WAIT_S)


class Watch:
    """How far the learners of a pipeline have come."""

    def __init__(
        self, broker: KafkaBroker, bootstrap: str, topics: Topics, partitions: int, said: Callable[[], str]
    ) -> None:
        self.broker = broker
        self._said = said
        self._bootstrap = bootstrap
        self._follower = JournalFollower(broker, topics, partitions)
        self._topics = topics
        self._partitions = partitions
        self._ledger = Ledger()

    def ledger(self) -> Ledger:
        """The sum of the tasks' ledgers; while the broker is away, as it was."""
        with suppress(BrokerError):
            self._ledger = self._follower.read(20)
        return self._ledger

    def applied_to(self, partition: int) -> tuple[int, int]:
        """How far a task has applied its contexts and its feedback, as its journal says."""
        step = self._follower.steps[partition]
        return step.contexts[1], step.feedback[1]

    def wait_until(self, claim: Callable[[Ledger], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait until the ledger is so."""
        wait_for(lambda: claim(self.ledger()), what, timeout_s, lambda: f"{self._ledger}\n{self._said()}")

    def wait_until_decided(self, events: int) -> None:
        """Wait until so many contexts are decided."""
        self.wait_until(lambda ledger: ledger.decided >= events, f"{events} contexts are decided")

    def members(self) -> list[str]:
        """The learners that are in their group, by what `--instance` they have."""
        group = self._topics.contexts.removesuffix("contexts") + "learner"
        admin = KafkaAdminClient(bootstrap_servers=self._bootstrap)
        try:
            found = admin.describe_groups([group])[group]["members"]
        finally:
            admin.close()
        return sorted(member["group_instance_id"].removeprefix("learner-") for member in found)

    def open_transactions(self) -> list[TopicPartition]:
        """The partitions that hold records of a learner's transaction that has not ended."""
        topics = self._topics
        written = (topics.predictions, topics.examples, topics.dead_letter, topics.journal, topics.snapshots)
        tps = [TopicPartition(topic, number) for topic in written for number in range(self._partitions)]
        return [tp for tp, ends in self.broker.ends(tps).items() if ends.stable < ends.high_watermark]
