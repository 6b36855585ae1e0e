"""`catalogue`: a synthetic data set of offers from a catalogue of items that changes every day.

A row is a visit of a user. Its context has 10 features x, uniform in [-1, 1]: the user's preferences. It offers 15 of
the 60 items in the catalogue, in random order. Item i has the id `item-<i>`, 20 features v_i, uniform in [-1, 1], and a
popularity b_i, the sum of two uniform draws from [-0.8, 0.8], which its features do not contain.

    probability of a reward     p = σ(-1.5 + w·v_i + vᵢᵀWx / 2 + b_i);  W [20, 10] and w [20] uniform in [-1, 1], w / 3

A day consists of 1,000 rows. At the start of each day, 10 new items replace the 10 oldest ones, so an item stays for 6
days. The rewards are bits: each offered item's bit is drawn with its own probability, so several offers or none can be
right. In `catalogue-graded`, an item's reward is p plus noise, limited to [0, 1]. The noise is the sum of two uniform
draws from [-0.15, 0.15].

Row r is a function of (seed, r), and item i is a function of (seed, i). Their random numbers are words of SplitMix64
sequences that start at a hash of the seed and the row, or of the seed and the item. A row's rewards do not depend on
the chosen action.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from producers.datasets.base import Block, Dataset, DatasetError, Known, Row
from producers.datasets.log import MISSING
from stream.randomness.draws import SEED_MAX, Draws, Purpose, words
from stream.wire.actions import Action, ActionBlocks
from stream.wire.records import Features, FloatArray, make
from stream.wire.rewards import BITS, RewardRange

OFFERED = 15
CONTEXT_FEATURES = 10
ITEM_FEATURES = 20
BLOCKS = ActionBlocks(OFFERED, CONTEXT_FEATURES, ITEM_FEATURES)

DAY_ROWS = 1_000
ITEMS = 60
"""Number of items in the catalogue."""
NEW_ITEMS = 10
"""Number of items that are replaced at the start of a day."""

ROWS = 1_000_000
TERMS = "generated; no restrictions"

BASE = -1.5
QUALITY = 1.0 / 3.0
MATCH = 0.5
POPULARITY = 0.8
NOISE = 0.15


class Visit(NamedTuple):
    """A row: a user, the offered items, and their rewards."""

    x: FloatArray  # float64[c]
    items: NDArray[np.int64]  # [K], the items' numbers
    features: FloatArray  # float64[K, a]
    rewards: FloatArray  # float64[K], bits or graded rewards


@dataclass(frozen=True, slots=True)
class OfferRows:
    """The rows that are generated from one seed."""

    draws: Draws
    quality: FloatArray  # float64[a], w
    match: FloatArray  # float64[a, c], W
    is_graded: bool
    context_indices: NDArray[np.int32]
    item_indices: NDArray[np.int32]

    def row(self, row: int) -> Row:
        """Generate a row. It has no label, because no action is right or wrong."""
        visit = self.visit(row)
        x = make(Features, (self.context_indices, visit.x))
        actions = [
            Action(id_of(item), make(Features, (self.item_indices, features)))
            for item, features in zip(visit.items.tolist(), visit.features, strict=True)
        ]
        return make(Row, (BLOCKS.joined(x, actions), MISSING))

    def label(self, row: int) -> int:
        """Return MISSING."""
        return MISSING

    def block(self, start: int, stop: int) -> Block:
        """Generate the rows [start, stop)."""
        rows = [self.row(row).x for row in range(start, stop)]
        offsets = np.cumsum([0, *(x.indices.size for x in rows)], dtype=np.int64)
        indices = np.concatenate([x.indices for x in rows]) if rows else np.zeros(0, np.int32)
        values = np.concatenate([x.values for x in rows]) if rows else np.zeros(0)
        return Block(offsets, indices, values, np.full(len(rows), MISSING, np.int64))

    def items(self, row: int) -> NDArray[np.int64]:
        """Return the numbers of a row's items, by place."""
        order = np.argsort(words(self.draws.bits(f"items-{row}"), ITEMS), kind="stable")[:OFFERED]
        numbers: NDArray[np.int64] = row // DAY_ROWS * NEW_ITEMS + order
        return numbers

    def visit(self, row: int) -> Visit:
        """Return a row's user, items and rewards."""
        uniform = _uniform(self.draws.bits(f"row-{row}"), CONTEXT_FEATURES + 2 * OFFERED)
        x, noise = 2.0 * uniform[:CONTEXT_FEATURES] - 1.0, uniform[CONTEXT_FEATURES:].reshape(2, OFFERED)
        items = self.items(row)
        own = np.stack([_uniform(self.draws.bits(f"item-{item}"), ITEM_FEATURES + 2) for item in items.tolist()])
        features = 2.0 * own[:, :ITEM_FEATURES] - 1.0
        popularity = POPULARITY * (2.0 * own[:, ITEM_FEATURES:] - 1.0).sum(axis=1)
        taste = self.quality + MATCH * (self.match * x).sum(axis=1)
        p = 1.0 / (1.0 + np.exp(-(BASE + (features * taste).sum(axis=1) + popularity)))
        if self.is_graded:
            rewards = np.clip(p + NOISE * (2.0 * noise - 1.0).sum(axis=0), 0.0, 1.0)
        else:
            rewards = (noise[0] < p).astype(np.float64)
        return Visit(x, items, features, rewards)


@dataclass(frozen=True, slots=True)
class OffersDataset(Dataset):
    """Rows that offer items, with a known reward for each of them."""

    offers: OfferRows  # the same object as `source`, with its exact type

    def actions(self, row: int) -> Sequence[str]:
        """Return the ids of a row's items."""
        return [id_of(item) for item in self.offers.items(self._checked(row)).tolist()]

    def known_of(self, event_id: str) -> Known:
        """Return an event's known outcome: the reward of each action."""
        visit = self.offers.visit(self.parse_event_id(event_id)[1])
        return Known(rewards=visit.rewards, has_bits=not self.offers.is_graded)

    def has_labels(self) -> bool:
        """Return False, because no action is right or wrong."""
        return False

    def has_rewards(self) -> bool:
        """Return True."""
        return True

    def reward_range(self) -> RewardRange | None:
        """Return the range of graded rewards."""
        return BITS if self.offers.is_graded else None


def catalogue(seed: int = 0, rows: int = ROWS) -> OffersDataset:
    """Create the data set with bits as rewards.

    Raises:
        DatasetError: the seed or the number of rows is out of range.
    """
    return _offers("catalogue", seed, rows, is_graded=False)


def catalogue_graded(seed: int = 0, rows: int = ROWS) -> OffersDataset:
    """Create the data set with graded rewards.

    Raises:
        DatasetError: the seed or the number of rows is out of range.
    """
    return _offers("catalogue-graded", seed, rows, is_graded=True)


def _offers(name: str, seed: int, rows: int, *, is_graded: bool) -> OffersDataset:
    if not 0 <= seed <= SEED_MAX:
        raise DatasetError(f"{name}: expected a seed in [0, 2**64); got {seed}")
    if rows < 1:
        raise DatasetError(f"{name}: expected at least 1 row; got {rows}")
    draws = Draws(seed, Purpose.OFFER)
    weights = 2.0 * _uniform(draws.bits("weights"), ITEM_FEATURES * (1 + CONTEXT_FEATURES)) - 1.0
    source = OfferRows(
        draws,
        QUALITY * weights[:ITEM_FEATURES],
        weights[ITEM_FEATURES:].reshape(ITEM_FEATURES, CONTEXT_FEATURES),
        is_graded,
        np.arange(CONTEXT_FEATURES, dtype=np.int32),
        np.arange(ITEM_FEATURES, dtype=np.int32),
    )
    return OffersDataset(
        name=name,
        # The id contains the seed, because rewards from another seed would be wrong without an error.
        id_prefix=f"{name}.{seed}",
        rows=rows,
        n_features=BLOCKS.n_features,
        n_classes=OFFERED,
        class_names=tuple(str(place) for place in range(OFFERED)),
        terms=TERMS,
        source=source,
        blocks=BLOCKS,
        offers=source,
    )


def id_of(item: int) -> str:
    """Return an item's id."""
    return f"item-{item}"


def _uniform(state: int, n: int) -> FloatArray:
    uniform: FloatArray = (words(state, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform
