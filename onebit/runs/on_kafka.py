"""Runs on Kafka, with each program in its own process, until every decision is settled."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from onebit.runs.plan import Run
from onebit.runs.programs import FEEDBACK, LEARNER, REPLAY, RunPrograms, warnings_in
from onebit.runs.report import Judge, RunEnd, report_of
from producers.data import uneven_warning
from producers.datasets.log import LogDataset
from producers.datasets.scaling import uneven_of
from stream.errors import ExitCode, OnebitError
from stream.kafka.port import AccessError, Broker, BrokerError
from stream.kafka.reading import read_in_order, read_partition
from stream.programs.connection import command_hint, connect
from stream.programs.process import Meter, ShowProgress, announce, ignore, warn
from stream.recovery.recover import recover
from stream.recovery.state import state_digest
from stream.recovery.steps import JournalFollower
from stream.reporting.runs import LearnerRun
from stream.settings.definitions import Settings, SettingsError
from stream.task.settings import TaskSettings
from stream.verifying.models import replica_at
from stream.verifying.shared_log import audit_log
from stream.wire import codec
from stream.wire.records import TopicPartition
from stream.wire.topics import DEFAULT_PREFIX, Topics

POLL_MS = 200


class RunStoppedError(OnebitError):
    """The run was stopped early."""

    exit_code = ExitCode.INTERRUPTED


def run_on_kafka(run: Run, stop: Callable[[], bool] = lambda: False, show: ShowProgress = ignore) -> LearnerRun:
    """Run one learner, with each program in its own process, until every decision is settled.

    Args:
        run: The run. The programs receive its settings as environment variables.
        stop: Returns whether to stop.
        show: Called at intervals with the progress.

    Raises:
        SettingsError: the topics contain events from an earlier run.
        ProgramEndedError: a program ended early.
        RunStoppedError: the run was stopped.
    """
    run = _with_own_topics(run)
    settings, task, topics, learner = run.given, run.task, run.topics, run.task.learner
    started_s = time.perf_counter()
    with closing(connect(settings)) as broker:
        shares_model = task.model == "shared"
        broker.create_topics(topics.specs(run.partitions, settings.replication, shares_model=shares_model))
        _refuse_used(broker, topics, settings)
        announce(f"{learner}: topics {settings.topic_prefix}* on {settings.bootstrap}")
        with RunPrograms(settings.model_copy(update={"model": task.model}), learner) as programs:
            programs.start(LEARNER, FEEDBACK)
            _wait_until_settled(broker, run, programs, stop, Meter(run.name, run.events, show))
            reported = uneven_warning(uneven_of(run.dataset))  # the run has already logged this warning
            for message in warnings_in(programs.logs[REPLAY]):
                if message != reported:
                    warn(f"`onebit replay`: {message}")
        announce(
            f"{learner}: topics kept. To verify: {command_hint(settings, 'verify')}; to delete: "
            f"{command_hint(settings, 'topics delete')}"
        )
        wall_s = time.perf_counter() - started_s
        judge, virtual_s = _judge(broker, run)
        ended = _shared_end if shares_model else _own_end
        end = ended(broker, topics, task, run.partitions)._replace(virtual_s=virtual_s, wall_s=wall_s)
        return report_of(broker, run, judge, end, in_real_time=True)


def _own_end(broker: Broker, topics: Topics, settings: TaskSettings, partitions: int) -> RunEnd:
    """Return the results that depend on the tasks' final models."""
    tasks = [recover(broker, topics, partition, settings).task for partition in range(partitions)]
    digest = state_digest(task.learner.state() for task in tasks)
    return RunEnd(sum(task.version for task in tasks), sum(task.alarms for task in tasks), digest, 0.0, 0.0, None)


def _shared_end(broker: Broker, topics: Topics, settings: TaskSettings, partitions: int) -> RunEnd:
    """Return the results that depend on the final shared model, with the replica versions recorded in the journals."""
    replica = replica_at(broker, topics, settings)
    digest, alarms = state_digest([replica.learner.state()]), int(replica.learner.alarms.sum())
    replicas = audit_log(broker, topics, partitions).replicas
    return RunEnd(replica.updates, alarms, digest, 0.0, 0.0, None, "shared", replicas)


def _with_own_topics(run: Run) -> Run:
    """Return the run with the user's topic prefix or, by default, a prefix that is unique to this run."""
    prefix, learner = run.given.topic_prefix, run.task.learner
    if prefix == DEFAULT_PREFIX:
        prefix += f"run-{time.strftime('%Y%m%d-%H%M%S')}.{learner}."
    elif len(run.given.learner) > 1:
        prefix += f"{learner}."
    return replace(run, given=run.given.model_copy(update={"topic_prefix": prefix}))


def _refuse_used(broker: Broker, topics: Topics, settings: Settings) -> None:
    tps = [TopicPartition(topics.contexts, partition) for partition in range(settings.partitions)]
    if any(ends.high_watermark > 0 for ends in broker.ends(tps).values()):
        raise SettingsError(
            f"--topic-prefix {settings.topic_prefix}: {topics.contexts} contains events from an earlier run. "
            f"Use a different prefix, or delete the topics: {command_hint(settings, 'topics delete')}"
        )


def _wait_until_settled(
    broker: Broker, run: Run, programs: RunPrograms, stop: Callable[[], bool], meter: Meter
) -> None:
    """Wait until all events are decided, all feedback has arrived, and no decision is pending."""
    dataset, events, plan = run.dataset, run.events, run.plan
    schedule = dataset.schedule(0, events, run.replay.shuffle_seed)
    # If a log has no true classes, the number of feedback records depends on the decisions. The run then ends when no
    # decision is pending.
    is_log = isinstance(dataset, LogDataset)
    feedback = 0 if is_log else sum(len(plan(event_id, dataset.label(row))) for event_id, row in schedule)
    follower = JournalFollower(broker, run.topics, run.partitions)
    while True:
        programs.check()
        if stop():
            raise RunStoppedError("the run was stopped early; its topics are kept")
        try:
            ledger = follower.read(POLL_MS)
        except AccessError:
            raise
        except BrokerError as error:
            announce(f"broker unavailable: {error}")
            time.sleep(1.0)
            continue
        if meter.is_due():
            meter.show(ledger.decided, pending=ledger.pending, to_come=max(0, feedback - ledger.feedback))
        if ledger.decided >= events and ledger.pending == 0 and ledger.feedback >= feedback:
            break
    follower.close()


def _judge(broker: Broker, run: Run) -> tuple[Judge, float]:
    """Evaluate predictions in broker-time order. Also return the time from the first decision to the last outcome."""
    judge = Judge(run.dataset.n_classes, run.shown_range, are_places=run.dataset.blocks is not None)
    tps = [TopicPartition(run.topics.predictions, partition) for partition in range(run.partitions)]
    for record in read_in_order(broker, dict(sorted(broker.beginnings(tps).items()))):
        prediction = codec.decode_prediction_fields(record)
        judge.observe(prediction, run.dataset.known_of(prediction.id), record.append_ms)
    last_ms = max(
        record.append_ms
        for partition in range(run.partitions)
        for record in read_partition(broker, TopicPartition(run.topics.examples, partition))
    )
    return judge, (last_ms - judge.decided_ms[0]) / 1_000
