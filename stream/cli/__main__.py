"""`python -m stream.cli`."""

from stream.cli.entry import main

if __name__ == "__main__":
    main()
