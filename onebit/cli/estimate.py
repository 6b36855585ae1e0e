"""`onebit estimate`: off-policy estimates from a log of decisions."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from onebit.cli.console import examples, out, print_json, print_line
from onebit.cli.flags import Json, policy_names, with_settings
from onebit.estimates import EstimateReport, IntervalKind, estimate
from stream.estimating.evaluation import PolicyEvaluation
from stream.estimating.intervals import Interval
from stream.programs.process import announce
from stream.settings.definitions import Settings, SettingsError
from stream.settings.model import Program
from stream.settings.sources import command_line
from stream.settings.task_fields import Reward

app = typer.Typer()


@app.command(
    name="estimate",
    epilog=examples(
        "onebit estimate --data shop.csv.gz --map shop.toml --policy late-ucb --policy logged --policy uniform",
        "onebit estimate --data shop.csv.gz --map shop.toml --policy igw-logistic:step=1 --delay exponential:1h",
        "onebit estimate --data joined.dsjson --policy model:noon.npz --policy constant:2 --propensity-min 0.01 --json",
    ),
)
@with_settings(Program.ESTIMATE)
def estimate_policies(
    settings: Settings,
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="Log of decisions: CSV, JSON lines, Parquet, or a VW format")
    ],
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="SPEC",
            autocompletion=policy_names,
            help="Policy to evaluate; repeatable: logged, uniform, baseline, first (with actions that have features), "
            "constant:ACTION, model:FILE from `onebit model export`, or a learner trained on the log, NAME or "
            "NAME:PARAMETER=VALUE,...",
        ),
    ],
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            show_default="immediate",
            help="For learners: delay for feedback without a logged delay, such as exponential:5s",
        ),
    ] = None,
    propensity_min: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            show_default="smallest in the log",
            help="Smallest probability that the logging policy assigns to any class; weights are at most 1/P",
        ),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(metavar="W", show_default="√n", help="Maximum weight in clipped-ips")
    ] = None,
    interval: Annotated[
        IntervalKind, typer.Option(help="Kind of interval in the fields low and high of the --json output")
    ] = "bootstrap",
    confidence: Annotated[float, typer.Option(help="Confidence level")] = 0.95,
    resamples: Annotated[int, typer.Option(min=50, max=100_000, help="Number of bootstrap samples")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed for resampling, folds, rejection sampling and delays")] = 0,
    reward: Annotated[Reward, typer.Option(help="Number of correct classes per context, for learners")] = "exclusive",
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", show_default="none", help="Write an HTML report with figures to this file"),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate the reward of other policies from a log of decisions.

    The log must contain propensities and rewards. Prints six estimates with 95% intervals: bootstrap for all
    estimators, empirical Bernstein for bounded weights and a constant policy, and anytime-valid for ips and dr.
    """
    found = estimate(
        data, policies=policy, map=settings.map, features=settings.features, reward_above=settings.reward_above,
        on_bad_row=settings.on_bad_row, delay=delay, reward=reward,
        rewards=settings.rewards, reward_range=settings.reward_range, propensity_min=propensity_min, clip=clip,
        interval=interval, confidence=confidence, resamples=resamples, seed=seed,
    )  # fmt: skip
    if report is not None:
        try:
            found.save(report, command_line(sys.argv[1:]))
        except OSError as error:
            raise SettingsError(f"--report {report}: cannot write: {error}") from error
        announce(f"report: {report}")
    if json:
        print_json(found.to_dict())
    else:
        show(found)


def show(report: EstimateReport) -> None:
    """Print the estimates."""
    found = report.found
    print_line(
        f"[bold]{escape(found.data)}[/]: {found.events:,} events, {found.judged:,} with an action and an outcome"
    )
    for policy in found.policies:
        out.print(_table(policy, report.confidence))
        if policy.changes:
            out.print(f"  mean value of a learning policy; {_when_learned(report)}", soft_wrap=True)
        for flag in policy.flags:
            print_line(f"  [bold yellow]{flag.name}:[/] {escape(flag.text)}")
    out.print("the intervals for dm ignore its model's bias; anytime intervals are valid at all times simultaneously")


def _when_learned(report: EstimateReport) -> str:
    """Describe the feedback delays used to train a learning policy."""
    delay = report.training.delay
    model = "without delay" if delay is None else f"with delay {delay.spec}"
    return (
        f"feedback with logged delays, or {model} if none is logged" if report.found.has_delays else f"feedback {model}"
    )


def _table(policy: PolicyEvaluation, confidence: float) -> Table:
    percent = f"{100 * confidence:g}%"
    ends = [f"{percent} {kind}" for kind in ("bootstrap", "Bernstein", "anytime")]
    table = Table(
        title=f"{policy.policy}: effective sample size {policy.ess:,.0f}, largest weight {policy.weight_max:,.4g}",
        title_justify="left",
        box=None,
        header_style="bold underline",
        padding=(0, 1, 0, 0),
    )
    for column in ("estimator", "n", "value", *ends):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    for one in policy.estimates:
        value = "-" if one.value is None else f"{one.value:.4f}"
        table.add_row(one.estimator, f"{one.n:,}", value, *map(_shown, (one.bootstrap, one.bernstein, one.anytime)))
    return table


def _shown(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:.4f}..{interval.high:.4f}"
