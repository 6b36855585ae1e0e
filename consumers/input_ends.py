"""Where the inputs of a process end, as far as its steps depend on it."""

from collections.abc import Mapping

from consumers.running_task import RunningTask
from stream.brokers.port import Broker, Consumer, Ends
from stream.wire.records import TopicPartition


class InputEnds:
    """The ends of all inputs, asked for at once when the first of them is needed in a step.

    That is after what is waiting in the process was read, and after the acknowledgement that gave the time: what comes
    beyond these ends is later than both.
    """

    def __init__(self, broker: Broker, consumer: Consumer, running: Mapping[int, RunningTask]) -> None:
        """Ask for none yet; `running` are the tasks of the process, as they come and go."""
        self._broker = broker
        self._consumer = consumer
        self._running = running
        self._ends: Mapping[TopicPartition, Ends] | None = None  # None: nothing has depended on them yet

    def forget(self) -> None:
        """Ask again when they are needed next."""
        self._ends = None

    def of(self, tp: TopicPartition) -> Ends:
        """Where an input ends."""
        if self._ends is None:
            tps = [tp for running in self._running.values() for tp in (running.contexts_tp, running.feedback_tp)]
            self._ends = self._broker.ends(tps)
        return self._ends[tp]

    def is_read(self, tp: TopicPartition) -> bool:
        """Whether an input is read to its end, as far as it can be."""
        return self._consumer.position(tp) >= self.of(tp).stable

    def is_all_read(self, tp: TopicPartition) -> bool:
        """Whether no record is left in an input, not even one whose transaction is open."""
        return self._consumer.position(tp) >= self.of(tp).high_watermark
