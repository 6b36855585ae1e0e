"""The learner program on Kafka: publishes a prediction for each context, and learns from feedback."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Thread
from time import time_ns
from typing import TYPE_CHECKING

from consumers.learner.metrics import LearnerCounts, learner_unready, range_of, result_samples
from consumers.learner.program import LearnerOptions, LearnerProgram
from consumers.learner.ready_file import ReadyFile
from consumers.learner.recovery import Parked, RecoveryStoppedError
from consumers.learner.status import LearnerStatus
from consumers.learner.tracing import StepTracing
from consumers.live_estimates import LiveEstimating
from consumers.tally import Tally, drift_warnings
from stream.kafka.port import Broker, BrokerError
from stream.programs.connection import announce_start, by_client, keep_running, required_topics, watch_topics
from stream.programs.costs import compile_kernels, exploration_notice, records_max, slow_warning
from stream.programs.keep import check_keep
from stream.programs.pipeline_settings import Chosen, settings_for, with_hint
from stream.programs.process import announce, boot_ms, every, freeze_gc, tune_gc, warn
from stream.programs.task_settings import blocks_of, check_estimate, n_features_of, parameters_of
from stream.programs.tracing import traced
from stream.programs.watching import Watched
from stream.recovery.commit import Commit
from stream.recovery.control import read_requests
from stream.recovery.recover import reading_pipeline_settings
from stream.recovery.slices import finish
from stream.recovery.steps import last_steps
from stream.settings.data_sizes import SizesOf
from stream.settings.definitions import AUTO, Settings, SettingsError
from stream.settings.model import Program
from stream.task.changes import Changed
from stream.task.settings import Sharing, TaskSettings
from stream.task.stored_settings import SettingsDifferError, restored_settings, stored_settings
from stream.telemetry.metrics import LEARNER
from stream.wire.records import TopicPartition
from stream.wire.topics import Topics

if TYPE_CHECKING:  # not imported at run time: OpenTelemetry is optional
    from stream.telemetry.tracing import Tracing

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000

FINISH_MS = 5_000
"""Time for the last snapshots after a stop request. Docker kills a container 10 s after the request."""


def run_learner(settings: Settings, stop: Callable[[], bool], *, sizes_of: SizesOf) -> None:
    """Run a learner until stopped. Reconnect if the connection is lost.

    Args:
        settings: The learner's settings. Settings that the user did not set are taken from the pipeline.
        stop: Returns whether to stop.
        sizes_of: Returns the sizes of the data set that the settings select.

    Raises:
        SettingsError: a setting is invalid, or differs from the pipeline's setting.
        FencedError: another process took over, or the group removed this process.
    """
    check_given(settings)
    with explained(), traced(settings, LEARNER) as tracing:
        keep_running(settings, LEARNER, stop, LearnerLoop(settings, stop, sizes_of, tracing).run)


@contextmanager
def explained() -> Iterator[None]:
    """End normally if a recovery was stopped, and add the remedy to an error about different settings."""
    try:
        yield
    except RecoveryStoppedError as error:
        announce(f"stopped during recovery; nothing was written: {error}")
    except SettingsDifferError as error:
        raise with_hint(error) from error


class LearnerLoop:
    """A learner's main loop. Its state is kept across reconnects."""

    def __init__(
        self, settings: Settings, stop: Callable[[], bool], sizes_of: SizesOf, tracing: "Tracing | None" = None
    ) -> None:
        self._settings, self._stop, self._sizes_of, self._tracing = settings, stop, sizes_of, tracing
        self._ready_file = ReadyFile(Path(settings.ready_file) if settings.ready_file else None)
        self._counts, self._tally = LearnerCounts(), Tally()
        self._estimating: LiveEstimating | None = None  # None before the task's settings are known
        self._parked = Parked()  # a task resumes if its journal has no new records

    def run(self, broker: Broker, partitions: int, watched: Watched) -> None:
        """Run a learner on one connection; see `Work`."""
        settings, stop = self._settings, watched.with_heartbeat(self._stop)
        (task, nnz, given), begin, has_no_log = self._resolve(broker, partitions, stop)
        shares_model = task.model == "shared"
        keep_ms = settings.topics.keep_ms(required_topics(broker, settings, shares_model=shares_model))
        check_keep(keep_ms, task.join, settings.snapshot_interval_ms)

        def keep(keep_ms: int) -> None:
            for running in program.tasks.values():
                check_keep(keep_ms, running.settings.join, settings.snapshot_interval_ms)
            program.keep(keep_ms)

        watch = watch_topics(
            broker, settings, partitions, shares_model=shares_model,
            on_new_leader=lambda: program.check_inputs(), on_retention=keep,
        )  # fmt: skip
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
            for message in drift_warnings(commits):
                warn(message)

        tracing = None if self._tracing is None else StepTracing(self._tracing, time_ns, settings.topics.feedback)
        program = LearnerProgram(
            broker, settings.topics, task, _options(settings, task, nnz, keep_ms), boot_ms, announce,
            stop=stop, given=given, begin=begin, is_prepared=_Compiler().has_compiled, committed=committed,
            tracing=tracing, parked=self._parked,
        )  # fmt: skip
        _announce_learner(settings, task, partitions, has_no_log=has_no_log)
        tune_gc()
        try:
            self._work(program, estimating, watch, watched)
        finally:
            self._ready_file.show(ready=False)
            self._parked = program.park()
            program.close()

    def _resolve(
        self, broker: Broker, partitions: int, stop: Callable[[], bool]
    ) -> tuple[Chosen, Changed | None, bool]:
        """Combine the pipeline's settings with the user's, which may be those of a request that is not applied yet.

        Also return the settings with which new tasks begin, and whether the updates topic is missing.
        """

        def pulse() -> None:
            if stop():
                raise RecoveryStoppedError("stopped while reading the pipeline's settings")

        settings, topics = self._settings, self._settings.topics
        requests = read_requests(broker, topics)
        requests.check_not_moved(topics)
        if not last_steps(broker, [TopicPartition(topics.journal, partition) for partition in range(partitions)]):
            requests.check_opened(topics)
        stored, control = finish(reading_pipeline_settings(broker, topics, partitions), pulse)
        begin = None
        if "seed" in stored:  # the pipeline has started
            begin = Changed(restored_settings(stored), control)
            stored = stored_settings(requests.after(*begin[:2]).settings)
        has_no_log = not stored and lacks_log(broker, settings, topics, partitions)
        model = "own" if has_no_log else settings.model_of(partitions)
        chosen = settings_for(settings, stored, topics.journal, model, sizes_of=self._sizes_of)
        return chosen, begin, has_no_log

    def _work(
        self, program: LearnerProgram, estimating: LiveEstimating, watch: Callable[[], None], watched: Watched
    ) -> None:
        """Execute steps until stopped."""
        status = LearnerStatus(self._settings, program, self._tally, estimating)
        stop = watched.with_heartbeat(self._stop)
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
                learner_unready(program),
                lambda: chain(self._counts.samples(program), result_samples(estimating.now(), range_of(program))),
            )
            show()
        try:
            program.finish(FINISH_MS)
        except BrokerError as error:  # a restart needs neither the report nor the snapshots
            announce(
                "the last snapshots are incomplete. A restart replays the journal after the newest snapshots; start a "
                f"learner before the topics' retention deletes these records: {error}"
            )
        status.show()


class _Compiler:
    """Compiles the kernels for changed learners in a thread, so that the running learners continue to decide."""

    def __init__(self) -> None:
        self._runs: list[tuple[TaskSettings, Future[None]]] = []

    def has_compiled(self, settings: TaskSettings) -> bool:
        """Return whether the kernels for these settings are compiled. If not, start to compile them.

        Raises:
            SettingsError: a learner raises an exception.
        """
        run = next((run for compiled, run in self._runs if compiled == settings), None)
        if run is None:
            run = Future()
            self._runs.append((settings, run))
            Thread(target=_compile, args=(settings, run), name="compiler", daemon=True).start()
        if not run.done():
            return False
        if (error := run.exception()) is not None:
            raise SettingsError(
                f"the learners of a request cannot be used: {error}. `onebit changes` lists the request; reverse it "
                "with `onebit change`"
            ) from error
        return True


def _compile(settings: TaskSettings, run: "Future[None]") -> None:
    try:
        compile_kernels(settings)
        for name in settings.members:
            settings.warm_up_member(name)  # pending decisions are converted by each learner alone
    except Exception as error:  # raised where the result is asked for
        run.set_exception(error)
    else:
        run.set_result(None)


def _announce_learner(settings: Settings, task: TaskSettings, partitions: int, *, has_no_log: bool) -> None:
    """Log the program's start, the learner, and whether the partitions share a model."""
    announce_start(Program.LEARN, settings, partitions)
    announce(
        f"{task.learner} on {settings.topics.contexts}: started as instance {settings.instance}, "
        f"{by_client(settings)}; press Ctrl-C to stop"
    )
    if partitions > 1:
        announce(model_notice(task.model, settings.topics, partitions, has_no_log=has_no_log))


def _options(settings: Settings, task: TaskSettings, nnz: int, keep_ms: int) -> LearnerOptions:
    return LearnerOptions(
        group=f"{settings.topic_prefix}learner",
        instance=f"learner-{settings.instance}",
        records_max=records_max(task, nnz, LearnerOptions().records_max),
        step_max_ms=settings.step_max_ms,
        snapshot_interval_ms=settings.snapshot_interval_ms,
        model_lag_max_ms=settings.model_lag_max_ms,
        keep_ms=keep_ms,
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


def check_given(settings: Settings) -> None:
    """Check the user's settings before connecting.

    Raises:
        SettingsError: there are several learners, several of --n-classes, --classes-max and --actions-max are given,
            a number of features is missing, or a parameter is invalid.
        ParameterError: a parameter does not belong to the learner.
    """
    if len(settings.learner) != 1:
        raise SettingsError(
            f"--learner: `onebit learn` runs one learner; got {', '.join(settings.learner)}. Start each with its own "
            "--topic-prefix, or compare them with `onebit run`"
        )
    blocks = blocks_of(settings)
    if settings.learner != [AUTO]:
        parameters_of(settings, settings.learner[0], blocks)
    sizes = {
        "--n-classes": settings.n_classes, "--classes-max": settings.classes_max, "--actions-max": settings.actions_max,
    }  # fmt: skip
    flags = [f"{flag} {n}" for flag, n in sizes.items() if n is not None]
    if len(flags) > 1:
        raise SettingsError(f"{' and '.join(flags)}: expected only one of them")
    if flags and n_features_of(settings) is None:
        raise SettingsError(f"{flags[0]}: contexts without a data set also require --n-features")
