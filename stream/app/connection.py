"""The connection to Kafka: made, waited for, made anew, and what the topics must be."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from pydantic import SecretStr

from stream.app.process import announce, every, monotonic_ms, quantity
from stream.app.setting_values import flag_of
from stream.app.settings import Settings, SettingsError
from stream.app.sources import FIELDS, client_config_of
from stream.app.watching import Watched, watched
from stream.devkafka import local_kafka
from stream.errors import StoppedError
from stream.kafka.connecting import chosen
from stream.kafka.connecting import connect as connect_to_kafka
from stream.kafka.connection import ConnectionSettings
from stream.kafka.port import (
    AccessError,
    Broker,
    BrokerError,
    BrokerUnavailableError,
    FencedError,
    StaleMemberError,
    TopicSettingsError,
)
from stream.wire.topics import TopicDescription, Topics

WATCH_INTERVAL_MS = 30_000
"""So often a program that runs looks whether its topics are still what it began with."""

REFUSALS_MAX = 5
REFUSED_WITHIN_MS = 60_000
"""A broker that has just come back may refuse what it soon allows; what it refuses again and again will not change."""


def command_hint(settings: Settings, command: str, *names: str) -> str:
    """A command as these settings need it: with the address and the prefix, and others by name, that were given."""
    access = [name for name in ("client_config", *FIELDS) if not isinstance(getattr(settings, name), SecretStr)]
    given = [name for name in ("bootstrap", *access, "topic_prefix", *names) if name in settings.given]
    flags = [f"{flag_of(name)} {shlex.quote(str(getattr(settings, name)))}" for name in given]
    return " ".join((f"onebit {command}", *flags))


def connect(settings: Settings, stop: Callable[[], bool] = lambda: False) -> Broker:
    """Connect to Kafka, waiting for it as long as the settings say.

    Raises:
        BrokerUnavailableError: no broker answered.
        StoppedError: the program was asked to stop while it waited.
    """

    def waiting(message: str) -> None:
        if stop():
            raise StoppedError("stopped while it waited for Kafka")
        announce(message)

    config = client_config_of(settings)
    try:
        connection = ConnectionSettings(
            settings.bootstrap,
            config,
            connect_timeout_ms=settings.connect_timeout_ms,
            session_timeout_ms=settings.session_timeout_ms,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            progress=waiting,
        )
        return connect_to_kafka(connection, settings.client)
    except BrokerUnavailableError as error:
        if "onebit kafka up" in str(error):
            error.hint = _start_hint(settings)
        raise


def by_client(settings: Settings) -> str:
    """How a program's first line says which client it has."""
    return f"client {chosen(settings.client)}"


def _start_hint(settings: Settings) -> str:
    """How a Kafka is started at another port of this machine than the usual one."""
    host, _, port = settings.bootstrap.rpartition(":")
    if host not in ("localhost", local_kafka.HOST) or port == str(local_kafka.DEFAULT_PORT):
        return ""
    return f"with this port: onebit kafka up --port {port}"


def require_topics(broker: Broker, settings: Settings, *, shares_model: bool = False) -> int:
    """The number of partitions; topics that are missing end the program with what to do."""
    return _required(broker, settings, shares_model=shares_model)[settings.topics.contexts].partitions


def _required(broker: Broker, settings: Settings, *, shares_model: bool) -> Mapping[str, TopicDescription]:
    topics = settings.topics
    names = topics.all_of(shares_model=shares_model)
    descriptions = broker.describe_topics(names)
    missing = [name for name in names if name not in descriptions]
    if missing == [topics.updates]:
        create = command_hint(settings, "topics create")
        raise SettingsError(
            f"there is no topic {topics.updates}, and the model is shared: it is its log; create it: {create} "
            f"--partitions {descriptions[topics.contexts].partitions} --model shared"
        )
    if missing:
        create = command_hint(settings, "topics create", "partitions", "model")
        raise SettingsError(f"there is no topic {', '.join(missing)}; create them first: {create}")
    counts = {name: descriptions[name].partitions for name in topics}
    if len(set(counts.values())) != 1:
        raise SettingsError(
            f"all topics need the same number of partitions; got {counts}: none can be taken away; begin "
            "anew with another prefix, and bring the model along (onebit model export, import)"
        )
    if shares_model and descriptions[topics.updates].partitions != 1:
        raise SettingsError(
            f"topic {topics.updates}: expected one partition, whose order is that of the model; got "
            f"{descriptions[topics.updates].partitions}: delete the topics and create them anew, or take another prefix"
        )
    wrong = [name for name in names if not descriptions[name].append_time]
    if wrong:
        raise SettingsError(
            f"topic {wrong[0]}: expected message.timestamp.type LogAppendTime; got CreateTime: no clock but the "
            "broker's may count; set it to LogAppendTime (kafka-configs --alter), or delete the topics and create them "
            f"anew: {command_hint(settings, 'topics delete')}; {command_hint(settings, 'topics create', 'partitions')}"
        )
    compacted = [name for name in names if descriptions[name].compacted and name != topics.snapshots]
    if compacted:
        raise SettingsError(
            f"topic {compacted[0]}: expected cleanup.policy delete; got compact: compaction keeps the last record of a "
            "key, where the first one counts, and records without a key cannot be written; set it to delete "
            "(kafka-configs --alter)"
        )
    return descriptions


def watch_topics(
    broker: Broker, settings: Settings, partitions: int, *, shares_model: bool = False
) -> Callable[[], None]:
    """A function to be called often, which looks now and then whether the topics are still what they were.

    It raises SettingsError when they are not: with other partitions an event's records do not meet any more,
    without the broker's append time nothing is in order, compaction deletes what recovery and audit read, and a topic
    that was made anew would be read from where the old one stood.
    """
    began = _required(broker, settings, shares_model=shares_model)
    contexts = settings.topics.contexts

    def look() -> None:
        try:
            found = _required(broker, settings, shares_model=shares_model)
        except BrokerUnavailableError:
            return  # what the program itself asks will tell
        except SettingsError as error:
            raise _altered(error) from error
        _require_as_many(partitions, found[contexts].partitions)
        _require_the_same(began, found)

    return every(WATCH_INTERVAL_MS, look)


def _require_as_many(partitions: int, found: int) -> None:
    if found != partitions:
        raise SettingsError(
            f"the topics were altered while this program ran, and it goes no further: they had "
            f"{quantity(partitions, 'partition')}, now they have {found}; an event's key belongs to another partition "
            "now. Begin anew with "
            "another prefix, and bring the model along (onebit model export, import)"
        )


def _require_the_same(began: Mapping[str, TopicDescription], found: Mapping[str, TopicDescription]) -> None:
    anew = [name for name, topic in found.items() if topic.topic_id != began[name].topic_id]
    if anew:
        raise SettingsError(
            f"the topics were altered while this program ran, and it goes no further: {', '.join(anew)} was deleted "
            "and made anew, without what was in it. Begin anew with another prefix, and bring the model along (onebit "
            "model export, import)"
        )


class Connected(NamedTuple):
    """A connection, and the topics there."""

    broker: Broker
    topics: Topics
    partitions: int


def _altered(error: Exception) -> SettingsError:
    return SettingsError(f"the topics were altered while this program ran, and it goes no further: {error}")


@contextmanager
def connected(settings: Settings) -> Iterator[Connected]:
    """A connection to topics that are as they must be, for the time of a command."""
    broker = connect(settings)
    try:
        yield Connected(broker, settings.topics, require_topics(broker, settings))
    finally:
        broker.close()


Work = Callable[[Broker, int, Watched], None]
"""What a program does on a connection, to topics of so many partitions; it is handed who watches."""


def keep_running(settings: Settings, program: str, stop: Callable[[], bool], work: Work) -> None:
    """Do work against Kafka; when the broker goes away, wait for it and do the work anew.

    Args:
        settings: where Kafka is, and where the program may be watched.
        program: what the program is called there.
        stop: whether to stop.
        work: is begun anew on each connection.

    Raises:
        SettingsError: a topic is not as it must be, or was altered; or nobody can watch as it is asked for.
        AccessError: the broker does not let this program in, or does not allow what it does.
        FencedError: another process took over, or the group threw this one out.
        BrokerUnavailableError: no broker came back within the connection's timeout.
        StoppedError: the program was asked to stop while it waited for a broker.
    """
    with watched(settings, program) as watched_by:
        _keep_running(settings, stop, work, watched_by)


def _keep_running(settings: Settings, stop: Callable[[], bool], work: Work, watched_by: Watched) -> None:
    contexts = settings.topics.contexts
    refused = 0  # times in a row that the broker answered, and would not do what was asked
    began: Mapping[str, TopicDescription] | None = None
    while True:
        watched_by.waits(f"it waits for Kafka at {settings.bootstrap}")
        broker = connect(settings, watched_by.beats(stop))
        watched_by.waits("it begins")
        began_ms = monotonic_ms()
        try:
            try:
                found = _required(broker, settings, shares_model=False)
            except SettingsError as error:
                if began is None:
                    raise
                raise _altered(error) from error
            began = found if began is None else began
            partitions = began[contexts].partitions
            _require_as_many(partitions, found[contexts].partitions)  # while it was not connected, too
            _require_the_same(began, found)
            work(broker, partitions, watched_by)
        except FencedError as error:
            error.hint = (
                "nothing was written after that. Start it again to continue from its last commit; give every process "
                "that runs at the same time its own --instance"
            )
            raise
        except AccessError:
            raise
        except TopicSettingsError as error:
            raise _altered(error) from error
        except (BrokerUnavailableError, StaleMemberError) as error:
            if stop():
                return
            announce(f"the broker is away, connecting again: {error}")
            continue
        except BrokerError as error:
            refused = refused + 1 if monotonic_ms() - began_ms < REFUSED_WITHIN_MS else 1
            if stop():
                return
            if refused >= REFUSALS_MAX:
                raise
            announce(f"the broker refused, trying again ({refused} of {REFUSALS_MAX}): {error}")
            time.sleep(1.0)
            continue
        finally:
            broker.close()
        return
