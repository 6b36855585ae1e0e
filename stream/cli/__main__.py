"""Entry point for the `onebit` shell command and for `python -m stream.cli`. Handles Ctrl-C during slow imports."""

from stream.errors import ExitCode


def main() -> None:
    """Run the command given on the command line."""
    try:
        from stream.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None
    run()


if __name__ == "__main__":
    main()
