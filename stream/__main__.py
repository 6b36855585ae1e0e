"""Runs the command `onebit` as `python -m stream`."""

from stream.cli.__main__ import main

if __name__ == "__main__":
    main()
