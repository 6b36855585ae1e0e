"""The learner program against Kafka: answers contexts with predictions, and learns from their feedback."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from consumers.learner import LearnerOptions, LearnerProgram
from consumers.recovery import Parked, RecoveryStoppedError
from stream.app.connection import by_client, keep_running, require_topics, watch_topics
from stream.app.live_estimates import LiveEstimating
from stream.app.model_lag import LagWarnings, model_line
from stream.app.pipeline_settings import wanted_settings, with_hint
from stream.app.process import Status, announce, boot_ms, collect_seldom, every, leave_out_what_stays, warn
from stream.app.program_metrics import LearnerCounts, learner_unready
from stream.app.readiness import ReadyFile
from stream.app.resolve import check_estimate, compile_kernels, n_features_of, parameters_of, records_max, slow_warning
from stream.app.settings import AUTO, Program, Settings, SettingsError
from stream.app.start_notice import announce_start
from stream.app.tally import Tally, drift_warnings, ledger_line
from stream.app.watching import Watched
from stream.journal.commit import Commit
from stream.journal.reading import pipeline_settings
from stream.journal.resolve import SettingsDifferError
from stream.kafka.port import Broker, BrokerError
from stream.reporting.tables import percent
from stream.task.settings import Sharing, TaskSettings
from stream.telemetry.metrics import LEARNER
from stream.wire.topics import Topics

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000


def run_learner(settings: Settings, stop: Callable[[], bool], *, change_settings: bool = False) -> None:
    """Run a learner until it is asked to stop; a lost broker is waited for.

    Args:
        settings: of the learner. What is not given is what the pipeline has.
        stop: whether to stop.
        change_settings: whether given settings that differ from the pipeline's apply from the next step on.

    Raises:
        SettingsError: a setting is invalid, or differs from the pipeline's.
        FencedError: another process took over, or the group threw this one out.
    """
    topics = settings.topics
    check_given(settings)
    ready_file = ReadyFile(Path(settings.ready_file) if settings.ready_file else None)
    estimating = LiveEstimating(is_asked=settings.estimate)  # goes on when the broker was away
    counts = LearnerCounts()  # likewise
    parked = Parked()  # likewise: tasks resume if their journals have not moved on

    def work(broker: Broker, partitions: int, watched: Watched) -> None:
        nonlocal parked
        asked_to_stop = watched.beats(stop)

        def pulse() -> None:
            if asked_to_stop():
                raise RecoveryStoppedError("asked to stop while the pipeline's settings were read")

        begun = pipeline_settings(broker, topics, partitions, pulse)
        has_no_log = not begun and lacks_log(broker, settings, topics, partitions)
        model = "own" if has_no_log else settings.model_of(partitions)
        task, nnz, given = wanted_settings(settings, begun, topics.journal, model, change=change_settings)
        shares_model = task.model == "shared"
        require_topics(broker, settings, shares_model=shares_model)
        watch = watch_topics(broker, settings, partitions, shares_model=shares_model)
        check_estimate(task.play, is_asked=settings.estimate)
        if slow := slow_warning(task, nnz):
            warn(slow)
        compile_kernels(task)
        tally = Tally()

        def committed(commits: Sequence[Commit]) -> None:
            tally.add(commits)
            estimating.add(commits)
            if watched.tells:
                counts.add(commits, program.broker_ms)
            for message in drift_warnings(commits):
                warn(message)

        program = LearnerProgram(
            broker, topics, task, _options(settings, task, nnz), boot_ms, announce,
            stop=asked_to_stop, given=given, change_settings=change_settings, committed=committed, parked=parked,
        )  # fmt: skip
        announce_start(Program.LEARN, settings, partitions)
        announce(
            f"{task.learner} on {topics.contexts}: started as instance {settings.instance}, {by_client(settings)}; "
            "Ctrl-C stops it"
        )
        if partitions > 1:
            announce(whose_model(task.model, topics, partitions, has_no_log=has_no_log))
        said = Status()
        lag_warnings = LagWarnings(
            topics.updates, settings.bootstrap, settings.model_lag_max_ms, settings.transaction_timeout_ms
        )

        def status() -> None:
            said.show(status_lines(program, tally) + estimating.lines(program.assigned))
            ledgers = {partition: task.join.ledger() for partition, task in program.tasks.items()}
            for warning in filter(None, (tally.warning(), tally.misplaced_warning(ledgers))):
                warn(warning)
            for warning in lag_warnings.of(program.model_hold):
                warn(warning)

        show, stands = every(STATUS_INTERVAL_MS, status), False
        collect_seldom()
        try:
            while not asked_to_stop():
                watch()
                if program.step(POLL_MS):
                    leave_out_what_stays()
                ready_file.show(program.ready)
                if program.ready and not stands:
                    status()  # where the tasks begin
                stands = program.ready
                watched.show(learner_unready(program), lambda: counts.samples(program))
                show()
            with suppress(BrokerError):  # nothing depends on it
                program.report_replica()
            status()
        finally:
            ready_file.show(ready=False)
            parked = program.park()
            program.close()

    try:
        keep_running(settings, LEARNER, stop, work)
    except RecoveryStoppedError as error:
        announce(f"stopped in a recovery, which wrote nothing: {error}")
    except SettingsDifferError as error:
        raise with_hint(error, change=change_settings) from error


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
    """Whether a new pipeline would share a model by default, and lacks its log.

    The broker is not asked where nothing depends on it: a learner need not be allowed what it does not need.
    """
    is_wanted = settings.model == AUTO and settings.model_of(partitions) == "shared"
    return is_wanted and topics.updates not in broker.describe_topics([topics.updates])


def whose_model(model: Sharing, topics: Topics, partitions: int, *, has_no_log: bool) -> str:
    """Whose model decides in the tasks of several partitions, for people; and whether the lack of a topic is why."""
    if model == "shared":
        return f"the {partitions} partitions share one model, whose log is {topics.updates}"
    why = f", since there is no topic {topics.updates} for the log of a shared one" if has_no_log else ""
    return f"each of the {partitions} partitions has a model of its own{why}"


def status_lines(program: LearnerProgram, tally: Tally) -> list[str]:
    """The state of every partition, and how often the learner was right."""
    lines = [
        f"partition {partition}: {ledger_line(running.join.ledger())}, {running.updates:,} updates"
        + (f", {running.alarms:,} drift alarms" if running.alarms else "")
        for partition, running in sorted(program.tasks.items())
    ]
    if program.replica is not None:
        lines.append(model_line(program.replica.version, program.model_hold))
    if tally.reward_rate is not None:
        lines.append(f"reward 1 for {percent(tally.reward_rate)} of the decisions matched since this program started")
    return lines


def check_given(settings: Settings) -> None:
    """Refuse what cannot work before a broker is waited for.

    Raises:
        SettingsError: several learners, a number of classes without the number of features, or a wrong parameter.
        ParameterError: the learner that is given does not have a parameter.
    """
    if len(settings.learner) != 1:
        raise SettingsError(
            f"--learner: `onebit learn` runs one learner; got {', '.join(settings.learner)}; start each with a "
            "--topic-prefix of its own, or compare them with `onebit run`"
        )
    if settings.learner != [AUTO]:
        parameters_of(settings, settings.learner[0])
    if settings.n_classes is not None and n_features_of(settings) is None:
        raise SettingsError(
            f"--n-classes {settings.n_classes}: contexts that are of no data set need both --n-classes and "
            "--n-features; got no --n-features"
        )
