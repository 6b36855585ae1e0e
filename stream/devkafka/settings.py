"""The settings of a local Kafka: server.properties and the log configuration."""

from collections.abc import Mapping
from pathlib import Path

from stream.devkafka.security import CONTROLLER


def write_settings(home: Path, storage: Path, host: str, ports: Mapping[str, int], more: Mapping[str, str]) -> None:
    """Write the settings of a single node with the ports of its listeners.

    Uses a static quorum, which does not store the controller's port, so that the port may change at each start.
    """
    listeners = ",".join(f"{name}://{host}:{port}" for name, port in ports.items())
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{host}:{ports[CONTROLLER]}",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(storage),
        # A mistyped topic name must cause an error; an automatically created topic would use CreateTime.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker can restart only after its previous session has expired (9 s by default).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.min.session.timeout.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # the default is 128 MB of a heap of 384 MB
        **more,
    }
    (home / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (home / "log4j2.properties").write_text(
        f"""\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {home / "broker.log"}
appender.file.filePattern = {home / "broker.log"}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c{{1}})%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""
    )
