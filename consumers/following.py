"""How a learner process follows the log of a shared model: a reader, and the replica that it feeds."""

from stream.brokers.port import Broker, Ends
from stream.brokers.reading import read_towards
from stream.joining.task_settings import TaskSettings
from stream.learners.base import KernelLearner
from stream.recovery.model_snapshot import decode_model, read_model_snapshots, restore_model
from stream.sharing.replica import Replica
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics


class Following:
    """The replica of one process, for all of its tasks."""

    def __init__(self, broker: Broker, topics: Topics, settings: TaskSettings) -> None:
        """Follow the log from the newest snapshot of the model on, or from its beginning; nothing is read of it yet.

        Raises:
            JournalError: the snapshot cannot be read, or is of another model.
        """
        learner = settings.make_learner()
        assert isinstance(learner, KernelLearner)
        self.settings = settings
        self.replica = Replica(learner)
        self.ends = Ends(0, 0)  # of the log, as it was asked last
        self._broker = broker
        self._tp = TopicPartition(topics.updates, 0)
        newest = read_model_snapshots(broker, topics).newest
        self._reader = broker.reader([self._tp])
        if newest is not None:
            restore_model(decode_model(newest), self.replica, settings)
            self._reader.seek(self._tp, self.replica.offset)

    def read_on(self) -> None:
        """Read to where the log can be read at the moment of asking: up to the first open transaction in it.

        Raises:
            UpdatesError: it cannot be read on.
            BrokerError: the broker is away.
        """
        self.ends = self._broker.ends([self._tp])[self._tp]
        end = self.ends.stable
        while self._reader.position(self._tp) < end:
            self.replica.read(read_towards(self._reader, self._tp, end))

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
