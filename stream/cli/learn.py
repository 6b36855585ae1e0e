"""`onebit learn`: the learner program on its own, against Kafka."""

import typer

from consumers.learner import LearnerOptions, LearnerProgram
from stream.brokers.port import Broker
from stream.cli import cost
from stream.cli.composition import dataset_of, task_settings, topics_of
from stream.cli.connection import keep_running, require_topics
from stream.cli.console import StopRequest, announce, every, examples, monotonic_ms, warn
from stream.cli.flags import with_settings
from stream.cli.settings import Program, Settings, SettingsError
from stream.cli.tally import Tally, ledger_line
from stream.joining.task import TaskSettings
from stream.reporting.tables import percent

POLL_MS = 100
STATUS_INTERVAL_MS = 5_000

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit learn --learner soba-diag --param gamma=0.05",
        "onebit learn --data synsep --instance a   # and --instance b in another terminal, with 2 partitions",
        "onebit learn --n-classes 12 --n-features 4096   # for contexts of your own",
    )
)
@with_settings(Program.LEARN)
def learn(settings: Settings) -> None:
    """Answer contexts with predictions, and learn from their feedback.

    Ctrl-C or SIGTERM finishes the open transaction and exits 0. A learner that was killed goes on where it stood when
    it is started again with the same settings.
    """
    stop = StopRequest()
    topics = topics_of(settings)
    task, nnz = task_of(settings)
    if slow := cost.warning(task, nnz):
        warn(slow)
    task.warm_up()

    def work(broker: Broker) -> None:
        require_topics(broker, settings)
        options = LearnerOptions(
            group=f"{settings.topic_prefix}learner",
            instance=f"learner-{settings.instance}",
            records_max=cost.records_max(task, nnz, LearnerOptions().records_max),
            snapshot_interval_ms=settings.snapshot_interval_ms,
        )
        tally = Tally()
        program = LearnerProgram(broker, topics, task, options, monotonic_ms, announce, committed=tally.add)
        announce(f"{task.learner} on {topics.contexts}: started as instance {settings.instance}; Ctrl-C stops it")

        def status() -> None:
            _tell(program, tally)

        show = every(STATUS_INTERVAL_MS, status)
        try:
            while not stop():
                program.step(POLL_MS)
                show()
            status()
        finally:
            program.close()

    keep_running(settings, stop, work)


def _tell(program: LearnerProgram, tally: Tally) -> None:
    """Say where every partition stands, and what is probably set up wrongly."""
    for partition, running in sorted(program.tasks.items()):
        announce(f"partition {partition}: {ledger_line(running.join.ledger())}, {running.updates:,} updates")
    if tally.reward_rate is not None:
        announce(f"reward 1 for {percent(tally.reward_rate)} of the decisions matched since this program started")
    if warning := tally.warning():
        warn(warning)


def task_of(settings: Settings) -> tuple[TaskSettings, int]:
    """The task of a program that runs one learner, and about how many entries of its contexts are not zero.

    The contexts are a data set's, or those of one's own.

    Raises:
        SettingsError: several learners, or a number of classes without the number of features.
    """
    if len(settings.learner) != 1:
        raise SettingsError(
            f"--learner: `onebit learn` runs one learner; got {', '.join(settings.learner)}; start each with a "
            "--topic-prefix of its own, or compare them with `onebit run`"
        )
    if settings.n_classes is None:
        dataset = dataset_of(settings)
        task = task_settings(settings, settings.learner[0], dataset.n_classes, dataset.n_features)
        return task, cost.nnz_of(dataset)
    if settings.n_features is None:
        raise SettingsError(
            f"--n-classes {settings.n_classes}: contexts that are of no data set need both --n-classes and "
            "--n-features; got no --n-features"
        )
    task = task_settings(settings, settings.learner[0], settings.n_classes, settings.n_features)
    return task, settings.n_features
