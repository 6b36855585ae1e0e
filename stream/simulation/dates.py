"""What must hold of the dates of decisions, whatever was paused, and for how long."""

from stream.brokers.reading import read_partition
from stream.simulation.faulty_broker import Fate
from stream.simulation.outside import TOPICS
from stream.simulation.world import World
from stream.wire import codec
from stream.wire.events import Prediction
from stream.wire.records import Record, TopicPartition

OUTDATED = "decisions stand although their dates are old"


def dated_after_the_start(world: World) -> list[str]:
    """No decision is dated before the start of the process that made it: it learns the time before it decides."""
    since_ms = {
        place: transaction.since_ms
        for transaction in world.processes.transactions.all
        if transaction.fate is Fate.COMMITTED
        for place in transaction.records
        if place[0].topic == TOPICS.predictions
    }
    wrong: list[str] = []
    for partition in range(world.schedule.partitions):
        tp = TopicPartition(TOPICS.predictions, partition)
        for record, prediction in _predictions(world, tp):
            started_ms = since_ms.get((tp, record.offset), 0)
            if prediction.decided_at_ms < started_ms:
                wrong.append(
                    f"{prediction.id} was decided at {prediction.decided_at_ms} ms by a process that was started at "
                    f"{started_ms} ms"
                )
    return wrong


def _predictions(world: World, tp: TopicPartition) -> list[tuple[Record, Prediction]]:
    """The learners' predictions in a partition, with their records."""
    written = read_partition(world.broker, tp)
    ours = [record for record in written if (tp, record.offset) not in world.outside.foreign_outputs]
    return [(record, codec.decode_prediction(record)[0]) for record in ours]


def dated_before_the_append(world: World) -> list[str]:
    """Decisions are dated at most `tolerance_ms` before the append time of their predictions, whatever was paused.

    When a process has given up a step of a partition for that, and then is too slow once more, the decisions stand; so
    do those that follow, until some of that partition are in time again.
    """
    ages_ms: dict[tuple[TopicPartition, int], int] = {}
    for number in range(world.schedule.partitions):
        tp = TopicPartition(TOPICS.predictions, number)
        for record, prediction in _predictions(world, tp):
            ages_ms[tp, record.offset] = record.append_ms - prediction.decided_at_ms
    wrong: list[str] = []
    is_slow: set[tuple[str, int, TopicPartition]] = set()  # process, since when, and where it gave a step up
    for transaction in world.processes.transactions.all:
        places = [place for place in transaction.records if place[0].topic == TOPICS.predictions]
        for tp in {tp for tp, _ in places}:
            who = (transaction.process, transaction.since_ms, tp)
            if transaction.given_up:
                is_slow.add(who)
            elif transaction.fate is Fate.COMMITTED:
                age_ms = max(ages_ms.get(place, 0) for place in places if place[0] == tp)
                if age_ms <= world.schedule.tolerance_ms:
                    is_slow.discard(who)
                elif who in is_slow:
                    world.trace.fired[OUTDATED] += 1
                else:
                    wrong.append(
                        f"{transaction.process} dates decisions {age_ms} ms before their predictions were appended to "
                        f"{tp.topic}/{tp.partition}; expected at most {world.schedule.tolerance_ms}"
                    )
    return wrong
