"""Where the inputs of a process end, as far as its steps depend on it."""

from collections.abc import Mapping

from consumers.running_task import RunningTask
from stream.brokers.port import Broker, Consumer
from stream.wire.records import TopicPartition


class InputEnds:
    """The ends of all inputs, asked for at once when the first of them is needed in a step.

    That is after what is waiting in the process was read, and after the acknowledgement that gave the time: what comes
    beyond these ends is later than both. Most steps depend on the stable ends alone, which cost half as much.
    """

    def __init__(self, broker: Broker, consumer: Consumer, running: Mapping[int, RunningTask]) -> None:
        """Ask for none yet; `running` are the tasks of the process, as they come and go."""
        self._broker = broker
        self._consumer = consumer
        self._running = running
        self._stable: Mapping[TopicPartition, int] | None = None  # None: nothing has depended on them yet
        self._high_watermarks: Mapping[TopicPartition, int] | None = None

    def forget(self) -> None:
        """Ask again when they are needed next."""
        self._stable = self._high_watermarks = None

    def high_watermark(self, tp: TopicPartition) -> int:
        """Where an input ends, behind all that is in it."""
        if self._high_watermarks is None:
            ends = self._broker.ends(self._inputs())
            self._high_watermarks = {tp: end.high_watermark for tp, end in ends.items()}
            self._stable = {tp: end.stable for tp, end in ends.items()}
        return self._high_watermarks[tp]

    def is_read(self, tp: TopicPartition) -> bool:
        """Whether an input is read to its end, as far as it can be."""
        if self._stable is None:
            self._stable = self._broker.stable_ends(self._inputs())
        return self._consumer.position(tp) >= self._stable[tp]

    def is_all_read(self, tp: TopicPartition) -> bool:
        """Whether no record is left in an input, not even one whose transaction is open."""
        return self._consumer.position(tp) >= self.high_watermark(tp)

    def _inputs(self) -> list[TopicPartition]:
        return [tp for running in self._running.values() for tp in (running.contexts_tp, running.feedback_tp)]
