"""`python -m stream`, for `onebit`."""

from stream.cli.__main__ import main

if __name__ == "__main__":
    main()
