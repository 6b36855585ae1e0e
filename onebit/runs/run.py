"""`onebit.run`: run the pipeline for each learner and seed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebit.notebook_tables import html_table, text_table
from onebit.runs.processes import run_all_embedded, run_all_on_kafka
from stream.programs.process import Progress, ignore
from stream.reporting.pages import write_page
from stream.reporting.run_report import RunReport as Report
from stream.reporting.run_report import runs_json
from stream.reporting.tables import comparison
from stream.settings.sources import given_settings
from stream.wire.ledger import Ledger, total_ledger

if TYPE_CHECKING:
    from stream.estimating.arms import ArmComparison
    from stream.estimating.challengers import ChallengerComparison

Learners = str | Sequence[str] | Mapping[str, Mapping[str, object]]
"""A learner's name, several names, or names with parameters, such as `{"late-ucb": {"alpha": 0.5}}`."""


class Curve(NamedTuple):
    """A run's progressive error at up to 400 points."""

    events: NDArray[np.int64]  # [n] number of decisions so far
    error: NDArray[np.float64]  # [n] fraction of wrong actions
    window_error: NDArray[
        np.float64
    ]  # [n] fraction of wrong actions in a sliding window (one twentieth of the run); nan until the window is full


@dataclass(frozen=True)
class LearnerRun:
    """One learner's run on one stream of events."""

    report: Report

    @property
    def learner(self) -> str:
        """The learner's name."""
        return self.report.learner

    @property
    def seed(self) -> int:
        """The seed for all random draws."""
        return self.report.seed

    @property
    def parameters(self) -> dict[str, float | int | str]:
        """The learner's parameters, including defaults."""
        return dict(self.report.params)

    @property
    def error(self) -> float:
        """The progressive error: the fraction of wrong actions. It is nan if no outcome is known."""
        return self.report.errors.error_rate

    @property
    def error_last_fifth(self) -> float:
        """The error over the last fifth of the events."""
        return self.report.errors.error_rate_last_fifth

    @property
    def greedy_error(self) -> float:
        """The error of the greedy classes, that is, the error without exploration."""
        return self.report.errors.greedy_error_rate

    @cached_property
    def curve(self) -> Curve:
        """The progressive error as a function of the number of decisions."""
        points = np.array(self.report.errors.points, dtype=np.float64).reshape(-1, 3)
        return Curve(points[:, 0].astype(np.int64), points[:, 1], points[:, 2])

    @property
    def ledger(self) -> Ledger:
        """The counts of contexts, decisions and feedback."""
        return self.report.ledger

    @property
    def holdout(self) -> "ArmComparison | None":
        """The comparison of the learner with its holdout, or None if there is no holdout."""
        return self.report.arms

    @property
    def challengers(self) -> "ChallengerComparison | None":
        """The challengers' estimates, or None if there are no challengers."""
        return self.report.challengers

    @property
    def ok(self) -> bool:
        """Whether the ledger balances and equals the ledger recomputed from the topics."""
        return self.report.ledger_ok

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why the figures may be misleading."""
        return self.report.warnings

    @property
    def wall_s(self) -> float:
        """The wall time in seconds."""
        return self.report.wall_s

    def to_dict(self) -> dict[str, object]:
        """Return the run as a dict of plain values, as in the JSON output of `onebit run`."""
        return self.report.as_json()


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
        target, reports = Path(path), [run.report for run in self.runs]
        match target.suffix:
            case ".html":
                return write_page(target, reports, datetime.now(UTC))
            case ".json":
                target.write_bytes(runs_json(reports))
                return target
        raise ValueError(f"{target}: expected the extension .html or .json")

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        table = comparison([run.report for run in self.runs])
        return table.columns, table.rows

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        first = self.runs[0].report
        return html_table(*self._table(), caption=f"{first.data}, {first.events:,} events")


def run(
    data: str | Path = "optdigits",
    *,
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
        data: A data set from `onebit data list`, an svmlight file, or a log of decisions.
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
    given = given_settings({"data": str(data), "seed": seed, **_named(learners, settings), **settings})
    if kafka:
        reports = run_all_on_kafka(given, show=progress)
    else:
        reports = run_all_embedded(given, seeds=seeds, jobs=jobs, show=progress)
    return RunReport(tuple(map(LearnerRun, reports)))


def _named(learners: Learners, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that select these learners and their parameters."""
    if isinstance(learners, str):
        return {"learner": [learners]}
    parameters = learners if isinstance(learners, Mapping) else {}
    own = [f"{name}.{key}={value}" for name, given in parameters.items() for key, value in given.items()]
    return {"learner": list(learners), "param": [*own, *settings.pop("param", ())]}
