"""Contexts that offer actions with features, and their rewards."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson

from stream.task.settings import TaskSettings
from tests.pipeline import small_task

CONTEXT, FEATURES, PLACES, IDS = 3, 2, 4, 9


class Offer(NamedTuple):
    """A context, as the members of its record, and the reward of each action by id."""

    fields: dict[str, Any]
    rewards: dict[str, int]

    def encoded(self) -> bytes:
        """The value of the context's record."""
        return orjson.dumps(self.fields)


def actions_task(learner: str = "joint-ucb", **changes: Any) -> TaskSettings:
    """Settings for contexts of `offers`, with a window of 1 s."""
    sizes = {"n_classes": PLACES, "n_features": CONTEXT + PLACES * (1 + FEATURES)}
    layout = {"context": CONTEXT, "features": None}
    return small_task(learner, **{**sizes, "actions": layout, **changes})


def offers(n: int, seed: int = 1) -> Iterator[Offer]:
    """Yield contexts with 1 to PLACES of IDS actions."""
    rng = np.random.default_rng(seed)
    actions, taste = rng.normal(size=(IDS, FEATURES)), rng.normal(size=(CONTEXT, FEATURES))
    for number in range(n):
        x = rng.normal(size=CONTEXT)
        chosen = rng.choice(IDS, int(rng.integers(1, PLACES + 1)), replace=False)
        offered = [{"id": f"item-{k}", "x": actions[k].tolist()} for k in chosen]
        rewards = {f"item-{k}": int(x @ taste @ actions[k] > 0) for k in chosen}
        yield Offer({"id": f"visit-{number}", "x": x.tolist(), "actions": offered}, rewards)
