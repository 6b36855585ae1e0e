"""HTML page with off-policy estimates: values, their paths over the log, weights and flags."""

from typing import NamedTuple

from stream.estimating.estimate import Estimates
from stream.estimating.evaluation import PolicyEvaluation
from stream.reporting.charts import chart_json, script
from stream.reporting.page import environment
from stream.reporting.tables import Table, between, listed, rate


class _Policy(NamedTuple):
    """A policy's entry on the page."""

    name: str
    lead: str
    table: Table
    flags: list[tuple[str, str]]


def estimate_page(found: Estimates, confidence: float, command: str) -> str:
    """Return the page as one self-contained file.

    Args:
        found: The estimates.
        confidence: Confidence level of the intervals.
        command: The command line.
    """
    from stream.reporting.estimate_charts import estimate_charts, form_of

    charts = estimate_charts(found.policies, form_of(found.rewards))
    names = [policy.policy for policy in found.policies]
    return (
        environment()
        .get_template("estimates.html")
        .render(
            title=f"{listed(names)} on {found.data}",
            summary=f"{found.events:,} logged decisions, {found.judged:,} of them with an action and an outcome.",
            policies=[_entry(policy, confidence) for policy in found.policies],
            shown=charts,
            charts=chart_json(charts),
            script=script(),
            runs_packed="",
            command=command.split(" "),
            glossary=_GLOSSARY,
        )
    )


def _entry(policy: PolicyEvaluation, confidence: float) -> _Policy:
    percent = f"{100 * confidence:g}\N{NO-BREAK SPACE}%"
    changing = " The policy learns, so its value is the mean over all its states." if policy.changes else ""
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
    ("value", "The policy's mean reward: its rate of right actions."),
    ("weight", "The policy's probability of the logged action, divided by the logged propensity."),
    ("effective sample size", "The number of decisions with weight 1 that would be equally informative: (Σw)²/Σw²."),
    ("replay", "Rejection sampling: the mean reward of decisions accepted with the policy's probabilities."),
    ("dm", "Direct method: the mean prediction of a reward model. Its bias is unknown."),
    ("ips", "Inverse propensity scores: the mean of weight times reward."),
    ("snips", "Self-normalised IPS: ips divided by the mean weight."),
    ("clipped-ips", "IPS with clipped weights: biased downwards, but with less variance."),
    ("dr", "Doubly robust: the direct method plus the weighted error of its model."),
    (
        "bootstrap",
        "Percentiles over resampled logs; accurate if there are many decisions with similar weights.",
    ),
    ("Bernstein", "Guaranteed coverage for bounded weights and a constant policy, but wider intervals."),
    ("anytime", "Valid for all numbers of decisions simultaneously, so you can stop at any time."),
)
