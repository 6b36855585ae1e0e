"""`onebit learn`: the learner program on Kafka."""

from collections.abc import Sequence

import typer

from consumers.learner.loop import run_learner
from onebit.cli.console import StopRequest, examples
from onebit.cli.flags import with_settings
from producers.data import data_sizes
from stream.settings.definitions import Settings
from stream.settings.model import Program

app = typer.Typer()


@app.command(
    epilog=examples(
        "onebit learn --learner soba-diag --param gamma=0.05",
        "onebit learn --data synsep --instance a   # and --instance b in another terminal, with 2 partitions",
        "onebit learn --n-classes 12 --n-features 4096   # for contexts of your own",
        "onebit learn --topic-prefix news. --topic-prefix shop.   # several pipelines in one process",
    )
)
@with_settings(Program.LEARN, repeated="topic_prefix")
def learn(pipelines: Sequence[Settings]) -> None:
    """Publish a prediction for each context and learn from feedback.

    Ctrl-C or SIGTERM completes the open transaction and exits with 0. After a restart, a killed learner continues from
    its last commit. Settings that you do not set are taken from the pipeline. A setting that differs from the
    pipeline's is rejected; `onebit change` changes the pipeline's. If --topic-prefix is repeated, the process runs a
    learner for each pipeline, and an error in one pipeline does not stop the others.
    """
    stop = StopRequest("completing the open transaction")
    if len(pipelines) == 1:
        run_learner(pipelines[0], stop, sizes_of=data_sizes)
        return
    from consumers.learner.several import run_learners  # deferred: most learners run one pipeline

    run_learners(pipelines, stop, sizes_of=data_sizes)
