"""Learners and data sets from other packages, which are installed into a temporary folder."""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onebit import learners, run
from stream.errors import ExitCode
from stream.plugins import PluginError
from stream.verifying.reapply import replay_journal
from tests.cli.conftest import Onebit
from tests.pipeline import TOPICS, Pipeline, plan, small_synsep, synsep_task

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a one-module package as pip does, by writing the module and its metadata."""
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(folder))
    modules = []

    def package(distribution: str, source: str, *, stays: bool = False, **groups: dict[str, str]) -> None:
        name = distribution.replace("-", "_")
        if not stays:  # a loaded learner needs its module in sys.modules
            modules.append(name)
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [
            f"[onebit.{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))

    yield package
    for name in modules:
        sys.modules.pop(name, None)


@pytest.fixture
def example(install: Install) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    groups = {group.removeprefix("onebit."): entries for group, entries in project["entry-points"].items()}
    install(project["name"], (EXAMPLE / "bit_logistic.py").read_text(), stays=True, **groups)


@pytest.mark.usefixtures("example")
def test_plugin_learner_and_data_set_are_found_by_name(onebit: Onebit) -> None:
    listed = json.loads(onebit("learners", "--json").out)
    (documented,) = json.loads(onebit("learners", "bit-logistic", "--json").out)
    data = json.loads(onebit("data", "list", "--json").out)
    flags = ("--learner", "bit-logistic", "--data", "four-corners", "--events", "300", "--no-report", "--json")
    report = json.loads(onebit("run", *flags, "--param", "step=1", "--seed", "3").out)

    assert "bit-logistic" in [one["name"] for one in listed]
    assert documented["parameters"].keys() == {"epsilon", "step"}
    assert ("four-corners", 400) in [(one["name"], one["rows"]) for one in data]
    assert (report["learner"], report["params"], report["ledger_ok"]) == (
        "bit-logistic",
        {"epsilon": 0.1, "step": 1.0},
        True,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_plugin_run_is_identical_in_another_process() -> None:
    runs = run("four-corners", learners="bit-logistic", seeds=2, jobs=2, events=300)
    again = run("four-corners", learners="bit-logistic", seeds=2, events=300)

    assert [one.to_dict()["state_sha256"] for one in runs] == [one.to_dict()["state_sha256"] for one in again]
    assert runs.ok


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(("model", "partitions"), [("own", 1), ("shared", 2)])
def test_journal_replay_restores_plugin_learner_after_a_restart(model: str, partitions: int) -> None:
    pipeline = Pipeline(synsep_task("bit-logistic", model=model), partitions)
    dataset = small_synsep()
    for start in (0, 40):
        learners = [pipeline.learner(f"l{number}", snapshot_interval_ms=50) for number in range(partitions)]
        source = pipeline.replay(dataset, start + 40, rate=200, start=start)
        pipeline.run((source, pipeline.feedback(dataset, plan("lognormal:100ms,1.0", loss=0.1))), *learners)

    replays = [replay_journal(pipeline.broker, TOPICS, partition) for partition in range(partitions)]

    assert [(one.ok, one.fault, one.snapshot > 0) for one in replays] == [(True, "", True)] * partitions


@pytest.mark.parametrize(
    ("source", "entry", "error"),
    [
        ("raise RuntimeError('boom')", "broken_one:Thing", "RuntimeError: boom"),
        ("", "broken_one:Thing", "AttributeError"),
        ("import nothing_at_all", "broken_one:Thing", "ModuleNotFoundError"),
        ("Thing = 3", "broken_one:Thing", "TypeError"),
        ("import onebit\nclass Thing(onebit.Learner):\n    name = 'broken'", "broken_one:Thing", "no summary, paper"),
    ],
)
def test_broken_plugin_learner_fails_only_if_used(
    source: str, entry: str, error: str, install: Install, onebit: Onebit
) -> None:
    install("broken-one", source, learners={"broken": entry})
    asked = onebit("run", "--learner", "broken", "--events", "10")
    others = onebit("learners", "--json")

    assert asked.code == ExitCode.USAGE
    message = " ".join(asked.err.split())
    assert f"distribution broken-one 1.0, entry point onebit.learners broken = {entry}: " in message
    assert error in message
    assert others.code == ExitCode.OK
    assert "distribution broken-one 1.0" in " ".join(others.err.split())
    assert onebit("learners", "banditron").err == ""


def test_broken_plugin_data_set_fails_only_if_used(install: Install, onebit: Onebit) -> None:
    lying = "import onebit\nthing = onebit.DatasetEntry('broken', 3, 1, 2, 's', 't', lambda seed: 1 / 0)"
    install("broken-two", lying, datasets={"broken": "broken_two:thing", "other": "broken_two:thing"})
    asked = onebit("run", "--data", "broken", "--events", "10")
    listed = onebit("data", "list", "--json")

    assert asked.code == ExitCode.USAGE
    assert "broken = broken_two:thing: ZeroDivisionError" in " ".join(asked.err.split())
    assert "broken" in [one["name"] for one in json.loads(listed.out)]
    assert "other = broken_two:thing: ValueError" in " ".join(listed.err.split())


@pytest.mark.parametrize(
    ("learner", "old", "new", "error"),
    [
        ("faulty-init", "super().__init__(", "1 / 0\n        super().__init__(", "ZeroDivisionError"),
        (
            "faulty-kernel",
            "def predict(event: Event, model: Model)",
            "def predict(event: Event)",
            "Typ(e|ing)Error",
        ),
    ],
)
def test_error_in_a_plugin_learner_names_the_plugin(
    learner: str, old: str, new: str, error: str, install: Install, onebit: Onebit
) -> None:
    source = (EXAMPLE / "bit_logistic.py").read_text().replace('"bit-logistic"', f'"{learner}"')
    source = source.replace("    supports_eligible", "    from_logs = onebit.FromLogs.NOTHING\n    supports_eligible")
    module = learner.replace("-", "_")
    assert old in source
    install(learner, source.replace(old, new), stays=True, learners={learner: f"{module}:BitLogistic"})

    for flags in (("--learner", learner), ("--learner", "banditron", "--challenger", learner)):
        asked = onebit("run", *flags, "--events", "10", "--no-report")

        assert asked.code == ExitCode.USAGE
        assert re.search(f"{learner} = {module}:BitLogistic: {error}", " ".join(asked.err.split()))


def test_duplicate_plugin_names_are_rejected(install: Install, onebit: Onebit) -> None:
    install("twin-a", "", learners={"twin": "twin_a:X", "banditron": "twin_a:X"})
    install("twin-b", "", learners={"twin": "twin_b:X"})

    assert learners()["banditron"].__module__ == "stream.learners.first_order.banditron"
    with pytest.raises(PluginError, match=r"twin-a 1\.0.* and .*twin-b 1\.0"):
        learners()["twin"]
    assert "is already the name of a built-in object" in onebit("learners", "--json").err


def test_guide_contains_the_example_plugin() -> None:
    guide = (ROOT / "docs" / "how-to.md").read_text()

    assert (EXAMPLE / "bit_logistic.py").read_text() in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)[0] == (EXAMPLE / "pyproject.toml").read_text()
