"""The exit codes of every command."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended, for scripts and for whatever starts programs again."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        """An int that says what it means."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "All went well; a program that was asked to stop has finished its transaction."
    DIFFERS = 1, "What was asked for does not hold: a ledger or a model differs, a topic or the broker is not there."
    USAGE = 2, "A setting, a file or a command line cannot be used, or the broker refuses what was asked for."
    FENCED = 3, "Another process has taken over, or the group threw this one out; start it again, and it goes on."
    UNAVAILABLE = 4, "No broker answers."
    INTERRUPTED = 130, "Ctrl-C broke it off."


def markdown() -> str:
    """The table of docs/exit-codes.md."""
    rows = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n".join(("# Exit codes", "", "| code | meaning |", "|---|---|", *rows)) + "\n"


def epilog() -> str:
    """The table as it stands below the help."""
    return "[bold]Exit codes[/]\n\n" + "\n\n".join(f"[cyan]{code.value}[/] {code.meaning}" for code in ExitCode)
