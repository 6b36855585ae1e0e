"""The pytest plugin in another project: failures, and the output of failed tests."""

import pytest

pytest_plugins = "pytester"

TESTS = """
import pytest

SIZES = {"n_classes": 2, "n_features": 2, "learner": "banditron"}

def test_that_fails(onebit_embedded):
    pipeline = onebit_embedded(**SIZES)
    pipeline.context("visit-1", [1.0, 0.5])
    assert pipeline.prediction("visit-1")["action"] == 7

def test_whose_ledger_is_wrong(onebit_embedded):
    pipeline = onebit_embedded(**SIZES)
    pipeline.context("visit-1", [1.0, 0.5])
    pipeline.prediction("visit-1")
    pipeline.send("examples", "visit-1", b"{}")
    journal = pipeline.records(pipeline.topics.journal)[-1]
    pipeline.broker.producer().send(
        journal.topic, 0, None, journal.value.replace(b'"decided":1', b'"decided":2'), journal.headers
    )

def test_that_waits_in_vain(onebit_embedded):
    onebit_embedded(**SIZES, window="1s").prediction("visit-2")

def test_with_a_setting_that_there_is_not(onebit_embedded):
    onebit_embedded(**SIZES, windw="1s")
"""


@pytest.fixture
def reported(pytester: pytest.Pytester) -> list[str]:
    """Pytest's output lines for TESTS."""
    pytester.makepyfile(TESTS)
    return pytester.runpytest_inprocess(
        "-p", "onebit.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"
    ).outlines


def test_failed_test_shows_its_events_and_an_unbalanced_ledger_is_an_error(reported: list[str]) -> None:
    text = "\n".join(reported)
    assert "failed" in reported[-1]
    first = text[text.index("__ test_that_fails __") : text.index("__ test_that_waits_in_vain __")]
    for expected in (
        "Onebit's pipeline",
        "topics onebit.*, Ledger(contexts=1, decided=1",
        "visit-1:\n  1970-01-01T00:00:01.000Z contexts/0@0 visit-1 x=[1.0,0.5]\n",
        "predictions/0@0 visit-1 action=",
    ):
        assert expected in first
    assert "after 0 ms of virtual time: visit-2 is in the topic predictions" in text
    assert "windw" in text
    assert "_ ERROR at teardown of test_whose_ledger_is_wrong _" in text
    assert "AssertionError: the ledger does not add up:" in text


def test_plugin_ignores_the_deprecation_warning_of_kafka_python(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error")
    pytester.makepyfile("""
import warnings

def test_that_loads_it():
    warnings.warn("open_text is deprecated. Use files() instead.", DeprecationWarning)

def test_of_its_own():
    warnings.warn("deprecated", DeprecationWarning)
""")
    pytester.runpytest_inprocess(
        "-p", "onebit.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"
    ).assert_outcomes(passed=1, failed=1)
