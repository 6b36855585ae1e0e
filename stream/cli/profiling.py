"""`--profile FILE`: where a program's time goes."""

from collections.abc import Iterator
from contextlib import contextmanager

from stream.app.notices import announce
from stream.app.settings import SettingsError


@contextmanager
def profiled(path: str | None) -> Iterator[None]:
    """Measure what is done meanwhile, and write it to a file at the end, however it ends; None: do not.

    Raises:
        SettingsError: the file cannot be written.
    """
    if path is None:
        yield
        return
    from cProfile import Profile

    try:
        with open(path, "ab"):  # before hours have passed
            pass
    except OSError as error:
        raise SettingsError(f"--profile {path}: cannot be written: {error.strerror}") from error
    profile = Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        profile.dump_stats(path)
        announce(f"the profile is in {path}: python -m pstats {path}")
