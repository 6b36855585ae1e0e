"""`python -m stream.cli`."""

from stream.cli.app import main

main()
