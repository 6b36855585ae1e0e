"""Kernel compilation in a parallel test run."""

import fcntl
from pathlib import Path
from typing import Any

from numba.core.caching import NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from stream.learners.kernels import CACHE_DIRECTORY


def compile_once() -> None:
    """Compile each kernel in one process only. Other processes wait, and then load the kernel from the cache.

    Without a lock, each process would compile every kernel that is not in the cache yet. A process that is waiting for
    a kernel holds locks only on kernels that call that kernel, so deadlocks are impossible.
    """
    if not CACHE_DIRECTORY:
        return
    compile_unlocked = CPUDispatcher.compile

    def compile_locked(self: Any, signature: Any) -> Any:
        if isinstance(self._cache, NullCache):  # without a cache, each process compiles the function
            return compile_unlocked(self, signature)
        path = Path(CACHE_DIRECTORY, f"{self.py_func.__module__}.{self.py_func.__qualname__}.lock")
        with global_compiler_lock, path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return compile_unlocked(self, signature)

    dispatcher: Any = CPUDispatcher
    dispatcher.compile = compile_locked
