"""Onebit: online multiclass learning from one late bit of feedback.

>>> import onebit
>>> report = onebit.run("optdigits", learners=["banditron"], events=300, delay="fixed:1s", seed=1)
>>> report["banditron"].ledger.decided, report.ok
(300, True)

Each public name is loaded on first use, so that `import onebit` is fast. Notices are logged by the `onebit` logger.
"""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from consumers.verify import VerifyReport, verify
    from onebit.estimates import EstimateReport, estimate
    from onebit.exports import ExportReport, export_log
    from onebit.pipelines import Pipeline, embedded
    from onebit.runs.run import RunReport, run
    from onebit.training import TrainReport, train
    from producers.datasets.base import Dataset, dense_dataset
    from producers.datasets.named import Entry as DatasetEntry
    from stream import offline
    from stream.errors import ExitCode, OnebitError
    from stream.learners import Cost, FromLogs, KernelLearner, Learner, Parameter, create
    from stream.learners import registered as learners
    from stream.measures.errors import evaluate
    from stream.programs.process import Progress
    from stream.reporting.runs import LearnerRun
    from stream.wire.records import Decision, Features

__all__ = [
    "CollisionError",
    "Cost",
    "Dataset",
    "DatasetEntry",
    "Decision",
    "EstimateReport",
    "ExitCode",
    "ExportReport",
    "Features",
    "FromLogs",
    "KernelLearner",
    "Learner",
    "LearnerRun",
    "OnebitError",
    "Parameter",
    "Pipeline",
    "Progress",
    "RunReport",
    "TrainReport",
    "VerifyReport",
    "__version__",
    "check_packages",
    "create",
    "dense_dataset",
    "embedded",
    "estimate",
    "evaluate",
    "export_log",
    "learners",
    "offline",
    "run",
    "train",
    "verify",
]

_HOMES = {
    "Cost": "stream.learners:Cost",
    "Dataset": "producers.datasets.base:Dataset",
    "DatasetEntry": "producers.datasets.named:Entry",
    "Decision": "stream.wire.records:Decision",
    "EstimateReport": "onebit.estimates:EstimateReport",
    "ExitCode": "stream.errors:ExitCode",
    "ExportReport": "onebit.exports:ExportReport",
    "Features": "stream.wire.records:Features",
    "FromLogs": "stream.learners:FromLogs",
    "KernelLearner": "stream.learners:KernelLearner",
    "Learner": "stream.learners:Learner",
    "LearnerRun": "stream.reporting.runs:LearnerRun",
    "OnebitError": "stream.errors:OnebitError",
    "Parameter": "stream.learners:Parameter",
    "Pipeline": "onebit.pipelines:Pipeline",
    "Progress": "stream.programs.process:Progress",
    "RunReport": "onebit.runs.run:RunReport",
    "TrainReport": "onebit.training:TrainReport",
    "VerifyReport": "consumers.verify:VerifyReport",
    "create": "stream.learners:create",
    "dense_dataset": "producers.datasets.base:dense_dataset",
    "embedded": "onebit.pipelines:embedded",
    "estimate": "onebit.estimates:estimate",
    "evaluate": "stream.measures.errors:evaluate",
    "export_log": "onebit.exports:export_log",
    "learners": "stream.learners:registered",
    "offline": "stream.offline",
    "run": "onebit.runs.run:run",
    "train": "onebit.training:train",
    "verify": "consumers.verify:verify",
}
"""Maps each public name to its location, in the form that `pkgutil.resolve_name` accepts."""

_PACKAGES = {
    "stream": b'"""Onebit\'s internal library.',
    "producers": b'"""Programs that write to the input topics:',
    "consumers": b'"""Programs that read the topics:',
}
"""Onebit packages with generic names, and the first bytes of their `__init__.py`."""


class CollisionError(ImportError):
    """Another package shadows one of Onebit's packages, or a package is missing."""


def check_packages() -> None:
    """Check that Python finds Onebit's own packages, and not other packages with the same generic names.

    This module does not import these packages until the check has run, so that it can report a different package
    with the same name.

    Raises:
        CollisionError: Python finds a different package with the same name, or no package.
    """
    home = Path(__file__).resolve().parent.parent
    for name, start in _PACKAGES.items():
        spec = sys.modules[name].__spec__ if name in sys.modules else find_spec(name)
        if spec is None:
            raise CollisionError(f"expected Onebit's package {name} in {home}; found none. Reinstall Onebit")
        places = spec.submodule_search_locations or [spec.origin or "a module"]
        if Path(places[0]).resolve() != home / name:
            raise CollisionError(
                f"{places[0]} shadows Onebit's package {name} in {home}, because both packages have the same name. "
                "Rename or move the other package, remove its folder from PYTHONPATH, or install Onebit into another "
                "environment"
            )
        init = home / name / "__init__.py"
        if not init.is_file() or not init.read_bytes().startswith(start):
            others = sorted(set(packages_distributions().get(name, ())) - {"onebit"})
            raise CollisionError(
                f"{init} is missing, or is not Onebit's: "
                + (f"{', '.join(others)} also installs a package with this name; " if others else "")
                + "reinstall Onebit in its own environment"
            )


def __getattr__(name: str) -> Any:
    """Load a public name on first access; see PEP 562."""
    if name == "__version__":
        value: Any = version("onebit")
    elif name in _HOMES:
        check_packages()
        import_module("stream.programs")  # limits BLAS to one thread if numpy is not loaded yet
        value = resolve_name(_HOMES[name])
    else:
        raise AttributeError(f"module 'onebit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def main() -> None:
    """Run the `onebit` command."""
    try:
        check_packages()
        from stream.errors import HostError, check_host

        try:
            check_host()
        except HostError as error:  # reported here, because the command's own messages need more memory
            _end(error)
        from onebit.cli.app import main as run

        run()
    except CollisionError as error:
        _end(error)
    except KeyboardInterrupt:
        sys.exit(130)  # the value of ExitCode.INTERRUPTED
    except Exception as error:  # raised while loading, or while reporting another error: out of memory or open files
        with suppress(Exception):
            sys.stderr.write(f"error: internal error: {type(error).__name__}: {error}\n")
        sys.exit(70)  # the value of ExitCode.CRASHED; Python's own exit code would be that of a failed check


def _end(error: Exception) -> NoReturn:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(2)  # the value of ExitCode.USAGE, which cannot be imported if `stream` is shadowed
