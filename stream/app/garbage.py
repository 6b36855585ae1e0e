"""How often Python looks for garbage in cycles.

It looks through all objects that are alive, again and again. A program of the pipeline keeps many, and makes hardly a
cycle: what is applied, sent or forgotten is freed at once, without a collector.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 50_000
"""As many are made before the new ones are looked through, some milliseconds' work; Python's own number is 700."""


def collect_seldom() -> None:
    """Leave out all that is there now, most of it code, and look at the rest seldom.

    To be called when all is loaded, before records come; and again when a program is made anew, so that the one before
    is freed. With Python's own numbers the collector took a quarter of a learner's time, and an eighth of an audit's.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def leave_out_what_stays() -> None:
    """Leave out what is there between two steps: all that a program remembers, which it forgets by itself in time.

    To look through it again and again took 2 % of a learner's time, and up to a quarter of a second at once. A cycle
    that becomes garbage after it was left out stays until a program is made anew; steps, their failures, status lines
    and metrics make none.
    """
    gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    """Leave the collector out: a run makes no cycles, and all its records would be walked again.

    So would they when the topics are read for the report, which takes half as long again with the collector, and when
    it is at work again: so what a run leaves is left out then, until the next one begins.
    """
    if not gc.isenabled():
        yield
        return
    gc.unfreeze()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
