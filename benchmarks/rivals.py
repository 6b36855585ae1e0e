"""Programs that benchmarks/real_kafka.py compares with Onebit's programs.

    python benchmarks/rivals.py bare N    a transaction loop that reads contexts and writes one record per context
    python benchmarks/rivals.py faust N   a Faust agent that joins contexts and feedback in memory

Settings are read from the ONEBIT_ variables, as in Onebit's programs. N is the number of events.
"""

import asyncio
import os
import sys
import tempfile

import faust
import numpy as np
import orjson

from producers.data import dataset_of
from stream.kafka.connection import connect
from stream.programs.task_settings import task_settings
from stream.randomness.draws import Draws, Purpose
from stream.settings.sources import load_settings
from stream.wire import codec
from stream.wire.records import Features, Prediction, TopicPartition
from stream.wire.topics import Topics

RECORDS_MAX = 2_000
"""Maximum number of records per transaction; the same as the learner's default."""


class Assigned:
    """Accepts all assigned partitions."""

    def on_assigned(self, tps: frozenset[TopicPartition]) -> None:
        """See `RebalanceListener.on_assigned`."""

    def on_revoked(self, tps: frozenset[TopicPartition]) -> None:
        """See `RebalanceListener.on_revoked`."""


def bare(events: int) -> None:
    """Answer contexts in transactions. Each answer is as long as a prediction with ten classes."""
    settings = load_settings({})
    topics = Topics.with_prefix(settings.topic_prefix)
    broker = connect(settings.bootstrap, client=settings.client)
    consumer = broker.group_consumer(f"{settings.topic_prefix}bare", "bare", (topics.contexts,), Assigned())
    producer = broker.transactional_producer("bare")
    value, done = b"x" * 350, 0
    while done < events:
        records = consumer.poll(100, RECORDS_MAX)
        if records:
            producer.begin()
            for record in records:
                producer.send(topics.predictions, record.partition, record.key, value, codec.HEADERS)
            producer.flush()
            producer.send_offsets({tp: consumer.position(tp) for tp in consumer.assignment()}, consumer)
            producer.commit()
            done += len(records)
    consumer.close()
    producer.close()
    broker.close()


def in_memory(events: int) -> None:
    """Decide and learn in a Faust agent that stores pending decisions in a dict."""
    settings = load_settings({})
    topics = Topics.with_prefix(settings.topic_prefix)
    dataset = dataset_of(settings)
    task = task_settings(settings, settings.learner[0], dataset.n_classes, dataset.n_features)
    learner, draw = task.make_learner(), Draws(task.seed, Purpose.ACTION)
    task.warm_up()
    with tempfile.TemporaryDirectory() as directory:
        app = faust.App(
            f"{settings.topic_prefix}faust", broker=f"kafka://{settings.bootstrap}", datadir=directory,
            key_serializer="raw", value_serializer="raw", store="memory://", topic_partitions=1,
            topic_disable_leader=True, web_enabled=False, consumer_auto_offset_reset="earliest",
        )  # fmt: skip
        predictions = app.topic(topics.predictions)
        waiting, settled = {}, 0

        @app.agent(app.topic(topics.contexts))
        async def decide(stream):  # type: ignore[no-untyped-def]
            async for event in stream.events():
                fields = orjson.loads(event.value)
                x = fields["x"]
                indices = np.array(x["i"], dtype=np.int32)
                features = Features(indices, np.array(x["v"]) if "v" in x else np.ones(len(indices)))
                decision = learner.predict(features, draw(fields["id"]))
                learner.observe(features, decision)
                waiting[fields["id"]] = features, decision
                value = codec.encode_prediction(Prediction(fields["id"], decision, 0), event.message.offset)
                await predictions.send(key=event.key, value=value, partition=0, headers=dict(codec.HEADERS))

        @app.agent(app.topic(topics.feedback))
        async def learn(stream):  # type: ignore[no-untyped-def]
            nonlocal settled
            async for value in stream:
                fields = orjson.loads(value)
                features, decision = waiting.pop(fields["id"])
                learner.update(features, decision, fields["reward"])
                settled += 1

        async def run() -> None:
            app.finalize()
            await app.start()
            while settled < events:
                await asyncio.sleep(0.05)
            os._exit(0)  # exit immediately, because the shutdown is not measured

        asyncio.run(run())


if __name__ == "__main__":
    {"bare": bare, "faust": in_memory}[sys.argv[1]](int(sys.argv[2]))
