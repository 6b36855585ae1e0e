"""`onebit model` and `onebit verify --replay` on embedded pipelines' topics."""

from collections.abc import Callable

import orjson

from stream.errors import ExitCode
from stream.kafka.port import Broker
from tests.cli.conftest import Onebit
from tests.pipeline import Pipeline, run_until_idle, small_task


def work_on(pipeline: Pipeline, name: str, events: int) -> None:
    """Run a learner that writes snapshots while events and their feedback arrive."""
    learner = pipeline.learner(snapshot_interval_ms=100)
    for number in range(events):
        pipeline.clock.advance_to(pipeline.now_ms() + 20)
        pipeline.context(f"{name}-{number}", number % 4)
        pipeline.answer(f"{name}-{number}", number % 2)
        run_until_idle(learner)
    learner.close()


def test_models_are_exported_compared_and_imported(onebit: Onebit, on_broker: Callable[[Broker], None]) -> None:
    first, second = (Pipeline(small_task("soba-diag")) for _ in range(2))
    work_on(first, "first", 30)
    on_broker(first.broker)
    (replay,) = orjson.loads(onebit("verify", "--replay", "--json").out)["replay"]
    assert (replay["ok"], replay["snapshot"] > 0) == (True, True)
    assert onebit("model", "export", "--journal", "3", "--out", "early.npz").code == ExitCode.OK
    assert onebit("model", "export", "--out", "late.npz").code == ExitCode.OK
    at_a_time = onebit("model", "export", "--at", "2999-01-01T00:00Z", "--out", "again.npz", "--json")
    exported = orjson.loads(at_a_time.out)
    assert exported["digest"] == replay["state"]
    assert onebit("model", "diff", "late.npz", "again.npz").code == ExitCode.OK
    assert onebit("model", "diff", "early.npz", "late.npz").code == ExitCode.DIFFERS
    rejected = onebit("model", "import", "late.npz")
    assert rejected.code == ExitCode.USAGE
    assert "expected an empty journal" in rejected.err

    on_broker(second.broker)
    assert onebit("model", "import", "late.npz").code == ExitCode.OK
    work_on(second, "second", 10)
    assert onebit("verify", "--replay").code == ExitCode.OK
    assert second.journal()[0].updates >= exported["updates"] > 0
