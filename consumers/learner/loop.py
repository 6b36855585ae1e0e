"""The learner program on Kafka: publishes a prediction for each context, and learns from feedback."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from consumers.learner.metrics import LearnerCounts, learner_unready, result_samples
from consumers.learner.program import LearnerOptions, LearnerProgram
from consumers.learner.recovery import Parked, RecoveryStoppedError
from consumers.learner.shared_model import ENDED_BY, Hold, held_up
from consumers.live_estimates import LiveEstimating
from consumers.tally import Tally, drift_warnings, ledger_line, report_promotions
from stream.kafka.port import Broker, BrokerError
from stream.parsing import format_duration
from stream.programs.connection import announce_start, by_client, keep_running, require_topics, watch_topics
from stream.programs.costs import compile_kernels, exploration_notice, records_max, slow_warning
from stream.programs.pipeline_settings import Chosen, SizesOf, settings_for, with_hint
from stream.programs.process import Status, announce, boot_ms, every, freeze_gc, monotonic_ms, tune_gc, warn
from stream.programs.task_settings import check_estimate, n_features_of, parameters_of
from stream.programs.watching import Watched
from stream.recovery.commit import Commit
from stream.recovery.recover import reading_pipeline_settings
from stream.recovery.slices import finish
from stream.reporting.live_results import result_lines
from stream.reporting.tables import percent
from stream.settings.definitions import AUTO, Settings, SettingsError
from stream.settings.model import Program
from stream.task.settings import Sharing, TaskSettings
from stream.task.stored_settings import SettingsDifferError
from stream.telemetry.metrics import LEARNER
from stream.wire.topics import Topics

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000


def run_learner(
    settings: Settings, stop: Callable[[], bool], *, sizes_of: SizesOf, change_settings: bool = False
) -> None:
    """Run a learner until stopped. Reconnect if the connection is lost.

    Args:
        settings: The learner's settings. Settings that the user did not set are taken from the pipeline.
        stop: Returns whether to stop.
        sizes_of: Returns the sizes of the data set that the settings select.
        change_settings: Whether the user's settings replace the pipeline's settings from the next step on.

    Raises:
        SettingsError: a setting is invalid, or differs from the pipeline's setting.
        FencedError: another process took over, or the group removed this process.
    """
    check_given(settings)
    loop = _LearnerLoop(settings, stop, sizes_of, change_settings=change_settings)
    try:
        keep_running(settings, LEARNER, stop, loop.run)
    except RecoveryStoppedError as error:
        announce(f"stopped during recovery; nothing was written: {error}")
    except SettingsDifferError as error:
        raise with_hint(error, change=change_settings) from error


class _LearnerLoop:
    """A learner's main loop. Its state is kept across reconnects."""

    def __init__(
        self, settings: Settings, stop: Callable[[], bool], sizes_of: SizesOf, *, change_settings: bool
    ) -> None:
        self._settings, self._stop, self._sizes_of = settings, stop, sizes_of
        self._change_settings = change_settings
        self._ready_file = ReadyFile(Path(settings.ready_file) if settings.ready_file else None)
        self._counts, self._tally = LearnerCounts(), Tally()
        self._estimating: LiveEstimating | None = None  # None before the task's settings are known
        self._parked = Parked()  # a task resumes if its journal has no new records

    def run(self, broker: Broker, partitions: int, watched: Watched) -> None:
        """Run a learner on one connection; see `Work`."""
        settings, stop = self._settings, watched.with_heartbeat(self._stop)
        (task, nnz, given), has_no_log = self._resolve(broker, partitions, stop)
        shares_model = task.model == "shared"
        require_topics(broker, settings, shares_model=shares_model)
        watch = watch_topics(
            broker, settings, partitions, shares_model=shares_model, on_new_leader=lambda: program.check_inputs()
        )
        check_estimate(task.play, is_asked=settings.estimate)
        if slow := slow_warning(task, nnz):
            warn(slow)
        estimating = self._estimating = self._estimating or LiveEstimating(task, is_estimated=settings.estimate)
        compile_kernels(task)
        if notice := exploration_notice(task):
            announce(notice)

        def committed(commits: Sequence[Commit]) -> None:
            self._tally.add(commits)
            estimating.add(commits)
            if watched.is_enabled:
                self._counts.add(commits, program.broker_ms)
            report_promotions(commits, task.members)
            for message in drift_warnings(commits):
                warn(message)

        program = LearnerProgram(
            broker, settings.topics, task, _options(settings, task, nnz), boot_ms, announce,
            stop=stop, given=given, change_settings=self._change_settings, committed=committed,
            parked=self._parked,
        )  # fmt: skip
        _announce_learner(settings, task, partitions, has_no_log=has_no_log)
        status = _LearnerStatus(settings, program, self._tally, estimating)
        tune_gc()
        try:
            self._work(program, estimating, status, watch, watched, stop)
        finally:
            self._ready_file.show(ready=False)
            self._parked = program.park()
            program.close()

    def _resolve(self, broker: Broker, partitions: int, stop: Callable[[], bool]) -> tuple[Chosen, bool]:
        """Combine the pipeline's settings with the user's. Also return whether the updates topic is missing."""

        def pulse() -> None:
            if stop():
                raise RecoveryStoppedError("stopped while reading the pipeline's settings")

        settings, topics = self._settings, self._settings.topics
        stored = finish(reading_pipeline_settings(broker, topics, partitions), pulse)
        has_no_log = not stored and lacks_log(broker, settings, topics, partitions)
        model = "own" if has_no_log else settings.model_of(partitions)
        chosen = settings_for(
            settings, stored, topics.journal, model, sizes_of=self._sizes_of, change=self._change_settings
        )
        return chosen, has_no_log

    def _work(
        self,
        program: LearnerProgram,
        estimating: LiveEstimating,
        status: "_LearnerStatus",
        watch: Callable[[], None],
        watched: Watched,
        stop: Callable[[], bool],
    ) -> None:
        """Execute steps until stopped."""
        show, was_ready = every(STATUS_INTERVAL_MS, status.show), False
        while not stop():
            watch()
            if program.step(POLL_MS):
                freeze_gc()
            self._ready_file.show(program.ready)
            if program.ready and not was_ready:
                status.show()  # reports the state after the recovery
            was_ready = program.ready
            watched.show(
                learner_unready(program), lambda: chain(self._counts.samples(program), result_samples(estimating.now()))
            )
            show()
        with suppress(BrokerError):  # this report is optional
            program.report_replica()
        status.show()


def _announce_learner(settings: Settings, task: TaskSettings, partitions: int, *, has_no_log: bool) -> None:
    """Log the program's start, the learner, and whether the partitions share a model."""
    announce_start(Program.LEARN, settings, partitions)
    announce(
        f"{task.learner} on {settings.topics.contexts}: started as instance {settings.instance}, "
        f"{by_client(settings)}; press Ctrl-C to stop"
    )
    if partitions > 1:
        announce(model_notice(task.model, settings.topics, partitions, has_no_log=has_no_log))


class _LearnerStatus:
    """A learner's status lines and warnings."""

    def __init__(self, settings: Settings, program: LearnerProgram, tally: Tally, estimating: LiveEstimating) -> None:
        self._program, self._tally, self._estimating = program, tally, estimating
        self._log = Status()
        self._lag_warnings = LagWarnings(
            settings.topics.updates, settings.bootstrap, settings.model_lag_max_ms, settings.transaction_timeout_ms
        )

    def show(self) -> None:
        """Log the lines that have changed, and new warnings."""
        program, tally = self._program, self._tally
        self._estimating.keep(program.assigned)
        results = result_lines(self._estimating.now(), since=" since this program started")
        self._log.show(status_lines(program, tally) + results)
        ledgers = {partition: task.join.ledger() for partition, task in program.tasks.items()}
        for warning in filter(None, (tally.warning(), tally.misplaced_warning(ledgers))):
            warn(warning)
        for warning in self._lag_warnings.of(program.model_hold):
            warn(warning)


def _options(settings: Settings, task: TaskSettings, nnz: int) -> LearnerOptions:
    return LearnerOptions(
        group=f"{settings.topic_prefix}learner",
        instance=f"learner-{settings.instance}",
        records_max=records_max(task, nnz, LearnerOptions().records_max),
        step_max_ms=settings.step_max_ms,
        snapshot_interval_ms=settings.snapshot_interval_ms,
        model_lag_max_ms=settings.model_lag_max_ms,
    )


def lacks_log(broker: Broker, settings: Settings, topics: Topics, partitions: int) -> bool:
    """Return whether a new pipeline would share a model by default, but lacks the updates topic.

    The broker is queried only if a shared model is the default. Other learners do not need permission for the updates
    topic.
    """
    is_wanted = settings.model == AUTO and settings.model_of(partitions) == "shared"
    return is_wanted and topics.updates not in broker.describe_topics([topics.updates])


def model_notice(model: Sharing, topics: Topics, partitions: int, *, has_no_log: bool) -> str:
    """Return a log line that says whether the partitions share a model.

    If they do not share one because a topic is missing, the line says so.
    """
    if model == "shared":
        return f"{partitions} partitions share a model (log: {topics.updates})"
    why = f", because {topics.updates}, the topic for a shared model, does not exist" if has_no_log else ""
    return f"each of the {partitions} partitions has its own model{why}"


def status_lines(program: LearnerProgram, tally: Tally) -> list[str]:
    """Return lines that describe every partition's state and the fraction of decisions with a reward of 1."""
    replica = program.replica
    lines = [
        f"partition {partition}: {ledger_line(running.join.ledger())}"
        + (f", {running.version:,} updates" if replica is None else "")
        + (f", {running.alarms:,} drift alarms" if running.alarms else "")
        for partition, running in sorted(program.tasks.items())
    ]
    if replica is not None:
        lines.append(model_line(replica.version, replica.updates, program.model_hold))
    if tally.unknown_line:
        lines.append(tally.unknown_line)
    if tally.reward_rate is not None:
        lines.append(f"reward 1 for {percent(tally.reward_rate)} of the decisions matched since this program started")
    return lines


def check_given(settings: Settings) -> None:
    """Check the user's settings before connecting.

    Raises:
        SettingsError: there are several learners, --n-classes is combined with --classes-max, the number of features is
            missing, or a parameter is invalid.
        ParameterError: a parameter does not belong to the learner.
    """
    if len(settings.learner) != 1:
        raise SettingsError(
            f"--learner: `onebit learn` runs one learner; got {', '.join(settings.learner)}. Start each with its own "
            "--topic-prefix, or compare them with `onebit run`"
        )
    if settings.learner != [AUTO]:
        parameters_of(settings, settings.learner[0])
    sizes = {"--n-classes": settings.n_classes, "--classes-max": settings.classes_max}
    flags = [f"{flag} {n}" for flag, n in sizes.items() if n is not None]
    if len(flags) > 1:
        raise SettingsError(f"{' and '.join(flags)}: expected only one of them")
    if flags and n_features_of(settings) is None:
        raise SettingsError(f"{flags[0]}: contexts without a data set also require --n-features")


RENEWAL_MS = 1_000
"""Interval between updates to the ready file. Health checks should accept a file whose age is up to ten times this
interval, because a step may be slow."""


class ReadyFile:
    """Maintains the file for health checks (`--ready-file`). Does nothing if no path is set."""

    def __init__(self, path: Path | None, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Remove the file left by an earlier process.

        Raises:
            SettingsError: the file cannot be created or removed.
        """
        self._path = path
        self._now_ms = now_ms
        self._renewed_ms: int | None = None  # None if the file does not exist
        self._has_logged_error = False
        if path is None:
            return
        if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise SettingsError(f"--ready-file {path}: expected a file in a writable folder")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise SettingsError(f"--ready-file {path}: cannot remove the existing file: {error}") from error

    def show(self, ready: bool) -> None:
        """Touch the file if the learner is ready; otherwise, remove it. A call is cheap enough for every step.

        A full disk does not stop the learner: the error is logged once, and the file becomes stale.
        """
        if self._path is None:
            return
        try:
            if not ready:
                if self._renewed_ms is not None:
                    self._path.unlink(missing_ok=True)
                    self._renewed_ms = None
            elif self._renewed_ms is None or self._now_ms() - self._renewed_ms >= RENEWAL_MS:
                self._path.touch()
                self._renewed_ms = self._now_ms()
        except OSError as error:
            if not self._has_logged_error:
                announce(f"--ready-file {self._path}: cannot update the file for health checks: {error}")
            self._has_logged_error = True


REPORTED_AFTER_MS = 5_000
"""Age at which a blocking transaction is reported. A normal step's transaction ends sooner."""

OVERDUE_MS = 30_000
"""Time added to the transaction timeout, because the broker checks for expired transactions only about every ten
seconds."""


def model_line(version: int, updates: int, hold: Hold | None) -> str:
    """Format a status line with the version and update count of a process's replica.

    >>> model_line(12_000, 5_800, None)
    'shared model: version 12,000, 5,800 updates'
    >>> model_line(12_000, 5_800, Hold(512, 7_250, 40))
    'shared model: version 12,000, 5,800 updates, blocked for 7 s with 40 offsets in its log unread'
    """
    line = f"shared model: version {version:,}, {updates:,} updates"
    if hold is None:
        return line
    return f"{line}, blocked for {hold.for_ms // 1_000} s with {hold.waiting:,} offsets in its log unread"


class LagWarnings:
    """Warns about transactions that block the model's log. Each warning is logged once per transaction."""

    def __init__(self, topic: str, bootstrap: str, lag_max_ms: int, transaction_timeout_ms: int) -> None:
        """Set the thresholds for the warnings.

        Args:
            topic: The topic that contains the model's log.
            bootstrap: Address of a Kafka broker.
            lag_max_ms: See `ModelLag`.
            transaction_timeout_ms: The learner's transaction timeout.
        """
        self._topic = topic
        self._bootstrap = bootstrap
        self._lag_max_ms = lag_max_ms
        self._overdue_ms = transaction_timeout_ms + OVERDUE_MS
        self._reported: set[tuple[int, int]] = set()  # offset and age of each reported warning

    def of(self, hold: Hold | None) -> list[str]:
        """Return the new warnings."""
        if hold is None:
            self._reported.clear()
            return []
        due = [(after_ms, text) for after_ms, text in self._warnings(hold) if 0 <= after_ms <= hold.for_ms]
        fresh = [text for after_ms, text in due if (hold.offset, after_ms) not in self._reported]
        self._reported |= {(hold.offset, after_ms) for after_ms, _ in due}
        return fresh

    def _warnings(self, hold: Hold) -> list[tuple[int, str]]:
        """Return all warnings, each preceded by the transaction age at which it is logged; -1 means never."""
        place = held_up(f"{self._topic}/0", hold.offset)
        command = (
            f"kafka-transactions.sh --bootstrap-server {self._bootstrap} abort --topic {self._topic} --partition 0 "
            f"--start-offset {hold.offset}"
        )
        return [
            (REPORTED_AFTER_MS, f"{place}; decisions use the current model; {ENDED_BY}"),
            (
                self._lag_max_ms,
                f"{place}; no decisions until the transaction ends, because of --model-lag-max "
                f"{format_duration(max(0, self._lag_max_ms))}",
            ),
            (self._overdue_ms, f"{place}, longer than any learner's transaction can last. To abort it, run: {command}"),
        ]
