"""Learners for several pipelines in one process, each in its own thread.

The pipelines share the interpreter, the libraries, the compiled kernels and the port for metrics. Each has its own
connections, group, settings and tasks. An error in one pipeline does not stop the others.
"""

from collections.abc import Callable, Sequence
from threading import Thread

from consumers.learner.loop import LearnerLoop, check_given, explained
from stream.errors import ExitCode, OnebitError, StoppedError
from stream.kafka.port import AccessError
from stream.programs.connection import keep_connected
from stream.programs.process import PIPELINE, announce, warn
from stream.programs.tracing import traced
from stream.programs.watching import Watched, watched_pipelines
from stream.settings.data_sizes import SizesOf
from stream.settings.definitions import Settings, SettingsError
from stream.settings.sources import access_hint
from stream.telemetry.metrics import LEARNER

WAIT_S = 0.2
"""Interval at which the main thread handles signals."""


class PipelineError(OnebitError):
    """Learners of several pipelines have ended with an error. The exit code is that of the first error."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"pipeline {prefix}: {_described(error)}" for prefix, error in errors.items()))
        first = next(iter(errors.values()))
        self.exit_code = first.exit_code if isinstance(first, OnebitError) else ExitCode.CRASHED


def run_learners(pipelines: Sequence[Settings], stop: Callable[[], bool], *, sizes_of: SizesOf) -> None:
    """Run the learners of several pipelines until stopped, or until all of them have ended with an error.

    Args:
        pipelines: The settings of each pipeline, with different topic prefixes.
        stop: Returns whether to stop.
        sizes_of: Returns the sizes of the data set that the settings select.

    Raises:
        SettingsError: two pipelines have the same prefix, or a setting does not support several pipelines.
        PipelineError: a pipeline ended with an error. The others continued until they were stopped.
    """
    _check(pipelines)
    prefixes = [one.topic_prefix for one in pipelines]
    with traced(pipelines[0], LEARNER) as tracing, watched_pipelines(pipelines[0], LEARNER, prefixes) as watched:
        loops = [LearnerLoop(one, stop, sizes_of, tracing) for one in pipelines]
        runs = [_Run(one, stop, loop, watched[one.topic_prefix]) for one, loop in zip(pipelines, loops, strict=True)]
        for run in runs:
            run.thread.start()
        for run in runs:
            while run.thread.is_alive():
                run.thread.join(WAIT_S)
    if errors := {run.prefix: run.error for run in runs if run.error is not None}:
        raise PipelineError(errors) from next(iter(errors.values()))


def _check(pipelines: Sequence[Settings]) -> None:
    prefixes = [one.topic_prefix for one in pipelines]
    if len(set(prefixes)) < len(prefixes):
        raise SettingsError(f"--topic-prefix: expected different prefixes; got {', '.join(prefixes)}")
    if pipelines[0].ready_file is not None:
        raise SettingsError(
            "--ready-file: expected one --topic-prefix; got several. Use --metrics-port, and test /readyz instead"
        )
    for one in pipelines:
        check_given(one)


class _Run:
    """A pipeline's learner in a thread."""

    def __init__(self, settings: Settings, stop: Callable[[], bool], loop: LearnerLoop, watched: Watched) -> None:
        self.prefix = settings.topic_prefix
        self.error: Exception | None = None  # the error that ended the pipeline's learner
        self._settings, self._stop, self._loop, self._watched = settings, stop, loop, watched
        # A daemon thread, so that a second Ctrl-C ends the process at once.
        self.thread = Thread(target=self._run, name=f"learner {self.prefix}", daemon=True)

    def _run(self) -> None:
        PIPELINE.set(self.prefix)
        try:
            with explained():
                keep_connected(self._settings, self._stop, self._loop.run, self._watched)
        except StoppedError:
            announce("stopped")
        except Exception as error:  # reported when all pipelines have ended
            self.error = error
            self._watched.set_unready(f"ended: {_described(error)}")
            warn(f"this pipeline's learner has ended; other pipelines are not affected: {_described(error)}")


def _described(error: Exception) -> str:
    if isinstance(error, OnebitError):
        hint = access_hint(error) if isinstance(error, AccessError) else error.hint
        return f"{error}; {hint}" if hint else str(error)
    return f"internal error: {type(error).__name__}: {error}"
