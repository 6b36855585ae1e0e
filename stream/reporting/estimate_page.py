"""One HTML page about policies that were judged on a log: estimates, their path, the weights, and what is flagged."""

from typing import NamedTuple

from stream.estimating.estimate import Estimates
from stream.estimating.evaluation import PolicyEvaluation
from stream.reporting.charts import chart_json
from stream.reporting.page import environment
from stream.reporting.scripts import script
from stream.reporting.tables import Table, between, listed, rate


class _Policy(NamedTuple):
    """A policy, as the page tells of it."""

    name: str
    lead: str
    table: Table
    flags: list[tuple[str, str]]


def estimate_page(found: Estimates, confidence: float, command: str) -> str:
    """The page as text: one file, nothing fetched.

    Args:
        found: what was estimated.
        confidence: how often its intervals hold.
        command: the command line that did it.
    """
    from stream.reporting.estimate_charts import estimate_charts

    charts = estimate_charts(found.policies)
    names = [policy.policy for policy in found.policies]
    return (
        environment()
        .get_template("estimates.html")
        .render(
            title=f"{listed(names)} on {found.data}",
            summary=f"{found.events:,} logged decisions, {found.judged:,} of them with an action and an outcome.",
            policies=[_told(policy, confidence) for policy in found.policies],
            shown=charts,
            charts=chart_json(charts),
            script=script(),
            runs_packed="",
            command=command.split(" "),
            glossary=_GLOSSARY,
        )
    )


def _told(policy: PolicyEvaluation, confidence: float) -> _Policy:
    percent = f"{100 * confidence:g}\N{NO-BREAK SPACE}%"
    changing = " It learned on the way: its value is the mean over its changes." if policy.changes else ""
    rows = tuple(
        (
            one.estimator,
            f"{one.n:,}",
            rate(one.value),
            *map(between, (one.bootstrap, one.bernstein, one.anytime)),
        )
        for one in policy.estimates
    )
    columns = ("estimator", "n", "value", *(f"{percent} {kind}" for kind in ("bootstrap", "Bernstein", "anytime")))
    lead = f"Effective sample size {policy.ess:,.0f}, largest weight {policy.weight_max:,.4g}.{changing}"
    return _Policy(policy.policy, lead, Table(columns, rows), [(flag.name, flag.text) for flag in policy.flags])


_GLOSSARY = (
    ("value", "The mean reward that the policy would have had: how often its bit would have been 1."),
    ("weight", "How likely the policy plays what was logged, over how likely the log did."),
    ("effective sample size", "How many decisions of weight 1 would say as much: (Σw)²/Σw²."),
    ("replay", "The mean reward of decisions that are kept as if the policy had made them."),
    ("dm", "Direct method: a model of the reward, asked what the policy would have earned. Its error is not known."),
    ("ips", "Inverse propensity scores: the mean of weight times reward."),
    ("snips", "The same over the mean of the weights."),
    ("clipped-ips", "The same with weights cut; too low, and steadier."),
    ("dr", "Doubly robust: the direct method, corrected by the weighted error of its model."),
    (
        "bootstrap",
        "Between percentiles of resampled logs; about right for many decisions of like weights.",
    ),
    ("Bernstein", "Certain for bounded weights and a policy that does not change, and wider."),
    ("anytime", "Holds after every number of decisions at once, so that one may stop when one likes."),
)
