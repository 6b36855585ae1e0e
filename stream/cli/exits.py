"""Exit codes in the help and in docs/exit-codes.md."""

from stream.errors import ExitCode


def markdown() -> str:
    """Return the text of docs/exit-codes.md."""
    rows = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n".join(("# Exit codes", "", "| code | meaning |", "|---|---|", *rows)) + "\n"


def epilog() -> str:
    """Return the table at the end of the help."""
    return "[bold]Exit codes[/]\n\n" + "\n\n".join(f"[cyan]{code.value}[/] {code.meaning}" for code in ExitCode)
