"""The tables of the join drive it: whichever single entry is changed, the join no longer does what the oracle says."""

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from stream.joining.join import COUNTED, STAYS, TRANSITIONS, JoinSettings, Move, State
from tests.joining.test_join import LIMITS, ROWS, Driver
from tests.oracles.join_oracle import JoinOracle

OFTEN, TIGHT = 1_000, 2

SETTINGS = (
    JoinSettings(window_ms=8, orphan_ms=5, retain_ms=13, pending_max=OFTEN, orphans_max=OFTEN, retained_max=OFTEN),
    JoinSettings(window_ms=4, orphan_ms=11, retain_ms=9, pending_max=TIGHT, orphans_max=OFTEN, retained_max=OFTEN),
    JoinSettings(window_ms=9, orphan_ms=6, retain_ms=20, pending_max=OFTEN, orphans_max=TIGHT, retained_max=OFTEN),
    JoinSettings(window_ms=9, orphan_ms=12, retain_ms=20, pending_max=OFTEN, orphans_max=OFTEN, retained_max=TIGHT),
)
"""All times differ, and each limit is met in one of them and in no other: so a swap of two shows."""

SEEDS = 6
INPUTS = 120


def check_rows() -> None:
    """The join does what is written down by hand."""
    for row in ROWS:
        driver = Driver(LIMITS)
        assert (driver.run(row.script), driver.join.ledger()) == (row.happens, row.ledger)


def check_against_the_oracle(limits: JoinSettings, seed: int) -> None:
    """The join does what the oracle does, input by input, in a run drawn from a seed."""
    luck = Random(seed)
    assumes_negative = luck.random() < 0.5
    driver, oracle = Driver(limits, negative=assumes_negative), JoinOracle(limits, 0 if assumes_negative else None)
    now_ms = 0
    for _ in range(INPUTS):
        now_ms += luck.choice((0, 0, 0, 1, 2, limits.window_ms))
        event_id, action = luck.choice("abcdef"), luck.randrange(2)
        match luck.randrange(5):
            case 0 | 1:
                aside = luck.randrange(4) == 0
                told = driver.context(event_id, now_ms, action, aside=aside)
                assert told == oracle.context(event_id, now_ms, action, aside=aside)
            case 2 | 3:
                bit, named = luck.randrange(2), luck.choice((None, action))
                told = driver.feedback(event_id, bit, now_ms, named)
                assert told == oracle.feedback(event_id, bit, now_ms, named)
            case _:
                assert driver.time(now_ms) == oracle.time(now_ms)
        join = driver.join
        assert join.ledger() == oracle.ledger()
        assert join.ledger().balances
        assert join.overflows() == oracle.overflows()


def check_all() -> None:
    check_rows()
    for limits in SETTINGS:
        for seed in range(SEEDS):
            check_against_the_oracle(limits, seed)


ALIKE = {Move.KEEP_ORPHAN, Move.FORGET}
"""Two names for people: neither move counts or tells anything, and the next state, in the table too, does it all."""


class Change(NamedTuple):
    """A table with one entry that is another one."""

    name: str
    table: dict[Any, Any]
    key: Any
    entry: Any  # None: the entry is taken out

    def patched(self) -> Mapping[Any, Any]:
        rest = {key: entry for key, entry in self.table.items() if key != self.key}
        return rest if self.entry is None else {**self.table, self.key: self.entry}


def changes() -> list[Change]:
    found: list[Change] = []
    for (state, happened), (move, after) in TRANSITIONS.items():
        name, key = f"{state.name} + {happened.name}", (state, happened)
        others: list[Any] = [(other, after) for other in Move if other is not move and {other, move} != ALIKE]
        others += [(move, other) for other in State if other is not after]
        found += [Change(f"{name}: {m.name} to {s.name}", TRANSITIONS, key, (m, s)) for m, s in others]
        found.append(Change(f"{name}: taken out", TRANSITIONS, key, None))
    for state, stay in STAYS.items():
        found.append(Change(f"{state.name}: no stay", STAYS, state, None))
        for field in stay._fields:
            values = {getattr(other, field) for other in STAYS.values()} - {getattr(stay, field)}
            if field == "since":
                values = {lambda entry: 0}
            found += [
                Change(f"{state.name}: another {field} {number}", STAYS, state, stay._replace(**{field: value}))
                for number, value in enumerate(sorted(values, key=str))
            ]
    for move, names in COUNTED.items():
        found += [
            Change(f"{move.name} counts {other}", COUNTED, move, other)
            for other in sorted({*COUNTED.values(), ("conflicts",)} - {names})
        ]
    return found


def test_join_does_what_the_oracle_says() -> None:
    check_all()


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.name)
def test_a_change_of_one_entry_is_noticed(change: Change) -> None:
    noticed = False
    with patch.dict(change.table, change.patched(), clear=True):
        try:
            check_all()
        except Exception:  # a wrong result, or an entry that makes no sense: whatever a table can lead to
            noticed = True
    assert noticed
