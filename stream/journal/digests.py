"""Digests of states, equal for equal states on every machine."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from stream.journal.format import JournalStep
from stream.snapshots.state import encode, take
from stream.task.task import Task


def state_digest(states: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of learners' states in a canonical byte form."""
    digest = sha256()
    for state in states:
        for name in sorted(state):
            array = np.asarray(state[name])
            if array.dtype.kind == "U":
                content, kind = str(array).encode(), "text"
            else:
                array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
                content, kind = array.tobytes(), array.dtype.str
            digest.update(f"{name} {kind} {array.shape} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def task_digest(task: Task) -> str:
    """SHA-256 of a task's state without its offsets: learner, join, counts."""
    digest = sha256()
    for part in encode(take(task, JournalStep(0, (0, 0), (0, 0), task.updates, task.join.ledger()))):
        digest.update(part)
    return digest.hexdigest()
