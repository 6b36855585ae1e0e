"""The connection to Kafka: connect, reconnect, and check the topics."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from pydantic import SecretStr

import stream
from stream.devkafka import local_kafka
from stream.errors import NEW_PIPELINE, StoppedError, check_host
from stream.kafka.connection import ConnectionSettings, chosen
from stream.kafka.connection import connect as connect_to_kafka
from stream.kafka.port import (
    AccessError,
    Broker,
    BrokerError,
    BrokerUnavailableError,
    FencedError,
    StaleMemberError,
    TopicSettingsError,
    TransactionTimeoutError,
)
from stream.kafka.refusals import too_small
from stream.programs.process import announce, every, monotonic_ms, quantity
from stream.programs.watching import Watched, watched
from stream.settings.definitions import KafkaSettings, Settings, SettingsError
from stream.settings.model import Program
from stream.settings.sources import FIELDS, client_config_of
from stream.settings.values import flag_of
from stream.wire.topics import BATCH_BYTES_MAX, TopicDescription, Topics

WATCH_INTERVAL_MS = 30_000
"""Interval between checks of a running program's topics."""

WORKED_MS = 30_000
"""A connection that fails earlier does not count as an available broker, because the first request can take this long
to fail. After `--connect-timeout` with only such connections, the program ends."""

PAUSE_S_MAX = 1.0
"""Longest pause between two connections that fail."""

REFUSALS_MAX = 5
REFUSED_WITHIN_MS = 60_000
"""A program ends after REFUSALS_MAX consecutive refused requests. A refusal counts as consecutive if it occurs within
REFUSED_WITHIN_MS of connecting. A broker that has just restarted may refuse a few requests."""


def command_hint(settings: Settings, command: str, *names: str) -> str:
    """Return a command line with the user's connection settings, topic prefix, and the settings in `names`."""
    access = [name for name in ("client_config", *FIELDS) if not isinstance(getattr(settings, name), SecretStr)]
    given = [name for name in ("bootstrap", *access, "topic_prefix", *names) if name in settings.given]
    flags = [f"{flag_of(name)} {shlex.quote(str(getattr(settings, name)))}" for name in given]
    return " ".join((f"onebit {command}", *flags))


def connect(
    settings: KafkaSettings,
    stop: Callable[[], bool] = lambda: False,
    request_timeout_ms: int = ConnectionSettings._field_defaults["request_timeout_ms"],
) -> Broker:
    """Connect to Kafka, waiting up to the connection timeout in the settings.

    Args:
        settings: Connection settings.
        stop: Returns whether to stop waiting.
        request_timeout_ms: Timeout for every later request.

    Raises:
        BrokerUnavailableError: no broker responded.
        StoppedError: the program was stopped while waiting.
        HostError: the interpreter skips assertions, or there is too little memory.
    """
    check_host()

    def waiting(message: str) -> None:
        if stop():
            raise StoppedError("stopped while waiting for Kafka")
        announce(message)

    config = client_config_of(settings)
    try:
        connection = ConnectionSettings(
            settings.bootstrap,
            config,
            connect_timeout_ms=settings.connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            session_timeout_ms=settings.session_timeout_ms,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            progress=waiting,
        )
        return connect_to_kafka(connection, settings.client)
    except BrokerUnavailableError as error:
        if "onebit kafka up" in str(error):
            error.hint = _start_hint(settings)
        raise


def by_client(settings: KafkaSettings) -> str:
    """Return the Kafka client's name, for a program's first log line."""
    return f"client {chosen(settings.client)}"


def _start_hint(settings: KafkaSettings) -> str:
    """Return a hint for starting a local Kafka broker on this port; "" for a remote host or the default port."""
    host, _, port = settings.bootstrap.rpartition(":")
    if host not in ("localhost", local_kafka.HOST) or port == str(local_kafka.DEFAULT_PORT):
        return ""
    return f"for this port: onebit kafka up --port {port}"


def require_topics(broker: Broker, settings: Settings, *, shares_model: bool = False) -> int:
    """Check the topics and return the number of partitions.

    Raises:
        SettingsError: a topic is missing or has an invalid configuration.
    """
    return required_topics(broker, settings, shares_model=shares_model)[settings.topics.contexts].partitions


def required_topics(broker: Broker, settings: Settings, *, shares_model: bool) -> Mapping[str, TopicDescription]:
    """Check the topics and describe them; see `require_topics`."""
    topics = settings.topics
    names = topics.all_of(shares_model=shares_model)
    descriptions = broker.describe_topics(names)
    missing = [name for name in names if name not in descriptions]
    if missing == [topics.updates]:
        create = command_hint(settings, "topics create")
        raise SettingsError(
            f"topic {topics.updates} does not exist; a shared model requires it. Run: {create} "
            f"--partitions {descriptions[topics.contexts].partitions} --model shared"
        )
    if missing:
        create = command_hint(settings, "topics create", "partitions", "model")
        raise SettingsError(f"topics do not exist: {', '.join(missing)}. Run: {create}")
    counts = {name: descriptions[name].partitions for name in topics}
    if len(set(counts.values())) != 1:
        raise SettingsError(
            f"expected the same number of partitions in all topics; got {counts}. Kafka cannot remove partitions. "
            f"{NEW_PIPELINE}"
        )
    if divided := [name for name in names if name not in topics and descriptions[name].partitions != 1]:
        raise SettingsError(
            f"topic {divided[0]}: expected one partition; got {descriptions[divided[0]].partitions}. Delete and create "
            "the topics again, or use a different prefix"
        )
    wrong = [name for name in names if not descriptions[name].append_time]
    if wrong:
        raise SettingsError(
            f"topic {wrong[0]}: expected message.timestamp.type LogAppendTime; got CreateTime. Change it "
            f"(kafka-configs --alter), or recreate the topics: {command_hint(settings, 'topics delete')}; "
            f"{command_hint(settings, 'topics create', 'partitions')}"
        )
    compacted = [name for name in names if descriptions[name].compacted and name != topics.snapshots]
    if compacted:
        raise SettingsError(
            f"topic {compacted[0]}: expected cleanup.policy delete; got compact, which rejects records without a "
            "key and deletes records that the pipeline needs. Change it (kafka-configs --alter)"
        )
    small = [name for name in names if descriptions[name].batch_bytes_max < BATCH_BYTES_MAX]
    if small:
        raise SettingsError(too_small(descriptions[small[0]]))
    return descriptions


def watch_topics(
    broker: Broker,
    settings: Settings,
    partitions: int,
    *,
    shares_model: bool = False,
    on_new_leader: Callable[[], None] = lambda: None,
    on_retention: Callable[[int], None] = lambda keep_ms: None,
) -> Callable[[], None]:
    """Return a function that checks every 30 s whether the topics have changed, and raises SettingsError if they have.

    If the number of partitions changes, an event's later records may be in a different partition. Without
    LogAppendTime, records are not ordered. Compaction deletes records that recovery and the audit need. A recreated
    topic has different records at the stored offsets. `on_new_leader` is called after a partition of an input has got a
    new leader, because this leader may have lost records. `on_retention` is called after each check with the topics'
    retention; see `Topics.keep_ms`.
    """
    began = required_topics(broker, settings, shares_model=shares_model)
    inputs = (settings.topics.contexts, settings.topics.feedback)
    epochs = [began[name].leader_epochs for name in inputs]

    def look() -> None:
        nonlocal epochs
        with suppress(BrokerUnavailableError):  # the program's own requests report the error
            found = _require_unchanged(broker, settings, partitions, began, shares_model=shares_model)
            if (now := [found[name].leader_epochs for name in inputs]) != epochs:
                on_new_leader()
                epochs = now
            on_retention(settings.topics.keep_ms(found))

    return every(WATCH_INTERVAL_MS, look)


def _require_unchanged(
    broker: Broker,
    settings: Settings,
    partitions: int,
    began: Mapping[str, TopicDescription],
    *,
    shares_model: bool = False,
) -> Mapping[str, TopicDescription]:
    """Check that the topics are valid and unchanged, and describe them; `began` describes the topics at the start."""
    try:
        found = required_topics(broker, settings, shares_model=shares_model)
    except SettingsError as error:
        raise _altered(error) from error
    found_partitions = found[settings.topics.contexts].partitions
    if found_partitions != partitions:
        raise _altered(
            f"expected {quantity(partitions, 'partition')}; got {found_partitions}. Keys now map to different "
            f"partitions. {NEW_PIPELINE}"
        )
    if anew := [name for name, topic in found.items() if topic.topic_id != began[name].topic_id]:
        raise _altered(f"deleted and recreated: {', '.join(anew)}. Their records are lost. {NEW_PIPELINE}")
    return found


class Connected(NamedTuple):
    """A connection and the pipeline's topics."""

    broker: Broker
    topics: Topics
    partitions: int


def _altered(how: object) -> SettingsError:
    return SettingsError(f"topics changed while the program was running: {how}")


@contextmanager
def connected(settings: Settings) -> Iterator[Connected]:
    """Open a connection for the duration of a command and check the topics."""
    with closing(connect(settings)) as broker:
        yield Connected(broker, settings.topics, require_topics(broker, settings))


Work = Callable[[Broker, int, Watched], None]
"""A function that performs a program's work on one connection. Its arguments are the broker, the number of partitions,
and the health reporter."""


def keep_running(settings: Settings, program: str, stop: Callable[[], bool], work: Work) -> None:
    """Run `work` on a connection to Kafka. If the connection is lost, reconnect and run `work` again.

    Args:
        settings: Settings for the connection and the health endpoints.
        program: The program's name in metrics.
        stop: Returns whether to stop.
        work: Called once per connection.

    Raises:
        SettingsError: a topic has an invalid configuration or has changed, or the metrics port cannot be used.
        AccessError: authentication or authorisation failed.
        FencedError: another process took over, or the group removed this process.
        BrokerUnavailableError: no broker responded within the connection timeout.
        StoppedError: the program was stopped while waiting for a broker.
    """
    with watched(settings, program) as watched_by:
        keep_connected(settings, stop, work, watched_by)


def keep_connected(settings: Settings, stop: Callable[[], bool], work: Work, watched_by: Watched) -> None:
    """Do as `keep_running`, with a given health reporter."""
    contexts = settings.topics.contexts
    refused = 0  # number of consecutive refused requests
    failed, failing_since_ms = 0, 0  # number of consecutive connections that failed, and time of the first failure
    began: Mapping[str, TopicDescription] | None = None
    while True:
        watched_by.set_unready(f"waiting for Kafka at {settings.bootstrap}")
        broker = connect(settings, watched_by.with_heartbeat(stop))
        watched_by.set_unready("starting")
        began_ms = monotonic_ms()
        try:
            if began is None:
                began = required_topics(broker, settings, shares_model=False)
            else:  # detects changes made while disconnected
                _require_unchanged(broker, settings, began[contexts].partitions, began)
            work(broker, began[contexts].partitions, watched_by)
        except FencedError as error:
            error.hint = (
                "any uncommitted step was discarded. Restart the process to continue from its last commit. Concurrent "
                "processes require different values for --instance"
            )
            raise
        except AccessError:
            raise
        except TransactionTimeoutError as error:
            error.hint = f"reduce {flag_of('transaction_timeout')}"
            raise
        except TopicSettingsError as error:
            raise _altered(error) from error
        except (BrokerUnavailableError, StaleMemberError) as error:
            if stop():
                return
            now_ms = monotonic_ms()
            if failed == 0 or now_ms - began_ms >= WORKED_MS:
                failed, failing_since_ms = 0, now_ms
            failed += 1
            if failed > 1 and now_ms - failing_since_ms >= settings.connect_timeout_ms:
                raise
            announce(f"broker unavailable, reconnecting: {error}")
            time.sleep(min(PAUSE_S_MAX, 0.1 * 2**failed))
            continue
        except BrokerError as error:
            refused = refused + 1 if monotonic_ms() - began_ms < REFUSED_WITHIN_MS else 1
            if stop():
                return
            if refused >= REFUSALS_MAX:
                raise
            announce(f"request refused, retrying ({refused} of {REFUSALS_MAX}): {error}")
            time.sleep(1.0)
            continue
        finally:
            broker.close()
        return


def announce_start(program: Program, settings: Settings, partitions: int) -> None:
    """Log the version, the client, the topics, and the settings that differ from their defaults."""
    differing = settings_that_differ(settings)
    shown = ", ".join(f"{name} {value}" for name, value in differing.items()) or "all defaults"
    announce(
        f"onebit {stream.__version__} {program}, {by_client(settings)}, topics {settings.topic_prefix}* with "
        f"{quantity(partitions, 'partition')}; settings: {shown}",
        version=stream.__version__, program=str(program), settings=differing,
    )  # fmt: skip


def settings_that_differ(settings: Settings) -> dict[str, str]:
    """Return the settings that differ from their defaults, as text. Secrets are hidden."""
    shown = settings.shown()
    return {
        name: ",".join(map(str, value)) if isinstance(value := shown[name], list) else str(value)
        for name in settings.changed()
    }
