"""`python -m stream.cli`."""

from stream.cli.app import main

if __name__ == "__main__":
    main()
