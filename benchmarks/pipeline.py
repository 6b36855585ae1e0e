"""Measure the embedded pipeline: events per second for runs of several lengths, and bytes per pending decision.

    python benchmarks/pipeline.py [--events 10000 100000 1000000] [--pending 1000000]

The pipeline includes the codec, the join, transactions and the journal, in one process. It runs soba-diag on SynSep
with 1,000 events per second of virtual time and feedback after 5 s. Rates are given both per second of wall time and
per second of CPU time, because other programs may run on the machine.
"""

import argparse
import gc
import subprocess
import sys
import time

import numpy as np

from onebit.runs.embedded import prepare_embedded
from onebit.runs.plan import resolve_run
from producers.datasets.synthetic import synsep
from stream.settings.definitions import Settings

RATE_PER_S = 1_000.0


def measure(events: int) -> None:
    """Run the pipeline once in this process and print its rates."""
    settings = Settings(data="synsep", events=events, delay="fixed:5s", seed=1)
    settings = settings.model_copy(update={"rate_per_s": RATE_PER_S})
    warm = prepare_embedded(resolve_run(settings.model_copy(update={"events": 200}), "soba-diag", synsep(1)))
    warm.run_to_end()
    pipeline = prepare_embedded(resolve_run(settings, "soba-diag", synsep(1)))
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    pipeline.run_to_end()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(
        f"{events:>9,} events  {events / wall_s:>9,.0f} events/s wall  {events / cpu_s:>9,.0f} events/s CPU", flush=True
    )


def measure_pending(decisions: int) -> None:
    """Print the memory used by a pending decision, with and without its features and scores."""
    from stream.settings.task_fields import JoinSettings
    from stream.task.join import Pending
    from stream.task.settings import TaskSettings
    from stream.task.task import Task
    from stream.wire.records import DecisionTime

    dataset = synsep(1)
    task = Task(TaskSettings("soba-diag", 9, 400, join=JoinSettings(pending_max=2 * decisions)), "contexts")
    gc.collect()
    before = _resident_bytes()
    payload = 0
    for row in range(decisions):
        x = dataset.row(row).x
        x = type(x)(x.indices.copy(), x.values.copy())
        decision = task.learner.predict(x, 0.5)
        payload += x.indices.nbytes + x.values.nbytes + decision.scores.nbytes
        pending = Pending(x, decision, DecisionTime(row))
        task.join.receive_context(dataset.event_id(row), pending)
    used = _resident_bytes() - before
    print(
        f"{decisions:,} pending decisions: {used / decisions:,.0f} bytes each, including "
        f"{payload / decisions:,.0f} for features and scores; {(used - payload) / decisions:,.0f} without them"
    )


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4_096


def main() -> None:
    """Measure each run length in its own process, so that the measurements do not affect each other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure(arguments.one)
        return
    for events in arguments.events:
        subprocess.run([sys.executable, __file__, "--one", str(events)], check=True)
    if arguments.pending:
        measure_pending(arguments.pending)


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
