"""Runs the `onebit` command as `python -m onebit`."""

from onebit import main

if __name__ == "__main__":
    main()
