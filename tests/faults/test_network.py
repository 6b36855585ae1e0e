"""Programs behind a proxy that closes connections, delays and repeats requests, and stops forwarding for a while."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stream.devkafka.local_kafka import local_kafka
from tests.processes import Pipeline
from tests.proxy import END_TXN, Proxy

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

EVENTS, RATE = 20_000, 200
SEED = 20_27


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy in front of a Kafka broker that advertises the proxy's address."""
    with Proxy() as made, local_kafka(settings={"advertised.listeners": f"PLAINTEXT://{made.address}"}) as kafka:
        made.broker_port = int(kafka.bootstrap.rpartition(":")[2])
        yield made


@pytest.mark.each_client
def test_nothing_is_lost_or_repeated_on_a_bad_network(proxy: Proxy, prefix: str, tmp_path: Path, client: str) -> None:
    draw = random.Random(SEED)

    def pause() -> None:
        proxy.freeze()
        time.sleep(draw.uniform(0, 5))
        proxy.thaw()

    def repeat_end() -> None:
        fault = proxy.hold(END_TXN, cuts=True)
        fault.wait()
        time.sleep(draw.uniform(0, 0.5))
        fault.release()  # during one of the next transactions

    def lose_end() -> None:
        proxy.drop(END_TXN, cuts=True).wait()

    faults: list[Callable[[], None]] = [proxy.cut, pause, repeat_end, repeat_end, lose_end]
    pipeline = Pipeline(
        proxy.address, prefix, tmp_path, client=client, data="synsep", shuffle="true", delay="lognormal:300ms,1.0",
        events=EVENTS, rate=RATE, window="3s", snapshot_interval="2s", session_timeout="8s",
    )  # fmt: skip
    pipeline.create_topics()
    running = {name: pipeline.start(name) for name in ("learn", "feedback", "replay")}
    try:
        with pipeline.watch() as watch:
            watch.wait_until_decided(100)
            while running["replay"].process.poll() is None:
                draw.choice(faults)()
                time.sleep(draw.uniform(0, 2))
            assert running["replay"].wait(1) == 0, running["replay"].said()
        pipeline.assert_every_context_is_decided_and_settled_once(EVENTS)
        assert [running[name].stop() for name in ("learn", "feedback")] == [0, 0]
        pipeline.assert_model_equals_replay()
    finally:
        pipeline.close()
