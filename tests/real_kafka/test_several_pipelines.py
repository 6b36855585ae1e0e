"""One learner process with several pipelines, one of which has no topics."""

from contextlib import closing
from pathlib import Path

from stream.devkafka.local_kafka import LocalKafka
from stream.errors import ExitCode
from tests.pipeline import context_value
from tests.processes import Pipeline


def test_process_serves_its_other_pipelines_and_reports_the_one_with_an_error(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    pipelines = [
        Pipeline(kafka.bootstrap, f"{prefix}{number}.", tmp_path, learner="banditron", n_classes=3, n_features=4)
        for number in range(3)
    ]
    try:
        for one in pipelines[:2]:
            one.create_topics()
        flags = [flag for number in range(3) for flag in ("--topic-prefix", f"{prefix}{number}.")]
        learner = pipelines[0].start("learn", *flags)
        learner.wait_until(lambda: learner.said().count("started as instance") == 2, "two learners run")
        for one in pipelines[:2]:
            with closing(one.broker()) as broker:
                producer = broker.producer()
                producer.send(one.topics.contexts, 0, b"visit-1", context_value("visit-1"))
                producer.flush()
            with one.watch() as watch:
                watch.wait_until_decided(1)
        assert learner.stop() == ExitCode.USAGE, learner.said()
        assert f"pipeline {prefix}2.: " in learner.said().splitlines()[-1]
    finally:
        for one in pipelines:
            one.close()
