"""The ready file as a learner process is started, frozen, resumed and stopped."""

import signal
import time
from contextlib import suppress
from pathlib import Path

from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import LocalKafka
from tests.processes import Pipeline

STALE_S = 4.0


def age_s(path: Path) -> float:
    """Return the seconds since the file was last modified, or infinity if it does not exist."""
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return float("inf")


def test_ready_file_is_fresh_only_while_the_learner_processes_partitions(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "ready"
    path.touch()  # left by an earlier process
    pipeline = Pipeline(kafka.bootstrap, prefix, tmp_path, n_classes=3, n_features=4, ready_file=path)
    try:
        pipeline.create_topics()
        learner = pipeline.start("learn")
        wait_for(lambda: not path.exists(), "the earlier process's file is removed")
        wait_for(lambda: age_s(path) < STALE_S, "the learner is ready")
        touched_s = path.stat().st_mtime
        wait_for(lambda: path.stat().st_mtime > touched_s, "the file is touched again")
        learner.signal(signal.SIGSTOP)
        wait_for(lambda: age_s(path) > STALE_S, "the frozen learner's file is stale")
        learner.signal(signal.SIGCONT)  # the session of 3 s has ended, so the learner is fenced
        assert learner.wait() == 3, learner.said()
        assert not path.exists()

        again = pipeline.start("learn")
        wait_for(lambda: age_s(path) < STALE_S, "the restarted learner is ready")
        assert again.stop() == 0
        assert not path.exists()
    finally:
        pipeline.close()
