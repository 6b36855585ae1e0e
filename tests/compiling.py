"""Compilation of kernels in a parallel run."""

import fcntl
from pathlib import Path
from typing import Any

from numba.core.caching import NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from stream.learners.kernels import CACHE_DIRECTORY


def compile_once() -> None:
    """Let one process compile a kernel, while others that need it wait and then load it from the cache.

    Without a lock, each process compiles the kernels that are not cached yet. A process waits for a kernel only while
    it holds the locks of kernels that call it, so there is no deadlock.
    """
    if not CACHE_DIRECTORY:
        return
    compile_unlocked = CPUDispatcher.compile

    def compile_locked(self: Any, signature: Any) -> Any:
        if isinstance(self._cache, NullCache):  # the function is compiled in each process
            return compile_unlocked(self, signature)
        path = Path(CACHE_DIRECTORY, f"{self.py_func.__module__}.{self.py_func.__qualname__}.lock")
        with global_compiler_lock, path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return compile_unlocked(self, signature)

    dispatcher: Any = CPUDispatcher
    dispatcher.compile = compile_locked
