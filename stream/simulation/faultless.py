"""Compares a run with a run of the same events without faults.

If the faults of a run take no virtual time, it publishes the same predictions, examples and dead letters as the run
without faults in one process, byte for byte and in the same order. The final model and join of every partition are also
equal. Four conditions apply:

1. A learner polls whenever something is appended or due. Otherwise a decision's tick has another time.
2. `idle_ms` is 1, and deadlines pass in milliseconds without other events (see `schedule`). Otherwise a learner that
   has just started detects them later than a running one.
3. `retain_ms` is longer than the run, because ids are forgotten by stream time, which advances with every tick.
4. No other producer holds a transaction open on contexts or feedback.

Runs with a shared model are not compared, because a decision depends on the position in the log.

Stream times and offsets of feedback are not compared. Both depend on the number of ticks, one per step, and faults
change which records form a step.
"""

import re
from collections.abc import Iterable, Mapping

from stream.kafka.reading import read_partition
from stream.simulation.checks import differences, state_of
from stream.simulation.outside import TOPICS
from stream.simulation.world import World
from stream.wire.records import Record, TopicPartition


def equal_faultless(world: World, faultless: World) -> list[str]:
    """The differences from the run without faults."""
    wrong: list[str] = []
    for topic in (TOPICS.predictions, TOPICS.examples, TOPICS.dead_letter):
        for partition in range(world.schedule.partitions):
            tp = TopicPartition(topic, partition)
            one = _lasting_values(read_partition(world.broker, tp))
            other = _lasting_values(read_partition(faultless.broker, tp))
            name = f"unlike the faultless run, {topic}/{partition}"
            wrong += [f"{name} {difference}" for difference in differences("record", other, one)]
    tasks, expected = world.processes.tasks(), faultless.processes.tasks()
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
    """A task's state without stream times and without other effects of ticks."""
    retained = state["retained"]
    assert isinstance(retained, list)
    without = [(event_id, outcome, reward, known) for event_id, outcome, reward, _, known in retained]
    left_out = ("stream time", "newest date", "undated")
    return {name: value for name, value in state.items() if name not in left_out} | {"retained": without}


def _lasting_values(records: Iterable[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, _LEFT_OUT.sub(b"", record.value or b"")) for record in records]


_LEFT_OUT = re.compile(rb'"(settled_at_ms|feedback_offset)":[0-9]+,?')
