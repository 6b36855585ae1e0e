"""The ledger: every record is counted exactly once."""

import doctest

import pytest

from stream.wire import ledger
from stream.wire.ledger import Ledger, total_ledger

BALANCED = Ledger(
    contexts=143,
    decided=133,
    context_duplicates=7,
    context_malformed=3,
    feedback=130,
    matched=80,
    expired=15,
    pending=5,
    late=6,
    feedback_duplicates=4,
    conflicts=1,
    orphans_waiting=2,
    orphans_dropped=3,
    feedback_malformed=3,
    mismatched=5,
    contexts_misplaced=60,
    feedback_misplaced=50,
    unmatched=20,
    feedback_unmatched=9,
    propensities_floored=30,
    deferred=9,
    unshown=4,
    shown=7,
    pending_evicted=8,
    deferred_evicted=2,
    orphans_evicted=1,
    retained_evicted=70,
    answered=3,
    combined=2,
    feedback_excess=6,
)

OUTSIDE_EQUATIONS = (
    "conflicts", "contexts_misplaced", "feedback_misplaced", "propensities_floored",
    "pending_evicted", "deferred_evicted", "orphans_evicted", "retained_evicted",
)  # fmt: skip
"""Fields that are not in the ledger's equations, because other fields count the same records."""


def test_doctests_pass() -> None:
    assert doctest.testmod(ledger).failed == 0


def test_ledger_balances_if_every_record_is_counted_once() -> None:
    assert BALANCED.balances
    assert Ledger().balances


@pytest.mark.parametrize("field", [field for field in Ledger._fields if field not in OUTSIDE_EQUATIONS])
def test_adding_1_to_any_count_unbalances_the_ledger(field: str) -> None:
    changed = BALANCED._replace(**{field: getattr(BALANCED, field) + 1})
    assert not changed.balances


@pytest.mark.parametrize("field", OUTSIDE_EQUATIONS)
def test_counts_outside_the_equations_do_not_affect_balance(field: str) -> None:
    assert BALANCED._replace(**{field: 0}).balances


def test_message_about_an_imbalance_contains_the_equation_and_its_values() -> None:
    assert BALANCED._replace(late=7).imbalances() == (
        "feedback 130 != 131 = matched 80 + late 7 + feedback_duplicates 4 + mismatched 5 + orphans_waiting 2 "
        "+ orphans_dropped 3 + feedback_malformed 3 + feedback_unmatched 9 + shown 7 "
        "+ answered 3 + combined 2 + feedback_excess 6",
    )


def test_ledgers_of_partitions_are_added_field_by_field() -> None:
    both = total_ledger([BALANCED, BALANCED])
    assert both == Ledger(*(2 * count for count in BALANCED))
    assert both.balances
    assert total_ledger([]) == Ledger()


def test_ledger_can_be_added_only_to_a_ledger() -> None:
    with pytest.raises(TypeError):
        BALANCED + 1
