"""Decision latencies, computed from contexts and predictions that are read in any order."""

import random

import pytest

from consumers.monitor.latencies import WAITING_MAX, Latencies


@pytest.mark.parametrize("seed", range(8))
def test_latencies_do_not_depend_on_read_order_or_restarts(seed: int) -> None:
    # Offset 3 is a duplicate context without a prediction. The context at offset 0 has been deleted.
    asked = [(offset, 1_000 + offset) for offset in range(1, 9)]
    answered = [(offset, 1_100 + offset) for offset in range(9) if offset != 3]
    latencies, draw = Latencies(), random.Random(seed)
    while asked or answered:
        if asked and (not answered or draw.random() < 0.5):
            latencies.ask(*asked.pop(0))
        else:
            latencies.answer(*answered.pop(0))
        kept, latencies = latencies.state(), Latencies()
        latencies.load(kept)
    assert latencies.all.size == 7
    assert latencies.all.quantile_s(1.0) == pytest.approx(0.1, rel=0.05)
    assert latencies.state()["contexts"] == latencies.state()["answers"] == []


def test_latencies_of_a_large_backlog_are_sampled_and_weighted() -> None:
    latencies = Latencies()
    backlog = 20 * WAITING_MAX
    for offset in range(backlog):
        latencies.ask(offset, 0)
    assert len(latencies.state()["contexts"]) <= WAITING_MAX
    for offset in range(backlog):
        latencies.answer(offset, 60_000)
    assert latencies.all.size == pytest.approx(backlog, rel=0.15)
    for offset in range(backlog, backlog + 10):
        latencies.ask(offset, 60_000)
        latencies.answer(offset, 60_010)
    assert latencies.recent.keys() == {60_000}
    assert latencies.state()["stride"] == 1
