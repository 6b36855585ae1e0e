"""Checks that the pinned versions, Compose files, alerts and docs are complete."""

import re
import runpy
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml

from onebit.cli.settings_table import as_variables
from stream.learners import registered
from stream.telemetry.metrics import METRICS, MetricKind

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_requirement_has_a_pinned_version() -> None:
    pins = [line for line in (ROOT / "requirements-dev.txt").read_text().splitlines() if not line.startswith("#")]
    extras = PROJECT["project"]["optional-dependencies"]
    required = [*chain(PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"], *extras.values())]
    names = {_name(requirement) for requirement in required} - {PROJECT["project"]["name"]}

    assert names <= {_name(pin) for pin in pins}
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def test_compose_passes_every_setting_to_the_programs() -> None:
    assert (ROOT / "docker/settings.env").read_text() == as_variables()


def test_site_lists_every_learner() -> None:
    hooks = runpy.run_path(str(ROOT / "docs" / "_site" / "hooks.py"))
    row = r"^\| `([a-z0-9-]+)`(?: †)?(?: ‡)? \| .* \| .* \| .* \|$"
    listed = re.findall(row, hooks["learner_table"](), re.MULTILINE)

    assert listed == list(registered())
    assert hooks["LEARNERS"] in (ROOT / "docs" / "learners.md").read_text()


def test_service_in_the_docs_equals_the_tested_example() -> None:
    folder = ROOT / "examples/tested_service"
    sources = "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    parts = [part for block in blocks for part in block.rstrip().split("\n\n\n")]

    assert len(parts) == 4
    assert [part for part in parts if part not in sources] == []


@pytest.mark.parametrize("path", ["prometheus/alerts.yml", "grafana/onebit.json"])
def test_alerts_and_dashboard_use_existing_metrics(path: str) -> None:
    asked = set(re.findall(r"\bonebit_[a-z_]+", (ROOT / "docker" / path).read_text()))
    there = {metric.name for metric in METRICS}
    there |= {f"{metric.name}_bucket" for metric in METRICS if metric.kind is MetricKind.HISTOGRAM}
    assert asked
    assert sorted(asked - there) == []


def test_every_alert_is_tested() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "docker/prometheus/alerts.yml").read_text())
    tested = (ROOT / "docker/prometheus/alerts.test.yml").read_text()
    assert alerts
    assert [alert for alert in alerts if f'alertname="{alert}"' not in tested] == []


def test_image_has_the_version_and_the_licence_of_the_package() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', (ROOT / "docker/Dockerfile").read_text()))
    assert (labels["version"], labels["licenses"]) == (PROJECT["project"]["version"], PROJECT["project"]["license"])


def test_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((ROOT / "docker/chart/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {PROJECT["project"]["version"]}


def test_onebit_containers_have_no_capabilities_and_one_writable_volume() -> None:
    compose = (ROOT / "docker/compose.yaml").read_text()
    _, _, ours = compose.partition("x-onebit: &onebit\n")
    ours, _, rest = ours.partition("x-program: &program\n")
    for line in ("read_only: true", "cap_drop: [ALL]", 'volumes: ["onebit-home:/var/lib/onebit"]'):
        assert f"  {line}\n" in ours
    services = re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", rest.partition("services:\n")[2], re.MULTILINE)
    others = [name for name, body in services if "<<: *onebit" not in body and "<<: *program" not in body]
    assert (len(services), others) == (9, ["kafka", "prometheus"])
    assert rest.startswith("  <<: *onebit\n")
    assert "\nUSER onebit\n" in (ROOT / "docker/Dockerfile").read_text()
