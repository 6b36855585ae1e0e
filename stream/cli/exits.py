"""The exit codes, for the help and for docs/exit-codes.md."""

from stream.errors import ExitCode


def markdown() -> str:
    """The table of docs/exit-codes.md."""
    rows = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n".join(("# Exit codes", "", "| code | meaning |", "|---|---|", *rows)) + "\n"


def epilog() -> str:
    """The table below the help."""
    return "[bold]Exit codes[/]\n\n" + "\n\n".join(f"[cyan]{code.value}[/] {code.meaning}" for code in ExitCode)
