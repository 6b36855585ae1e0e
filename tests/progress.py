"""Prints a parallel test run's progress: each failure when it occurs, and one line per minute."""

import threading
import time
from collections.abc import Generator, Sequence

import pytest

INTERVAL_S = 60.0


class Progress:
    """Reports on the tests of all xdist workers. Runs in the process that starts the workers."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._began_s = time.monotonic()
        self._collected = 0
        self._finished = 0
        self._failed = 0
        self._running: dict[str, float] = {}
        self._ended = threading.Event()

    def line(self, now_s: float) -> str:
        """A line with the elapsed time, the number of finished tests, and the running tests, longest-running first."""
        minutes, seconds = divmod(round(now_s - self._began_s), 60)
        longest_first = sorted(self._running.copy().items(), key=lambda item: item[1])
        running = ", ".join(f"{nodeid} ({now_s - since_s:.0f} s)" for nodeid, since_s in longest_first)
        done = f"{self._finished}/{self._collected} tests, {self._failed} failed" if self._collected else "collecting"
        return f"[{minutes}:{seconds:02}] {done}; running: {running or 'none'}"

    def pytest_sessionstart(self) -> None:
        """Start the timer."""
        threading.Thread(target=self._report, name="test progress", daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        """Stop the timer."""
        self._ended.set()

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Store the number of tests. Each worker collects all tests."""
        self._collected = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Add a test that a worker has started."""
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Remove a test that a worker has finished."""
        self._running.pop(nodeid, None)
        self._finished += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failure immediately."""
        if report.failed:
            self._failed += 1
            reason = "\n".join(line for line in report.longreprtext.splitlines() if line.startswith("E "))
            self._reporter.write(f"\nfailed: {report.nodeid} ({report.when})\n{reason}\n", flush=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, config: pytest.Config
    ) -> Generator[None, tuple[str, str, str], tuple[str, str, str]]:
        """Suppress the dot that pytest prints for each test. With `-v`, pytest still prints a line per test."""
        category, letter, word = yield
        return (category, letter, word) if config.getoption("verbose") > 0 else (category, "", "")

    def _report(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._reporter.write_line(self.line(time.monotonic()))
            self._reporter.flush()
