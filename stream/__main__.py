"""`python -m stream`, for `onebit`."""

from stream.cli.app import main

if __name__ == "__main__":
    main()
