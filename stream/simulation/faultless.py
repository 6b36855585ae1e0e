"""What a run must have in common with the run of the same events without faults.

**Equal to the faultless run, bit for bit.** A run whose faults take no virtual time publishes the same predictions,
examples and dead letters, byte for byte and in the same order, and ends with the same model and join in every
partition, as the run of the same events without faults in one process. This is promised under four conditions, without
which the runs may rightly differ, because a learner that is started anew knows less, or more, about the time:

1. a learner polls at every moment at which something is appended or due (else the one that recovers dates its decisions
   by the time that it has just learned, and the other by the append time of the contexts);
2. `idle_ms` is 1: time-outs are noticed in the millisecond in which they fall due (else they are noticed when a learner
   next asks for the time, and a learner asks at its start);
3. `retain_ms` is longer than the run, for the same reason: a context does not move the watermark, so how early a
   settled id is found forgotten depends on when the time was last asked for;
4. no other producer holds a transaction open on contexts, which are decided when it ends, or on feedback, which stops
   the watermark until then.

Of runs with a shared model it is not promised: what a task decides on depends on how far the log was read, and so on
where each step ends.

One field is left out: `settled_at_ms`, and with it the times in the list of settled ids. It is the watermark, and for a
decision that was settled when a context came (its feedback had waited, or it had to make room) the watermark is as
late as the time was last asked for.
"""

import re
from collections.abc import Iterable, Mapping

from stream.brokers.reading import read_partition
from stream.simulation.checks import differences, state_of
from stream.simulation.outside import TOPICS
from stream.simulation.world import World
from stream.wire.records import Record, TopicPartition


def equal_faultless(world: World, faultless: World) -> list[str]:
    """What differs from the run without faults; see above."""
    wrong: list[str] = []
    for topic in (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter):
        for partition in range(world.schedule.partitions):
            tp = TopicPartition(topic, partition)
            one = _lasting_values(read_partition(world.broker, tp))
            other = _lasting_values(read_partition(faultless.broker, tp))
            name = f"unlike the faultless run, {topic}/{partition}"
            wrong += [f"{name} {difference}" for difference in differences("record", other, one)]
    tasks, expected = world.tasks(), faultless.tasks()
    for partition in sorted(expected):
        if partition in tasks:
            one_state, other_state = _lasting(state_of(tasks[partition])), _lasting(state_of(expected[partition]))
            wrong += [
                f"unlike the faultless run, partition {partition}, {name}: expected {other_state[name]}; got {value}"
                for name, value in one_state.items()
                if value != other_state[name]
            ]
    return wrong


def _lasting(state: Mapping[str, object]) -> dict[str, object]:
    """Without the watermark, and the times at which ids were settled, which are watermarks."""
    retained = state["retained"]
    assert isinstance(retained, list)
    without = [(event_id, outcome, reward, known) for event_id, outcome, reward, _, known in retained]
    return {name: value for name, value in state.items() if name != "watermark"} | {"retained": without}


def _lasting_values(records: Iterable[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, _SETTLED_AT.sub(b"", record.value or b"")) for record in records]


_SETTLED_AT = re.compile(rb'"settled_at_ms":[0-9]+,')
