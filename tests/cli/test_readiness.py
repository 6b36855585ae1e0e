"""A learner is ready while it processes partitions. The ready file reports this to health checks."""

import os
import subprocess
from pathlib import Path

import pytest

from consumers.learner.ready_file import RENEWAL_MS, ReadyFile
from stream.programs.process import monotonic_ms
from stream.settings.definitions import SettingsError
from stream.telemetry.heartbeat import Heartbeat
from stream.telemetry.serving import HealthServer
from tests.pipeline import TOPICS, Pipeline, small_task

READY = Path(__file__).parents[2] / "docker/ready.sh"


def test_learner_is_ready_only_with_a_recovered_partition() -> None:
    pipeline = Pipeline(small_task(), partitions=2)
    first = pipeline.learner("learner-1")
    was_ready = [first.ready]
    first._poll(0)  # the partitions are assigned but not yet recovered
    was_ready.append(first.ready)
    first.step(0)
    was_ready.append(first.ready)
    assert was_ready == [False, False, True]
    others = [pipeline.learner(f"learner-{number}") for number in (2, 3)]
    for _ in range(4):
        for learner in (first, *others):
            learner.step(0)
    held = [len(learner.tasks) for learner in (first, *others)]
    assert sorted(held) == [0, 1, 1]
    assert [learner.ready for learner in (first, *others)] == [bool(count) for count in held]


def test_learner_blocked_by_an_open_transaction_is_not_ready() -> None:
    pipeline = Pipeline(small_task())
    other = pipeline.broker.transactional_producer("previous owner")
    other.begin()
    other.send(TOPICS.journal, 0, None, b"{}")
    other.flush()
    learner = pipeline.learner()
    learner.step(0)
    was_ready = [learner.ready]
    other.abort()
    learner.step(0)
    assert [*was_ready, learner.ready] == [False, True]


def test_ready_file_exists_and_is_touched_while_ready(tmp_path: Path) -> None:
    path, now_ms = tmp_path / "ready", 0
    path.write_text("left by a killed process")
    ready_file = ReadyFile(path, lambda: now_ms)
    assert not path.exists()
    ready_file.show(ready=True)
    os.utime(path, (0, 0))
    now_ms = RENEWAL_MS - 1
    ready_file.show(ready=True)
    assert path.stat().st_mtime == 0
    now_ms = RENEWAL_MS
    ready_file.show(ready=True)
    assert path.stat().st_mtime > 0
    ready_file.show(ready=False)
    assert not path.exists()
    ready_file.show(ready=True)
    assert path.exists()


def test_unwritable_ready_file_is_rejected_at_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--ready-file .*nowhere/ready: expected a file in a writable folder"):
        ReadyFile(tmp_path / "nowhere" / "ready")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError, match=r"--ready-file .*folder: cannot remove"):
        ReadyFile(tmp_path / "folder")


def test_ready_file_that_becomes_unwritable_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ready_file = ReadyFile(folder / "ready")
    folder.rmdir()
    ready_file.show(ready=True)
    ready_file.show(ready=True)
    assert capsys.readouterr().err.count("--ready-file") == 1


@pytest.mark.parametrize("unready", ["", "no partition assigned"])
def test_image_health_check_requests_readiness(unready: str) -> None:
    heartbeat = Heartbeat("learner", "0", monotonic_ms)
    server = HealthServer(heartbeat, "127.0.0.1", 0)
    try:
        heartbeat.show(unready, tuple)
        environment = {**os.environ, "ONEBIT_METRICS_PORT": str(server.port)}
        done = subprocess.run(["bash", READY], check=False, timeout=30, env=environment)
    finally:
        server.close()
    assert (done.returncode == 0) == (unready == "")


def test_image_health_check_accepts_a_program_without_a_port() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_PORT")}
    assert subprocess.run(["bash", READY], check=False, timeout=30, env=environment).returncode == 0
