"""The monitor: shows a running pipeline on a web page, and exports its metrics."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from threading import Event, Thread
from typing import Any

from consumers.monitor.dashboard import Dashboard, Pipeline
from consumers.monitor.named_policies import check_live, live_policies
from consumers.monitor.policies import POLICY_SETTINGS, Policies
from consumers.monitor.waiting import WaitingRecords
from stream.errors import StoppedError
from stream.estimating.policies import EstimateError
from stream.kafka.port import AccessError, Broker, BrokerError
from stream.kafka.reading import RecordsAt
from stream.programs.connection import connect, require_topics
from stream.programs.process import announce, monotonic_ms, warn
from stream.programs.watching import Watched, watched
from stream.recovery.model_files import ModelError
from stream.recovery.recover import settings_in_force
from stream.recovery.steps import JournalFollower, JournalStep
from stream.reporting.charts import uplot, uplot_style
from stream.settings.definitions import Settings, SettingsError
from stream.settings.sources import client_config_of
from stream.telemetry.metrics import MONITOR
from stream.telemetry.serving import Page, Site
from stream.wire.records import Record, TopicPartition
from stream.wire.topics import Topics

POLL_S = 0.3
"""Interval between requests for end offsets."""

RETRY_S = 2.0

NAMES_S = 5.0
"""Interval between requests for the learner's settings and instances."""

CONTEXTS_MS = 3_000
"""Timeout for reading a context."""


def run_monitor(settings: Settings, policies: Sequence[str], stop: Callable[[], bool]) -> None:
    """Serve the page until stopped. Reconnect after a lost connection.

    Args:
        settings: Settings for the pipeline and the page.
        policies: Names of the policies to evaluate, in addition to the default ones.
        stop: Returns whether to stop.

    Raises:
        SettingsError: a package is missing, or the port cannot be used.
        EstimateError: a policy cannot be evaluated on a live pipeline.
    """
    try:
        import consumers.monitor.program  # noqa: F401 - deferred: other commands do not need Faust
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"the monitor requires {error.name}, which is not installed. Run: pip install 'onebit[monitor]'"
        ) from error
    check_live(policies)
    topics = settings.topics
    dashboards: list[Dashboard] = []  # empty until the program has connected; then contains the dashboard
    site = Site(
        page_files(),
        lambda: dashboards[0].as_json() if dashboards else _NOTHING,
        settings.allow_host,
    )
    with watched(settings, MONITOR, site) as watch:
        announce(
            f"monitor for {topics.journal}: http://{settings.metrics_host}:{settings.page_port}/; press Ctrl-C to stop"
        )
        watch.set_unready(f"waiting for Kafka at {settings.bootstrap}")
        with closing(connect(settings, watch.with_heartbeat(stop))) as broker:
            partitions = require_topics(broker, settings)
        dashboard = Dashboard(topics, partitions, monotonic_ms)
        dashboards.append(dashboard)
        polling = _polling(settings, policies, dashboard, topics, partitions)
        with polling, closing(_Contexts(settings, topics)) as contexts:
            dashboard.judge(_policies(policies, settings, topics, dashboard, watch, stop), contexts.at)
            _run(settings, dashboard, topics, partitions, watch, stop)


_NOTHING = b'{"condition": "unknown", "why": "waiting for Kafka"}'


def _run(
    settings: Settings, dashboard: Dashboard, topics: Topics, partitions: int, watch: Watched, stop: Callable[[], bool]
) -> None:
    """Run the application until stopped. Restart the application after an error."""
    from consumers.monitor.program import MonitorEndedError, MonitorProgram

    def keep_running(unready: str) -> bool:
        watch.show(unready, dashboard.samples)
        return not stop()

    with tempfile.TemporaryDirectory(prefix="onebit-monitor-") as directory:
        group = f"{settings.topic_prefix}monitor-{settings.instance}"
        while not stop():
            program = MonitorProgram(
                topics, partitions, group, settings.bootstrap, directory, client_config_of(settings), dashboard,
                keep_running,
            )  # fmt: skip
            try:
                program.run()
            except MonitorEndedError as error:
                announce(f"the monitor failed and is restarting: {error}")
                time.sleep(RETRY_S)


def _policies(
    specs: Sequence[str],
    settings: Settings,
    topics: Topics,
    dashboard: Dashboard,
    watch: Watched,
    stop: Callable[[], bool],
) -> Policies:
    """Wait for a task's first step, which stores the settings. Return the policies and the holdout's share."""
    while (partition := dashboard.active_partition) is None:
        if stop():
            return Policies()
        watch.show("", dashboard.samples)  # no task has completed a step
        time.sleep(POLL_S)
    with closing(connect(settings, stop)) as broker:
        found = settings_in_force(broker, topics, partition).settings
    if not found:
        warn(f"{topics.journal}: the settings record was deleted; the page omits named policies and the holdout")
        return Policies()
    return live_policies(specs, found, topics)


class _Contexts:
    """Rereads contexts from Kafka.

    If Kafka is unavailable, no contexts are returned, and the estimates omit the decisions for these contexts.
    """

    def __init__(self, settings: Settings, topics: Topics) -> None:
        self._settings = settings
        self._topic = topics.contexts
        self._broker: Broker | None = None  # opened on first use
        self._readers: dict[int, RecordsAt] = {}

    def at(self, wanted: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], Record]:
        """Return the contexts at the given offsets; see `ContextsAt`."""
        found: dict[tuple[int, int], Record] = {}
        try:
            for partition, offsets in wanted.items():
                for offset, record in self._reader(partition).read(offsets, CONTEXTS_MS).items():
                    found[partition, offset] = record
        except (BrokerError, StoppedError) as error:
            self.close()
            why = error if isinstance(error, BrokerError) else "no response from Kafka"
            announce(f"estimates for models skip decisions whose contexts cannot be read: {why}")
        return found

    def _reader(self, partition: int) -> RecordsAt:
        if self._broker is None:
            self._broker = connect(self._settings, lambda: True)  # waiting would block the monitor
        if partition not in self._readers:
            self._readers[partition] = RecordsAt(self._broker, TopicPartition(self._topic, partition))
        return self._readers[partition]

    def close(self) -> None:
        """Release the connections."""
        readers, broker = self._readers, self._broker
        self._readers, self._broker = {}, None
        with suppress(BrokerError):
            for reader in readers.values():
                reader.close()
            if broker is not None:
                broker.close()


@contextmanager
def _polling(
    settings: Settings, specs: Sequence[str], dashboard: Dashboard, topics: Topics, partitions: int
) -> Iterator[None]:
    """Run a thread that reads the end offsets and each task's last step, and reconnects after a lost connection."""
    ended = Event()

    def poll() -> None:
        while not ended.is_set():
            try:
                with closing(connect(settings, ended.is_set)) as broker:
                    _poll(broker, specs, dashboard, topics, partitions, ended)
            except StoppedError:
                return
            except BrokerError as error:
                announce(f"broker unavailable, reconnecting: {error}")
                ended.wait(RETRY_S)

    thread = Thread(target=poll, name="polling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(RETRY_S)


def _poll(
    broker: Broker, specs: Sequence[str], dashboard: Dashboard, topics: Topics, partitions: int, ended: Event
) -> None:
    names = (topics.contexts, topics.feedback, topics.predictions, topics.examples)
    tps = [TopicPartition(name, partition) for name in names for partition in range(partitions)]
    naming = _Names(broker, topics)
    with (
        closing(JournalFollower(broker, topics, partitions)) as follower,
        closing(WaitingRecords(broker, topics, partitions)) as waiting,
    ):
        while not ended.wait(POLL_S):
            follower.read(0)
            if naming.is_due():
                dashboard.name(naming.read(follower.steps))
                follow_settings(dashboard, specs, naming.settings, topics)
            ends = broker.ends(tps)
            dashboard.update_ends(ends, follower.steps, waiting.count(ends, follower.steps))


def follow_settings(dashboard: Dashboard, specs: Sequence[str], settings: dict[str, Any], topics: Topics) -> None:
    """Create the policies again if a change of the pipeline's settings concerns them.

    A policy that no longer matches the decisions, such as a model with fewer classes, is omitted.

    Args:
        dashboard: The dashboard. Nothing happens before its first policies are created.
        specs: Names of policies; see `check_live`.
        settings: The pipeline's settings by name; empty if they are unknown.
        topics: The pipeline's topics.
    """
    known = dashboard.policies.settings
    if not known or not settings or all(settings.get(name) == known.get(name) for name in POLICY_SETTINGS):
        return
    fitting = []
    for spec in specs:
        try:
            live_policies([spec], settings, topics)
        except (EstimateError, ModelError) as error:
            warn(f"the policy {spec} is omitted, because the pipeline's settings have changed: {error}")
        else:
            fitting.append(spec)
    dashboard.change_policies(live_policies(fitting, settings, topics))


class _Names:
    """Reads a pipeline's learner and window from its journal, and its instances from its consumer group."""

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self._broker = broker
        self._topics = topics
        self._group = topics.journal.removesuffix("journal") + "learner"
        self.settings: dict[str, Any] = {}  # by name; empty if unknown
        self._settings_from: tuple[int, int] | None = None  # partition and step of the stored settings
        self._asked_s = -NAMES_S

    def read(self, steps: Mapping[int, JournalStep]) -> Pipeline | None:
        """Return the learner, window and instances; None before the first step or if there is no settings record."""
        if steps and self._settings_from != (key := (first := min(steps), steps[first].settings_from)):
            self.settings, self._settings_from = settings_in_force(self._broker, self._topics, first).settings, key
        if not self.settings:
            return None
        instances: dict[str, list[int]] | None = None
        with suppress(AccessError):  # no permission to describe the group
            members = self._broker.members(self._group).items()
            instances = {name: sorted({tp.partition for tp in tps}) for name, tps in sorted(members)}
        return Pipeline(self.settings["champion"] or self.settings["learner"], self.settings["window_ms"], instances)

    def is_due(self) -> bool:
        """Return whether NAMES_S seconds have passed since the last call that returned True."""
        if is_due := time.monotonic() - self._asked_s >= NAMES_S:
            self._asked_s = time.monotonic()
        return is_due


_HTML, _CSS, _JS = (f"text/{kind}; charset=utf-8" for kind in ("html", "css", "javascript"))
_FILES = {"/": ("index.html", _HTML), "/page.css": ("page.css", _CSS), "/page.js": ("page.js", _JS)}


def page_files() -> dict[str, Page]:
    """Return the files of the monitor's page, keyed by URL path."""
    folder = files("consumers.monitor") / "page"
    own = {path: Page(kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()}
    return own | {"/uplot.css": Page(_CSS, uplot_style().encode()), "/uplot.js": Page(_JS, uplot().encode())}
