"""The HTML page with policy estimates."""

import re
from html import unescape

import numpy as np
import pytest

from stream.estimating.estimate import Estimates, estimate
from stream.estimating.evaluation import Options
from stream.estimating.policies import Training, parse_policy
from stream.reporting.estimate_charts import estimate_charts
from stream.reporting.estimate_page import estimate_page
from tests.estimating.logs import N_FEATURES, MemoryLog, a_log


@pytest.fixture(scope="module")
def found() -> Estimates:
    policies = [
        parse_policy(one, tuple("abcd"), N_FEATURES, Training()) for one in ("uniform", "constant:a", "late-ucb")
    ]
    return estimate(MemoryLog(a_log(400), name="<shop>"), policies, Options(resamples=100))


def test_page_contains_every_estimate(found: Estimates) -> None:
    page = estimate_page(found, 0.95, "onebit estimate --data shop.csv")
    for policy in found.policies:
        for one in policy.estimates:
            assert one.value is not None
            row = rf'<th scope="row">{one.estimator}</th><td>{one.n:,}</td><td>{one.value:.5f}</td>'
            assert re.search(row, page)
    assert page.count("its value is the mean over all its states") == 1
    assert "onebit</span> <span>estimate" in page


def test_estimate_page_contains_all_flags(found: Estimates) -> None:
    page = unescape(estimate_page(found, 0.95, "onebit"))
    flags = [flag for policy in found.policies for flag in policy.flags]
    assert "ess-low" in [flag.name for flag in flags]
    assert all(flag.text in page for flag in flags)


def test_estimate_page_has_charts_of_intervals_paths_and_weights(found: Estimates) -> None:
    intervals, path, weights = estimate_charts(found.policies)
    assert [len(chart.lines) for chart in (intervals, path, weights)] == [3, 3, 3]
    assert [chart.is_pointwise for chart in (intervals, path, weights)] == [True, False, True]
    for chart in (intervals, weights):
        assert max(max(line.x) for line in chart.lines) == len(chart.x.names) - 1
    content = estimate_page(found, 0.95, "onebit")
    assert re.findall(r'data-chart="(\w+)"', content) == ["intervals", "path", "weights"]


def test_estimate_page_is_reproducible_self_contained_and_escaped(found: Estimates) -> None:
    page = estimate_page(found, 0.95, "onebit")
    assert page == estimate_page(found, 0.95, "onebit")
    assert "<shop>" not in page
    assert "&lt;shop&gt;" in page
    assert "src=" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_estimate_page_of_a_policy_without_weights_has_one_figure() -> None:
    rows = a_log(100)._replace(propensities=np.full(100, np.nan))
    policy = parse_policy("uniform", tuple("abcd"), N_FEATURES, Training())
    page = estimate_page(estimate(MemoryLog(rows), [policy], Options(resamples=50)), 0.95, "onebit")
    assert page.count("<figure ") == 1
    assert "propensity-missing" in page
