"""`onebit replay`, `learn`, `feedback`, `verify`: each program on its own, against Kafka."""

import time
from collections.abc import Callable
from dataclasses import replace

from rich.markup import escape
from rich.table import Table

from consumers.learner import LearnerOptions, LearnerProgram
from producers.feedback import FeedbackOptions, FeedbackProgram
from producers.replay import ReplayProgram, resume_position
from stream.brokers.clocks import EstimatedClock
from stream.brokers.kafka_python.broker import KafkaBroker
from stream.brokers.port import Broker, BrokerError, BrokerUnavailableError, FencedError, StaleMemberError
from stream.cli.console import (
    EXIT_DIFFERS,
    EXIT_FENCED,
    EXIT_UNAVAILABLE,
    StopRequest,
    announce,
    every,
    fail,
    monotonic_ms,
    out,
    run_progress,
)
from stream.cli.options import dataset_of, feedback_plan, parameters_of, replay_options, topics_of
from stream.cli.settings import Settings, SettingsError
from stream.cli.wanted import wanted_settings, with_hint
from stream.recovery.journal import JournalError
from stream.recovery.journal_reading import JournalFollower
from stream.recovery.resolve import SettingsDifferError
from stream.recovery.settings_reading import pipeline_settings
from stream.verifying.audit import Finding, audit_partition
from stream.wire.ledger import Ledger
from stream.wire.topics import Topics

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000

REFUSALS_MAX = 5
REFUSED_WITHIN_MS = 60_000
"""A broker that has just come back may refuse what it soon allows; what it refuses again and again will not change."""


def connect(settings: Settings, stop: Callable[[], bool] = lambda: False) -> KafkaBroker:
    """Connect to Kafka, waiting for it as long as the settings say.

    Raises:
        SystemExit: no broker answered, or the program was asked to stop while it waited.
    """

    def waiting(message: str) -> None:
        if stop():
            raise SystemExit(0)
        announce(message)

    try:
        return KafkaBroker(
            settings.bootstrap,
            connect_timeout_ms=settings.connect_timeout,
            session_timeout_ms=settings.session_timeout,
            transaction_timeout_ms=settings.transaction_timeout,
            progress=waiting,
        )
    except BrokerUnavailableError as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error


def require_topics(broker: Broker, topics: Topics) -> int:
    """The number of partitions; topics that are missing end the program with what to do."""
    descriptions = broker.describe_topics(list(topics))
    missing = [name for name in topics if name not in descriptions]
    if missing:
        raise SettingsError(f"there is no topic {', '.join(missing)}; create them first: onebit topics create")
    counts = {name: descriptions[name].partitions for name in topics}
    if len(set(counts.values())) != 1:
        raise SettingsError(f"all topics need the same number of partitions; got {counts}")
    wrong = [name for name in topics if not descriptions[name].append_time]
    if wrong:
        raise SettingsError(
            f"topic {wrong[0]}: expected message.timestamp.type LogAppendTime; got CreateTime: no clock but the "
            "broker's may count; delete it and run onebit topics create"
        )
    return counts[topics.contexts]


def keep_running(settings: Settings, stop: StopRequest, work: Callable[[KafkaBroker], None]) -> None:
    """Do work against Kafka; when the broker goes away, wait for it and do the work anew.

    Raises:
        SystemExit: another process took over, the group threw this one out, or no broker came back within
            --connect-timeout.
    """
    refused = 0  # times in a row that the broker answered, and would not do what was asked
    while True:
        broker = connect(settings, stop)
        began_ms = monotonic_ms()
        try:
            work(broker)
        except FencedError as error:
            raise fail(
                f"{error}; nothing was written after that. Start it again, and it goes on from its last commit; give "
                "every process that runs at the same time its own --instance",
                EXIT_FENCED,
            ) from error
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


def learn(settings: Settings, *, change_settings: bool = False) -> None:
    """Learn until asked to stop."""
    stop = StopRequest()
    if len(settings.learner) != 1:
        raise SettingsError(f"--learner: this program runs one learner; got {', '.join(settings.learner)}")
    topics = topics_of(settings)
    if "learner" in settings.model_fields_set:
        parameters_of(settings, settings.learner[0])  # refused before a broker is waited for

    def work(broker: KafkaBroker) -> None:
        partitions = require_topics(broker, topics)
        begun = pipeline_settings(broker, topics, partitions)
        task, given = wanted_settings(settings, begun, topics.journal, change=change_settings)
        task.warm_up()
        options = LearnerOptions(
            group=f"{settings.topic_prefix}learner",
            instance=f"learner-{settings.instance}",
            snapshot_interval_ms=settings.snapshot_interval,
        )
        program = LearnerProgram(
            broker, topics, task, options, monotonic_ms, announce, given=given, change_settings=change_settings
        )
        announce(f"{task.learner} on {topics.contexts}: started as instance {settings.instance}; Ctrl-C stops it")

        def status() -> None:
            for partition, running in sorted(program.tasks.items()):
                announce(f"partition {partition}: {_status(running.join.ledger())}, {running.updates:,} updates")

        show = every(STATUS_INTERVAL_MS, status)
        try:
            while not stop():
                program.step(POLL_MS)
                show()
            status()
        finally:
            program.close()

    try:
        keep_running(settings, stop, work)
    except SettingsDifferError as error:
        raise with_hint(error, change=change_settings) from error


def _status(ledger: Ledger) -> str:
    return (
        f"decided {ledger.decided:,}, matched {ledger.matched:,}, expired {ledger.expired:,}, pending "
        f"{ledger.pending:,}, late {ledger.late:,}, duplicate {ledger.feedback_duplicates:,}"
    )


def feedback(settings: Settings) -> None:
    """Answer predictions until asked to stop."""
    stop = StopRequest()
    dataset = dataset_of(settings)
    topics = topics_of(settings)
    plan = feedback_plan(settings, dataset)

    def work(broker: KafkaBroker) -> None:
        require_topics(broker, topics)
        clock = EstimatedClock(monotonic_ms)
        options = FeedbackOptions(
            group=f"{settings.topic_prefix}feedback",
            instance=f"feedback-{settings.instance}",
            with_label=settings.with_label,
        )
        program = FeedbackProgram(
            broker, topics, dataset.label_of, plan, options, clock.now_ms, clock.heard, announce=announce
        )
        announce(f"feedback on {topics.predictions}: delay {settings.delay}; Ctrl-C stops it")
        sent = 0
        show = every(STATUS_INTERVAL_MS, lambda: announce(f"{sent:,} sent, {program.waiting:,} waiting"))
        try:
            while not stop():
                sent += program.step(_until(program.next_due_ms(), clock.now_ms()))
                show()
        finally:
            program.close()

    keep_running(settings, stop, work)


def _until(due_ms: int | None, now_ms: int) -> int:
    """How long a poll may wait so that what is due is not late."""
    return POLL_MS if due_ms is None else min(max(due_ms - now_ms, 1), POLL_MS)


def replay(settings: Settings, *, resume: bool) -> None:
    """Replay a data set to its end, or until asked to stop."""
    stop = StopRequest()
    dataset = dataset_of(settings)
    topics = topics_of(settings)
    reached = 0

    def work(broker: KafkaBroker) -> None:
        nonlocal reached
        partitions = require_topics(broker, topics)
        options = replay_options(settings.model_copy(update={"partitions": partitions}), dataset, start=reached)
        if resume or reached:
            announce(f"looking for the last event in {topics.contexts}")
            options = replace(options, start=resume_position(broker, topics, dataset, options))
        announce(f"{dataset.name}: {options.events - options.start:,} events from position {options.start:,}")
        program = ReplayProgram(broker, topics, dataset, options, monotonic_ms)
        with run_progress("replay", options.events) as progress:
            try:
                while not program.finished and not stop():
                    sent = program.step(0)
                    reached = program.position
                    if progress.due():
                        progress.show(program.position, float("nan"), 0)
                    due_ms = program.next_due_ms()
                    if not sent and due_ms is not None:
                        time.sleep(max(due_ms - monotonic_ms(), 1) / 1_000)
            finally:
                program.close()
        announce(f"{program.position:,} of {options.events:,} events are in {topics.contexts}")

    keep_running(settings, stop, work)


def verify(settings: Settings, *, wait_events: int | None, timeout_ms: int) -> list[Finding]:
    """Audit every partition; before that, if asked, wait until a number of events is settled."""
    broker = connect(settings)
    try:
        topics = topics_of(settings)
        partitions = require_topics(broker, topics)
        if wait_events is not None:
            _wait(broker, topics, partitions, wait_events, timeout_ms)
        return [audit_partition(broker, topics, partition, announce) for partition in range(partitions)]
    except JournalError as error:
        raise SettingsError(str(error)) from error
    finally:
        broker.close()


def _wait(broker: Broker, topics: Topics, partitions: int, events: int, timeout_ms: int) -> None:
    deadline_ms = monotonic_ms() + timeout_ms
    follower = JournalFollower(broker, topics, partitions)
    ledger = Ledger()
    show = every(STATUS_INTERVAL_MS, lambda: announce(f"waiting for {events:,} settled events: {_status(ledger)}"))
    while ledger.decided < events or ledger.pending:
        if monotonic_ms() > deadline_ms:
            raise fail(
                f"waited {timeout_ms // 1_000} s for {events:,} settled events; got {_status(ledger)}", EXIT_DIFFERS
            )
        ledger = follower.read(POLL_MS)
        show()
    follower.close()


def print_findings(findings: list[Finding]) -> None:
    """Show the learner's ledger beside the audited one, for each partition, and all that is wrong."""
    for finding in findings:
        if finding.gone:
            out.print(f"partition {finding.partition}: the ledger cannot be recomputed")
            for place in finding.gone:
                out.print(f"  [yellow]✗[/] {escape(place)}", highlight=False, soft_wrap=True)
            continue
        table = Table(title=f"partition {finding.partition}", title_justify="left")
        for column in ("", "learner", "from the topics", ""):
            table.add_column(column, justify="right" if column else "left")
        for name, counted, audited in zip(Ledger._fields, finding.learner, finding.audited, strict=True):
            verdict = "" if counted == audited else "[bold red]differs"
            table.add_row(name.replace("_", " "), f"{counted:,}", f"{audited:,}", verdict)
        out.print(table)
        for fault in (*finding.faults, *finding.audited.imbalances()):
            out.print(f"  [red]✗[/] {escape(fault)}", highlight=False)
        if finding.contexts_behind or finding.feedback_behind:
            out.print(f"  not applied yet: {finding.contexts_behind:,} contexts, {finding.feedback_behind:,} feedback")
    gone = [finding for finding in findings if finding.gone]
    wrong = [finding for finding in findings if not finding.ok and not finding.gone]
    if gone:
        out.print(f"[bold yellow]✗ the ledger cannot be recomputed[/] in {len(gone)} of {len(findings)} partitions")
    if wrong:
        out.print(f"[bold red]✗ the ledger does not add up in {len(wrong)} of {len(findings)} partitions")
    elif not gone:
        out.print(f"[bold green]✓ the ledger adds up[/] in all {len(findings)} partitions")
