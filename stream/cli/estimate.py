"""`onebit estimate`: what other policies would have earned, from a log of decisions."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from producers.datasets.log import rows_left_out
from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.reading import open_log
from producers.datasets.logs.streams import STDIN
from stream.cli.console import announce, every, examples, monotonic_ms, out, warn
from stream.cli.flags import BadRows, Json, LogMap, RewardAbove
from stream.cli.policies import policy_of
from stream.cli.settings import SettingsError
from stream.cli.sources import command_line
from stream.estimating.estimate import Estimates, Progress, estimate
from stream.estimating.intervals import Interval
from stream.estimating.judge import Judged, Options, estimate_fields
from stream.estimating.policies import Training
from stream.randomness.delays import parse_delay
from stream.task.play import Reward

app = typer.Typer()

PROGRESS_INTERVAL_MS = 5_000


class IntervalKind(StrEnum):
    """Of which kind the intervals `low` to `high` are."""

    BOOTSTRAP = "bootstrap"
    BERNSTEIN = "bernstein"


@app.command(
    name="estimate",
    epilog=examples(
        "onebit estimate --data shop.csv.gz --map shop.toml --policy late-ucb --policy logged --policy uniform",
        "onebit estimate --data shop.csv.gz --map shop.toml --policy igw-logistic:step=1 --delay exponential:1h",
        "onebit estimate --data joined.dsjson --policy model:noon.npz --policy constant:2 --propensity-min 0.01 --json",
    ),
)
def estimate_policies(
    data: Annotated[Path, typer.Option(metavar="FILE", help="The log: CSV, JSON lines, Parquet, VW's formats.")],
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="SPEC",
            help="Whom to judge; repeat it for more: logged, uniform, constant:ACTION, model:FILE of "
            "`onebit model export`, or a learner that learns from the log, NAME or NAME:PARAMETER=VALUE,...",
        ),
    ],
    mapping: LogMap = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            show_default="at once",
            help="How late a learner gets the bits of which the log says no delay, such as exponential:5s.",
        ),
    ] = None,
    propensity_min: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            show_default="the least in the log",
            help="The least probability that the logging policy gives any class: weights are at most 1/P.",
        ),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(metavar="W", show_default="√n", help="Where clipped-ips cuts weights.")
    ] = None,
    interval: Annotated[
        IntervalKind, typer.Option(help="With --json: of which kind low and high are.")
    ] = IntervalKind.BOOTSTRAP,
    confidence: Annotated[float, typer.Option(help="How often an interval holds.")] = 0.95,
    resamples: Annotated[int, typer.Option(min=50, max=100_000, help="Of the bootstrap.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Of resampling, folds, acceptance and delays.")] = 0,
    reward: Annotated[
        Reward, typer.Option(help="How many classes may be right for one context, for the learners that are judged.")
    ] = "exclusive",
    reward_above: RewardAbove = None,
    on_bad_row: BadRows = "stop",
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", show_default="none", help="Write a page with figures to this file."),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate what other policies would have earned, from a log of decisions with their propensities and rewards.

    Six estimators, each with 95 % intervals: by bootstrap, by empirical Bernstein where the weights are bounded and the
    policy does not change, and for ips and dr one that holds at every moment of the log at once.
    """
    _check_ranges(confidence, clip, propensity_min)
    if str(data) == STDIN:
        raise SettingsError("--data -: a log is read twice, and standard input only once; give a file")
    log = open_log(
        data,
        None if mapping is None else read_mapping(mapping),
        on_bad_row=on_bad_row,
        reward_above=reward_above,
    )
    training = Training(seed, None if delay is None else parse_delay(delay), reward)
    if training.delay is not None:
        training.delay.check_classes(len(log.class_names))
    policies = [policy_of(spec, log, training) for spec in policy]
    options = Options(seed=seed, confidence=confidence, resamples=resamples, clip=clip, propensity_min=propensity_min)
    found = estimate(log, policies, options, progress_line())
    for line in rows_left_out(log, of=log.name):
        warn(line)
    if report is not None:
        _publish(found, confidence, report)
    if json:
        sys.stdout.write(orjson.dumps(as_json(found, interval)).decode() + "\n")
    else:
        show(found, options, training)


def _publish(found: Estimates, confidence: float, path: Path) -> None:
    """Write the page."""
    from stream.reporting.estimate_page import estimate_page
    from stream.reporting.pages import write_whole

    try:
        write_whole(path, estimate_page(found, confidence, command_line(sys.argv[1:])))
    except OSError as error:
        raise SettingsError(f"--report {path}: the page cannot be written: {error}") from error
    announce(f"the page: {path}")


def _check_ranges(confidence: float, clip: float | None, propensity_min: float | None) -> None:
    for flag, value, ok, accepted in (
        ("--confidence", confidence, 0.0 < confidence < 1.0, "a number between 0 and 1, such as 0.95"),
        ("--clip", clip, clip is None or clip > 0.0, "a number above 0"),
        (
            "--propensity-min",
            propensity_min,
            propensity_min is None or 0.0 < propensity_min <= 1.0,
            "a number in (0, 1]",
        ),
    ):
        if not ok:
            raise SettingsError(f"{flag}: expected {accepted}; got {value}")


def as_json(found: Estimates, interval: IntervalKind) -> dict[str, Any]:
    """The estimates as they stand on the last line; `interval` is the kind that low and high are of."""
    return {
        "data": found.data,
        "events": found.events,
        "policies": [
            {
                "policy": policy.policy,
                "ess": policy.ess,
                "weight_max": policy.weight_max,
                "flags": [flag.name for flag in policy.flags],
                "estimates": [
                    estimate_fields(
                        one.estimator,
                        one.value,
                        one.bernstein if interval is IntervalKind.BERNSTEIN else one.bootstrap,
                        one.anytime,
                    )
                    for one in policy.estimates
                ],
            }
            for policy in found.policies
        ],
    }


def show(found: Estimates, options: Options, training: Training) -> None:
    """Show the estimates to people."""
    out.print(
        f"[bold]{escape(found.data)}[/]: {found.events:,} events, {found.judged:,} with an action and an outcome",
        highlight=False,
        soft_wrap=True,
    )
    for policy in found.policies:
        out.print(_table(policy, options))
        if policy.changes:
            out.print(f"  the mean value of the policy as it changes; {_when_learned(found, training)}", soft_wrap=True)
        for flag in policy.flags:
            out.print(f"  [bold yellow]{flag.name}:[/] {escape(flag.text)}", highlight=False, soft_wrap=True)
    out.print("dm's intervals leave out how wrong its model is; anytime ones hold at every moment of the log at once")


def _when_learned(found: Estimates, training: Training) -> str:
    """How late the bits came of which a learner learned."""
    if training.delay is not None:
        model = f"by the delay model {training.delay.spec}"
        return f"its feedback came as logged, else {model}" if found.has_delays else f"its feedback came {model}"
    return "its feedback came as logged, else at once" if found.has_delays else "its feedback came at once"


def _table(policy: Judged, options: Options) -> Table:
    percent = f"{100 * options.confidence:g} %"
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


def progress_line() -> Progress:
    """What tells people now and then how far the two readings have come."""
    started_ms = monotonic_ms()
    latest = (0, 0)

    def tell() -> None:
        read, events = latest
        rate = 1_000 * read / max(monotonic_ms() - started_ms, 1)
        what = f"judging: {read:,} of {events:,}" if events else f"first reading: {read:,}"
        announce(f"{what} events, {rate:,.0f} events/s")

    shown = every(PROGRESS_INTERVAL_MS, tell)

    def told(read: int, events: int) -> None:
        nonlocal latest, started_ms
        is_second_begun = events > 0 and latest[1] == 0
        latest = (read, events)
        if is_second_begun:
            started_ms = monotonic_ms()  # it has a speed of its own, which a first moment does not tell
        else:
            shown()

    return told
