"""`onebit monitor`: whether a pipeline lives and learns, as a page and for Prometheus."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import typer

from stream.brokers.port import Broker, BrokerError
from stream.brokers.reading import read_partition
from stream.cli.access import client_config_of
from stream.cli.composition import topics_of
from stream.cli.connection import connect, require_topics
from stream.cli.console import StopRequest, announce, examples, monotonic_ms
from stream.cli.flags import with_settings
from stream.cli.settings import Program, Settings, SettingsError
from stream.cli.watching import Watched, watched
from stream.monitoring.assets import page_files
from stream.monitoring.picture import Picture
from stream.recovery.journal_reading import JournalFollower
from stream.telemetry.metrics import MONITOR
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

LOOK_S = 0.3
"""How often Kafka is asked where its topics end."""

AGAIN_S = 2.0

app = typer.Typer()


@app.command(epilog=examples("onebit monitor", "onebit monitor --page-port 8000 --topic-prefix own."))
@with_settings(Program.MONITOR)
def monitor(settings: Settings) -> None:
    """Show on a page, as it happens: alive, idle or stuck; error, delays, ledger, lag, dead letters.

    It reads committed records alone, and nothing depends on it. Killed and started again, it goes on with its counts.
    It needs the extra: pip install 'onebit[monitor]'.
    """
    from stream.telemetry.serving import Page, Site  # here: other commands need no HTTP

    try:
        import consumers.monitor  # noqa: F401 - here: other commands need no Faust
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the monitor needs {error.name}, which is not installed: pip install 'onebit[monitor]'"
        ) from error
    stop = StopRequest()
    topics = topics_of(settings)
    pictures: list[Picture] = []  # the one, when Kafka has been found
    site = Site(
        {path: Page(*file) for path, file in page_files().items()},
        lambda: pictures[0].as_json() if pictures else _NOTHING,
    )
    with watched(settings, MONITOR, site) as watch:
        announce(f"monitor of {topics.journal}: http://{settings.metrics_host}:{settings.page_port}/; Ctrl-C stops it")
        watch.waits(f"it waits for Kafka at {settings.bootstrap}")
        broker = connect(settings, watch.beats(stop))
        try:
            partitions = require_topics(broker, settings)
        finally:
            broker.close()
        picture = Picture(topics, partitions, monotonic_ms)
        pictures.append(picture)
        with _looking(settings, picture, topics, partitions):
            _run(settings, picture, topics, partitions, watch, stop)


_NOTHING = b'{"condition": "unknown", "why": "it waits for Kafka"}'


def _run(
    settings: Settings, picture: Picture, topics: Topics, partitions: int, watch: Watched, stop: Callable[[], bool]
) -> None:
    """Run the application until it is to stop; one that breaks off is made anew."""
    from consumers.monitor import MonitorEndedError, MonitorOptions, MonitorProgram

    def goes_on(unready: str) -> bool:
        watch.show(unready, picture.samples)
        return not stop()

    with tempfile.TemporaryDirectory(prefix="onebit-monitor-") as directory:
        options = MonitorOptions(f"{settings.topic_prefix}monitor-{settings.instance}", settings.bootstrap, directory)
        while not stop():
            program = MonitorProgram(topics, partitions, options, client_config_of(settings), picture, goes_on)
            try:
                program.run()
            except MonitorEndedError as error:
                announce(f"the monitor broke off, and begins again: {error}")
                time.sleep(AGAIN_S)


@contextmanager
def _looking(settings: Settings, picture: Picture, topics: Topics, partitions: int) -> Iterator[None]:
    """For this time, in a thread: where the topics end, and the tasks' last steps. A lost broker is waited for."""
    ended = Event()

    def look() -> None:
        while not ended.is_set():
            try:
                broker = connect(settings, ended.is_set)
            except SystemExit:  # it has said why
                continue
            try:
                _look(broker, picture, topics, partitions, ended)
            except BrokerError as error:
                announce(f"the broker is away, connecting again: {error}")
                ended.wait(AGAIN_S)
            finally:
                broker.close()

    thread = Thread(target=look, name="looking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(AGAIN_S)


def _look(broker: Broker, picture: Picture, topics: Topics, partitions: int, ended: Event) -> None:
    names = (topics.contexts, topics.feedback, topics.predictions, topics.examples)
    tps = [TopicPartition(name, partition) for name in names for partition in range(partitions)]
    follower = JournalFollower(broker, topics, partitions, from_end=True)
    try:
        while not ended.wait(LOOK_S):
            follower.read(0)
            picture.hears(broker.ends(tps), follower.steps)
            for tp, start in picture.doubtful():
                if next(iter(read_partition(broker, tp, start=start)), None) is None:
                    picture.hears_nothing_stands(tp, start)
    finally:
        follower.close()
