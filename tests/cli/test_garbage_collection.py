"""Python's garbage collector settings in Onebit's programs."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from stream.programs.process import NEW_OBJECTS, freeze_gc, gc_disabled, tune_gc

FREEZE, UNFREEZE = gc.freeze, gc.unfreeze
"""The original functions of the `gc` module, which the `frozen_modules` fixture replaces."""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gc, "freeze", FREEZE)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Program:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_gc_freezes_existing_objects_and_collects_rarely() -> None:
    tune_gc()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] == NEW_OBJECTS
    program = Program()
    left = weakref.ref(program)
    del program
    gc.collect()
    assert left() is None


def test_repeated_tuning_frees_frozen_garbage() -> None:
    program = Program()
    left = weakref.ref(program)
    tune_gc()
    del program
    gc.collect()
    assert left() is not None
    tune_gc()
    assert left() is None


def test_run_disables_gc_and_frees_the_garbage_of_the_previous_run() -> None:
    program = Program()
    left = weakref.ref(program)
    del program
    with gc_disabled():
        assert (left(), gc.isenabled()) == (None, False)
        with gc_disabled():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_objects_alive_after_a_step_or_run_are_frozen() -> None:
    kept: list[list[int]] = [[] for _ in range(10)]
    freeze_gc()
    assert not any(one is kept[0] for one in gc.get_objects())
    with gc_disabled():
        kept.append([])
    assert not any(one is kept[-1] for one in gc.get_objects())
