"""`onebit train`: train a model from a log of decisions, or from labelled data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from onebit.cli.console import examples, print_json, print_line
from onebit.cli.flags import Json, with_settings
from onebit.training import trained
from stream.settings.definitions import Settings
from stream.settings.model import Program
from stream.wire.actions import CONTEXT, ActionBlocks

app = typer.Typer()


@app.command(
    name="train",
    epilog=examples(
        "onebit train --data week.parquet --learner late-ucb --reward any --out start.npz",
        "onebit train --data offers.csv.gz --map offers.toml --reward any --out start.npz",
        "onebit train --data optdigits --epochs 3 --out start.npz --json",
        "onebit train --data catalogue --limit 10000 --out start.npz",
    ),
)
@with_settings(Program.TRAIN)
def train_model(
    settings: Settings,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE.npz", help="Write the model to this file")],
    labels: Annotated[
        bool, typer.Option("--labels", help="Learn from the true classes of a log that also has decisions")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model from logged decisions or from labelled data.

    From logged decisions, the learner learns each action's reward with its propensity, as with `onebit run --play
    logged`. From true classes, it plays its own actions and learns whether they are right. Learners that can learn only
    from their own actions are rejected for logged decisions. A data set with the reward of every action, such as
    catalogue, is a log of uniformly random decisions.

    `onebit model import` starts a new pipeline with the model, its classes, its features and, with --scale standard,
    its scale.
    """
    report = trained(settings, labels=labels)
    report.save(out_file)
    if json:
        print_json({"file": str(out_file), **report.to_dict()})
        return
    meta = report.model.meta
    what = "labelled rows" if report.from_labels else "decisions"
    sizes = f"{meta['n_classes']} classes, {meta['n_features']:,} features"
    if meta["actions"] is not None:
        blocks = ActionBlocks.of_dimension(meta["n_features"], meta["n_classes"], meta["actions"][CONTEXT])
        sizes = f"{blocks.places} actions with {blocks.features:,} features, contexts with {blocks.context:,}"
    print_line(
        f"{escape(str(out_file))}: {meta['learner']} after {report.learned:,} {what}, {sizes}, "
        f"digest {meta['digest'][:16]}"
    )
    for reason, count in sorted(report.skipped.items()):
        print_line(f"  skipped: {count:,} {reason}")
