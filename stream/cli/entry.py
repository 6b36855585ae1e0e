"""`onebit`, as a shell starts it: what takes a second to load is loaded once Ctrl-C is heard."""

from stream.errors import ExitCode


def main() -> None:
    """Run the command of this process."""
    try:
        from stream.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None
    run()
