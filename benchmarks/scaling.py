"""Measure the CPU time per event for different numbers of processes, with one model per process or a shared model.

    python benchmarks/scaling.py [--events N] [--learner NAME ...]

The embedded pipeline includes the codec, the join, transactions and the journal. Each process has one partition. There
are 10,000 events per second, feedback arrives after 1 s, and each learner runs a step every 20 ms. Times are the total
CPU time of all learners' steps.

With a shared model, a process handles its own events and applies all processes' log entries. With c µs per event, e log
entries per event and r µs per entry, n processes handle at most n / (c + n e r) events per µs. The limit for large n is
1 / (e r).
"""

import argparse
import time
from collections.abc import Sequence

from consumers.learner.program import LearnerOptions, LearnerProgram
from onebit.runs.embedded import prepare_embedded
from onebit.runs.plan import resolve_run
from producers.datasets.named import load
from stream.kafka.embedded import run_until_settled
from stream.settings.definitions import Settings

DATA = "optdigits"
LEARNERS = ("soba-diag", "late-ucb", "stack-igw")
PROCESSES = (1, 3, 8)
POLL_MS = 20


class Timed:
    """Several learners that run their steps in turn, as a single program."""

    def __init__(self, learners: Sequence[LearnerProgram]) -> None:
        self._learners = learners
        self.took_s = 0.0

    def step(self, timeout_ms: int) -> int:
        began_s = time.process_time()
        done = sum(learner.step(timeout_ms) for learner in self._learners)
        self.took_s += time.process_time() - began_s
        return done

    def next_due_ms(self) -> int | None:
        return min((due for learner in self._learners if (due := learner.next_due_ms()) is not None), default=None)


def measure(learner: str, processes: int, model: str, events: int) -> tuple[float, float]:
    """Return the total CPU time of all learners in µs per event, and the number of log entries per event."""
    settings = Settings.model_validate(
        {"data": DATA, "events": events, "rate": 10_000, "delay": "fixed:1s", "partitions": processes, "model": model}
    )
    pipeline = prepare_embedded(resolve_run(settings, learner, load(DATA)))
    others = [
        LearnerProgram(
            pipeline.broker,
            pipeline.run.topics,
            pipeline.run.task,
            LearnerOptions(instance=f"learner-{number}", snapshot_interval_ms=0),
            lambda: pipeline.clock.now_ms,
        )
        for number in range(2, processes + 1)
    ]
    timed = Timed([pipeline.learner, *others])
    while timed.step(0):  # until the partitions are assigned
        pass
    timed.took_s = 0.0
    run_until_settled(pipeline.clock, (pipeline.replay, pipeline.feedback), timed, POLL_MS)
    assert all(len(program.tasks) == 1 for program in (pipeline.learner, *others))
    replica = pipeline.learner.replica
    return 1e6 * timed.took_s / events, 0.0 if replica is None else replica.version / events


def main() -> None:
    """Measure each learner with each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--learner", nargs="*", default=LEARNERS)
    arguments = parser.parse_args()
    for learner in arguments.learner:
        measure(learner, 1, "shared", 500)  # compile the kernels
        for model in ("own", "shared"):
            found = [measure(learner, processes, model, arguments.events) for processes in PROCESSES]
            costs = ", ".join(f"{n}: {cost:.0f} µs" for n, (cost, _) in zip(PROCESSES, found, strict=True))
            print(f"{learner}, {model}: {costs}; {found[-1][1]:.2f} entries per event", flush=True)


if __name__ == "__main__":
    main()
