"""Fixtures that run commands in an isolated environment and working directory."""

import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from consumers.learner import loop as learner
from onebit.cli import console, learn
from onebit.cli.app import main
from stream.kafka.port import Broker
from stream.programs import connection
from stream.programs.connection import Work
from stream.programs.watching import Watched
from stream.settings.definitions import Settings


class CommandResult(NamedTuple):
    """A command's exit code and output."""

    code: int
    out: str
    err: str


Onebit = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def own_log(own_shell: None) -> Iterator[None]:
    console.write_log("text", "info")
    yield
    console.write_log("text", "info")


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, as in a new process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def onebit(capsys: pytest.CaptureFixture[str]) -> Onebit:
    """Run a command in this process."""

    def run(*arguments: str) -> CommandResult:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return CommandResult(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def on_broker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Broker], None]:
    """Return a function that makes later commands use an in-process broker and the topic prefix of tests.pipeline."""
    monkeypatch.setenv("ONEBIT_TOPIC_PREFIX", "test.")
    return lambda broker: monkeypatch.setattr(connection, "connect_to_kafka", lambda *_: broker)


@pytest.fixture
def learn_on(onebit: Onebit, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """Return a function that runs a few steps of `onebit learn` on a broker in this process.

    If `meanwhile` is given, the learner runs twice, and `meanwhile` is called between the two runs. This simulates a
    broker outage.
    """

    def run(broker: Broker, *flags: str, meanwhile: Callable[[], None] | None = None) -> CommandResult:
        asked = iter(([False] * 60 + [True]) * 2)
        monkeypatch.setattr(learn, "StopRequest", lambda first: lambda: next(asked))

        def keep_running(settings: Settings, program: str, stop: Callable[[], bool], work: Work) -> None:
            work(broker, 1, Watched(None))
            if meanwhile is not None:
                meanwhile()
                work(broker, 1, Watched(None))

        monkeypatch.setattr(learner, "keep_running", keep_running)
        return onebit("learn", "--topic-prefix", "test.", *flags)

    return run
