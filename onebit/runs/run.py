"""`onebit.run`: run the pipeline for each learner and seed."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onebit.runs.embedded import run_embedded
from onebit.runs.plan import plan_runs
from onebit.runs.workers import jobs_of, run_in_processes
from producers.data import Data, InMemory, in_memory
from producers.datasets.log import LogDataset
from producers.datasets.logs.streams import STDIN
from stream.programs.process import Progress, ShowProgress, ignore
from stream.reporting.notebook_tables import html_table, text_table
from stream.reporting.pages import write_page
from stream.reporting.runs import LearnerRun, runs_json
from stream.reporting.tables import comparison
from stream.settings.definitions import Settings, SettingsError
from stream.settings.sources import given_settings
from stream.wire.ledger import Ledger, total_ledger

Learners = str | Sequence[str] | Mapping[str, Mapping[str, object]]
"""A learner's name, several names, or names with parameters, such as `{"late-ucb": {"alpha": 0.5}}`."""


@dataclass(frozen=True)
class RunReport:
    """The result of `onebit.run`, indexed by learner, as in `report["late-ucb"]` or `report["late-ucb", seed]`."""

    runs: tuple[LearnerRun, ...]

    def __getitem__(self, key: str | tuple[str, int]) -> LearnerRun:
        learner, seed = key if isinstance(key, tuple) else (key, None)
        found = [run for run in self.runs if run.learner == learner and seed in (None, run.seed)]
        if not found:
            raise KeyError(f"{key!r}: expected one of {', '.join(map(repr, self.keys()))}")
        if len(found) > 1:
            raise KeyError(f"{key!r}: there are {len(found)} runs; specify the seed: [{learner!r}, {found[0].seed}]")
        return found[0]

    def __iter__(self) -> Iterator[LearnerRun]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def keys(self) -> list[str]:
        """Return the learners' names."""
        return list(dict.fromkeys(run.learner for run in self.runs))

    @property
    def ledger(self) -> Ledger:
        """The sum of all runs' ledgers."""
        return total_ledger(run.ledger for run in self.runs)

    @property
    def ok(self) -> bool:
        """Whether all runs' ledgers are correct; see `LearnerRun.ok`."""
        return all(run.ok for run in self.runs)

    def to_dicts(self) -> list[dict[str, object]]:
        """Return one dict of plain values per run."""
        return [run.to_dict() for run in self.runs]

    def save(self, path: str | Path) -> Path:
        """Write the runs as a page (.html) or as JSON (.json); `onebit report` reads both.

        Raises:
            ValueError: the path has a different extension.
            OSError: the file cannot be written.
        """
        target = Path(path)
        match target.suffix:
            case ".html":
                return write_page(target, self.runs, datetime.now(UTC))
            case ".json":
                target.write_bytes(runs_json(self.runs))
                return target
        raise ValueError(f"{target}: expected the extension .html or .json")

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        table = comparison(self.runs)
        return table.columns, table.rows

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        first = self.runs[0]
        return html_table(*self._table(), caption=f"{first.data}, {first.events:,} events")


def run(
    data: Data = "optdigits",
    *,
    map: str | Path | None = None,  # noqa: A002 - name of the setting
    learners: Learners = "auto",
    seed: int = 0,
    seeds: int = 1,
    jobs: int | None = 1,
    kafka: bool = False,
    progress: Callable[[Progress], None] = ignore,
    **settings: Any,
) -> RunReport:
    """Run the replay, learner and feedback programs until all events are settled.

    By default, the run is embedded and uses virtual time. The same seed then gives the same result, bit for bit.

    Args:
        data: A data set from `onebit data list`, an svmlight file, or a log of decisions. Or data in memory: arrays
            `(x, y)` with n rows of d features and n classes; a `Dataset`; or a table such as a pandas or polars
            DataFrame or a pyarrow table, which is read like a Parquet file. Tables require `map` and pyarrow.
        map: Column mapping for a table: a TOML file, or `label=species,numeric=length+width,...`.
        learners: A learner, several learners, or learners with parameters; `auto` chooses based on the data.
        seed: Seed for all random draws.
        seeds: Number of runs per learner, with consecutive seeds.
        jobs: Number of parallel runs, each in its own process. None means one run per core, or one at a time for short
            runs and logs.
        kafka: Whether to run on the Kafka cluster at `bootstrap`, with each program in its own process.
        progress: Called with the progress of each run, up to ten times per second.
        settings: Other settings from docs/settings.md, by name, such as `delay="lognormal:10s,1.0"`, `loss=0.02` or
            `window="30s"`. Environment variables and onebit.toml are ignored.

    Raises:
        OnebitError: a setting is invalid, or the data cannot be read.
    """
    name, memory = in_memory(data)
    mapping = None if map is None else str(map)
    given = given_settings({"data": name, "map": mapping, "seed": seed, **_named(learners, settings), **settings})
    return run_pipelines(given, seeds=seeds, jobs=jobs, kafka=kafka, show=progress, memory=memory)


def _named(learners: Learners, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that select these learners and their parameters."""
    if isinstance(learners, str):
        return {"learner": [learners]}
    parameters = learners if isinstance(learners, Mapping) else {}
    own = [f"{name}.{key}={value}" for name, given in parameters.items() for key, value in given.items()]
    return {"learner": list(learners), "param": [*own, *settings.pop("param", ())]}


def run_pipelines(
    settings: Settings,
    *,
    seeds: int = 1,
    jobs: int | None = None,
    kafka: bool = False,
    command: str = "",
    stop: Callable[[], bool] = lambda: False,
    show: ShowProgress = ignore,
    memory: InMemory | None = None,
) -> RunReport:
    """Run each learner; see `run`. On Kafka, the learners run one after another.

    Args:
        settings: All settings, including the first seed.
        seeds: Number of embedded runs per learner, with consecutive seeds.
        jobs: Number of parallel embedded runs.
        kafka: Whether to run on Kafka.
        command: The command line, for the reports.
        stop: Returns whether to stop a run on Kafka.
        show: Called at intervals with the progress of each run.
        memory: Data in memory, instead of those that the settings name.

    Raises:
        SettingsError: settings contradict each other or do not match the data, or the topics are in use.
        RunInterruptedError: Ctrl-C interrupted the embedded runs.
        ProgramEndedError: a program of a run on Kafka ended early.
        RunStoppedError: a run on Kafka was stopped.
    """
    if kafka and (settings.data == STDIN or memory is not None):
        raise SettingsError(f"--data {settings.data}: in a run on Kafka, several programs read the data; use a file")
    runs = plan_runs(settings, command, seeds, memory)
    if kafka:
        from onebit.runs.on_kafka import run_on_kafka  # deferred: an embedded run does not need a Kafka client

        return RunReport(tuple(run_on_kafka(run, stop, show) for run in runs))
    is_log = any(isinstance(run.dataset, LogDataset) for run in runs)
    at_once = jobs_of(jobs, [run.estimated_s for run in runs], os.cpu_count() or 1, is_log=is_log)
    found = run_in_processes(runs, at_once, show) if at_once > 1 else [run_embedded(run, show) for run in runs]
    return RunReport(tuple(found))
