"""Decisions over HTTP, while the test kills the gateways, the learner and the broker."""

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPException
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError

import pytest

from onebit.testing.processes import wait_for
from stream.devkafka.local_kafka import LocalKafka
from tests.faults.test_faults import kill_unless_expelled
from tests.gateways import Gateway
from tests.independent_reader import committed, value
from tests.processes import Pipeline, kill_broker

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SEED = 20_28
FAULTS = ("a", "learn", "b", "broker", "learn", "a", "broker", "learn")
VISITS_PER_FAULT = 150
CLIENTS = 8


class Clients:
    """Clients that retry each request until it succeeds. A retry has the same id, but can be sent to either gateway."""

    def __init__(self, gateways: dict[str, Gateway]) -> None:
        self.gateways = gateways
        self.decisions: dict[str, Any] = {}  # by id
        self.errors: Counter[str] = Counter()
        self.ended = Event()

    def run(self, number: int) -> None:
        """Request each decision twice and send feedback, until the test ends or a client fails."""
        draw = random.Random(f"{SEED}-{number}")
        try:
            for visit in count():
                if self.ended.is_set():
                    return
                body = {"id": f"{number}-{visit}", "x": [draw.random() for _ in range(4)]}
                ask = partial(Gateway.post, path="/v1/decide", body=body)
                decision = self._repeat(draw, ask)
                assert self._repeat(draw, ask) == decision
                self._repeat(draw, partial(Gateway.judge, answer=decision))
                self.decisions[decision["id"]] = decision
        finally:
            self.ended.set()

    def wait_until_served(self, visits: int) -> None:
        """Wait until the clients have made the given number of visits, or until a client has failed."""
        wait_for(lambda: len(self.decisions) >= visits or self.ended.is_set(), f"{visits} visits are served")

    def _repeat(self, draw: random.Random, ask: Callable[[Gateway], Any]) -> Any:
        while True:
            try:
                return ask(self.gateways[draw.choice("ab")])
            except HTTPError as error:
                if error.code not in (503, 504):
                    raise
                self.errors[str(error.code)] += 1
            except (OSError, HTTPException) as error:  # the gateway was killed
                self.errors[type(error).__name__] += 1
            time.sleep(0.1)


def test_log_has_every_http_decision_once_after_all_programs_were_killed(own_kafka: LocalKafka, tmp_path: Path) -> None:
    settings = {"n_classes": 3, "n_features": 4, "partitions": 2, "model": "own", "window": "10m"}
    draw = random.Random(SEED)
    with closing(Pipeline(own_kafka.bootstrap, "run.", tmp_path, **settings)) as pipeline:
        pipeline.create_topics()
        learner = pipeline.start("learn", "--learner", "banditron")
        clients = Clients({name: Gateway(pipeline, timeout="5s") for name in "ab"})
        with ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(clients.run, number) for number in range(CLIENTS)]
            try:
                for number, fault in enumerate(FAULTS, start=1):
                    clients.wait_until_served(number * VISITS_PER_FAULT)
                    time.sleep(draw.uniform(0, 0.3))
                    if fault == "broker":
                        kill_broker(own_kafka)
                    elif fault == "learn":
                        kill_unless_expelled(learner)
                        learner = pipeline.start("learn")
                    else:
                        clients.gateways[fault].program.kill()
                        clients.gateways[fault] = Gateway(pipeline, timeout="5s")
                clients.wait_until_served((len(FAULTS) + 1) * VISITS_PER_FAULT)
            finally:
                clients.ended.set()
            for one in running:
                one.result()
        found = pipeline.verify("--wait-events", str(len(clients.decisions)), "--timeout", "90s")
        assert found["ok"], found
    pipeline.assert_topics_follow_the_documentation()
    assert {"503", "URLError"} <= clients.errors.keys()
    predictions = [value(one) for one in committed(own_kafka.bootstrap, "run.predictions")]
    names = ("id", "action", "propensity", "model_version")
    assert {one["id"]: {name: one[name] for name in names} for one in predictions} == clients.decisions
    assert len(predictions) == len(clients.decisions)
    examples = [value(one) for one in committed(own_kafka.bootstrap, "run.examples")]
    assert sorted((one["id"], one["outcome"]) for one in examples) == sorted(
        (event_id, "matched") for event_id in clients.decisions
    )
