"""Settings of Python's garbage collector in the programs."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from stream.app.process import NEW_OBJECTS, freeze_gc, gc_disabled, tune_gc


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class Program:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_is_left_out_and_the_rest_is_looked_at_seldom() -> None:
    tune_gc()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] == NEW_OBJECTS
    program = Program()
    left = weakref.ref(program)
    del program
    gc.collect()
    assert left() is None


def test_a_program_that_is_made_anew_frees_the_one_before() -> None:
    program = Program()
    left = weakref.ref(program)
    tune_gc()
    del program
    gc.collect()
    assert left() is not None
    tune_gc()
    assert left() is None


def test_a_run_is_without_a_collector_and_has_freed_what_the_one_before_left() -> None:
    program = Program()
    left = weakref.ref(program)
    del program
    with gc_disabled():
        assert (left(), gc.isenabled()) == (None, False)
        with gc_disabled():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_stays_after_a_step_is_left_out_and_what_a_run_has_left_after_it() -> None:
    kept: list[list[int]] = [[] for _ in range(10)]
    freeze_gc()
    assert not any(one is kept[0] for one in gc.get_objects())
    with gc_disabled():
        kept.append([])
    assert not any(one is kept[-1] for one in gc.get_objects())
