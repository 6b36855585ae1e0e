"""The base class for errors that end a command, and the exit codes that commands return."""

from enum import IntEnum
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit


class ExitCode(IntEnum):
    """Command exit codes, for scripts and process supervisors."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        """Create an exit code, which is an int with a description of its meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "The command succeeded. If it was asked to stop, it first committed its open transaction."
    DIFFERS = 1, "A check failed: a ledger or a model differs, or a topic or the broker is missing."
    USAGE = 2, "A setting, a file or a command line is invalid, or the broker refused the request."
    FENCED = (
        3,
        "Another process replaced the program, or the consumer group removed it. Restart the program to continue.",
    )
    UNAVAILABLE = 4, "No broker responded."
    CRASHED = 70, "An internal error occurred, or a process was killed. Please report internal errors."
    INTERRUPTED = 130, "Ctrl-C interrupted the command."
    OUTPUT_CLOSED = 141, "The reader of stdout closed the pipe before the command ended."


class OnebitError(Exception):
    """An error with a message for the user, an exit code, and a remedy if one is known.

    An error class or an instance can set `exit_code` and `hint`.

    >>> class FullError(OnebitError):
    ...     hint = "delete old topics"
    >>> error = FullError("the disk is full")
    >>> str(error), error.hint, error.exit_code.name
    ('the disk is full', 'delete old topics', 'USAGE')
    """

    exit_code: ExitCode = ExitCode.USAGE
    hint: str = ""


NEW_PIPELINE = "Start a new pipeline with a different prefix and move the model to it (onebit model export, import)"
"""The remedy if a pipeline cannot continue with its topics."""


class StoppedError(OnebitError):
    """The program was stopped before its work began. There are no results to report."""

    exit_code = ExitCode.OK


class HostError(OnebitError):
    """The interpreter or a limit of the host does not allow Onebit to run."""


MEMORY_BYTES_MIN = 256 << 20
"""Address space that numpy and the compiler need. With less, OpenBLAS ends the process as if a check had failed."""


def check_host() -> None:
    """Check the interpreter and the limit on memory.

    kafka-python connects within an assert statement, and Onebit's own assertions stop a program before it stores wrong
    results.

    Raises:
        HostError: the interpreter skips assertions, or the address space is too small.
    """
    if not __debug__:
        raise HostError(
            "Python skips assertions, on which Onebit and kafka-python depend; expected neither PYTHONOPTIMIZE nor "
            "python -O. Run: unset PYTHONOPTIMIZE"
        )
    address_space, _ = getrlimit(RLIMIT_AS)
    if address_space != RLIM_INFINITY and address_space < MEMORY_BYTES_MIN:
        raise HostError(
            f"expected a limit on memory (ulimit -v) of at least {MEMORY_BYTES_MIN >> 20} MB; got "
            f"{address_space >> 20} MB"
        )
