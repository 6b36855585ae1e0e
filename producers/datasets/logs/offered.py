"""Actions with features in a log: ids, places, checks, and the combination of their features with the contexts'.

A decision's actions have places 0, 1, ... in their order. To all later code, a place is a class; see
`stream.wire.actions`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from producers.datasets.log import MISSING
from producers.datasets.logs.columns import Column, plain_of, values_of
from producers.datasets.logs.encoding import EncodedRows
from producers.datasets.logs.objects import FORMS_OF_X, ObjectEntries, features_of
from producers.datasets.logs.parsed import FeatureEntries, Offered, Problem, Texts, problem
from stream.estimating.rows import Eligible
from stream.wire.actions import ActionBlocks, key_of
from stream.wire.named_features import Kind, text_of
from stream.wire.records import ID_BYTES_MAX


class OfferedRows:
    """Collects the actions of a batch's decisions."""

    def __init__(self) -> None:
        self.count = 0  # number of actions so far
        self._counts: list[int] = []
        self._ids: list[str] = []
        self._played: list[int] = []
        self._baselines: list[int] = []
        self._eligible: list[Sequence[int]] = []

    def add(
        self, ids: Sequence[str], played: int = MISSING, baseline: int = MISSING, eligible: Sequence[int] = ()
    ) -> None:
        """Add the next decision; see `Offered`."""
        self._counts.append(len(ids))
        self._ids += ids
        self.count += len(ids)
        self._played.append(played)
        self._baselines.append(baseline)
        self._eligible.append(eligible)

    def offered(self, features: tuple[FeatureEntries, ...]) -> Offered:
        """Return all decisions."""
        return Offered(
            np.array(self._counts, np.int64),
            Texts.of(self._ids),
            features,
            np.array(self._played, np.int64),
            np.array(self._baselines, np.int64),
            self._eligible,
        )


def ids_of(tags: Sequence[str | None], contents: Iterable[bytes]) -> list[str]:
    """Return the ids of a decision's actions: their tags if all have different ones, or else hashes of their content.

    Actions with the same content have ids with a suffix.

    >>> ids_of(["tea", "milk"], [b"a", b"b"]), ids_of([None, "tea"], [b"a", b"a"])
    (['tea', 'milk'], ['e6c632b61e964e1f', 'e6c632b61e964e1f~2'])
    """
    if all(tags) and len(set(tags)) == len(tags):
        return [tag for tag in tags if tag]
    seen = Counter[str]()
    ids = []
    for content in contents:
        digest = xxhash.xxh3_64_hexdigest(content)
        seen[digest] += 1
        ids.append(digest if seen[digest] == 1 else f"{digest}~{seen[digest]}")
    return ids


def lists_of_actions(column: Column, field: str, problems: list[Problem]) -> list[list[dict[str, Any]]]:
    """Return a column's lists of actions: lists of objects, or JSON text. Invalid values become empty lists."""
    found = []
    for row, value in enumerate(values_of(column)):
        actions = plain_of(value)
        if not isinstance(actions, list) or not all(isinstance(action, dict) for action in actions):
            problems.append(problem(row, field, 'a list of actions such as {"id": "tea", "x": {"price": 3}}', value))
            actions = []
        found.append(actions)
    return found


def offered_of(
    lists: Sequence[Sequence[dict[str, Any]]],
    played: Sequence[str | None],
    baselines: Sequence[str | None],
    eligible: Sequence[Sequence[str]],
    kinds: Mapping[str, Kind],
    problems: list[Problem],
) -> Offered:
    """Return the actions of n decisions in the form that contexts have.

    Args:
        lists: Each decision's actions, with the members `id` and `x`.
        played: The id of each decision's played action, or None.
        baselines: The id of the action of the service's own rule, or None.
        eligible: The ids of the eligible actions; an empty list means all actions.
        kinds: The kinds of features, except those that follow from their values.
        problems: Receives a problem for each invalid decision.
    """
    rows, of_actions = OfferedRows(), list[Problem]()
    found = ObjectEntries(of_actions, kinds)
    for row, (actions, own, baseline, among) in enumerate(zip(lists, played, baselines, eligible, strict=True)):
        for place, action in enumerate(actions):
            x = features_of(action.get("x"))
            if x is None:
                of_actions.append(problem(rows.count + place, "x", FORMS_OF_X, action["x"]))
            else:
                found.add_object(rows.count + place, "", x)
        place_of = {text_of(action.get("id")) or "": place for place, action in enumerate(actions)}
        named = [name for name in (own, baseline, *among) if name is not None]
        if actions and (unknown := [name for name in named if name not in place_of]):
            problems.append(problem(row, "actions", "the played, eligible and baseline actions", unknown[0]))
        places = sorted(place_of.get(name, 0) for name in among)
        if len(set(places)) < len(places):
            problems.append(problem(row, "eligible", "one or more of the actions, without duplicates", list(among)))
        if own is not None and places and place_of.get(own) not in places:
            problems.append(problem(row, "eligible", "actions that include the played action", list(among)))
        rows.add(
            [text_of(action.get("id")) or "" for action in actions],
            MISSING if own is None else place_of.get(own, MISSING),
            MISSING if baseline is None else place_of.get(baseline, MISSING),
            places,
        )
    offered = rows.offered(found.columns())
    problems += problems_of_decisions(offered, of_actions)
    return offered


def check_offered(offered: Offered, places: int, problems: list[Problem]) -> None:
    """Report decisions without actions, with more actions than places, or with repeated or invalid ids."""
    for row, count in enumerate(offered.counts.tolist()):
        if not 1 <= count <= places:
            problems.append(problem(row, "actions", f"1 to {places} actions", count))
    decisions, codes = offered.decisions, offered.ids.codes
    odd = [k for k, name in enumerate(offered.ids.distinct) if not 0 < len(name.encode()) <= ID_BYTES_MAX]
    for action in np.flatnonzero(np.isin(codes, [MISSING, *odd])).tolist():
        expected = f"an id of 1 to {ID_BYTES_MAX} bytes"
        problems.append(problem(int(decisions[action]), "actions", expected, offered.ids[action] or ""))
    pairs = decisions * (len(offered.ids.distinct) + 1) + codes
    order = np.argsort(pairs, kind="stable")
    for place in np.flatnonzero(np.diff(pairs[order]) == 0).tolist():
        action = int(order[place + 1])
        problems.append(problem(int(decisions[action]), "actions", "different ids", f"{offered.ids[action]} twice"))


def eligible_places(offered: Offered) -> Eligible:
    """Return the places of each decision's eligible actions."""
    return Eligible.of_lists(
        [given or range(count) for given, count in zip(offered.eligible, offered.counts.tolist(), strict=True)]
    )


def problems_of_decisions(offered: Offered, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems of actions as problems of their decisions."""
    decisions = offered.decisions
    return [one._replace(row=int(decisions[one.row]), reason=f"actions, {one.reason}") for one in problems]


def combined(blocks: ActionBlocks, contexts: EncodedRows, actions: EncodedRows, offered: Offered) -> EncodedRows:
    """Return x for n decisions: each context's features, and a block for each of its actions.

    Args:
        blocks: The layout of x.
        contexts: The n contexts.
        actions: Their m actions.
        offered: The actions' ids and decisions.
    """
    n, counts, decisions = offered.counts.size, offered.counts, offered.decisions
    places = np.arange(decisions.size) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = blocks.context + places * blocks.width
    keys = np.array([key_of(name) for name in offered.ids.distinct] or [0.0])[offered.ids.codes]
    action = np.repeat(np.arange(decisions.size), np.diff(actions.offsets))
    row = np.concatenate((np.repeat(np.arange(n), np.diff(contexts.offsets)), decisions, decisions[action]))
    index = np.concatenate((contexts.indices, starts, starts[action] + 1 + actions.indices))
    value = np.concatenate((contexts.values, keys, actions.values))
    order = np.lexsort((index, row))
    offsets = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=n)))).astype(np.int64)
    return EncodedRows(offsets, index[order].astype(np.int32), value[order])


def where(offered: Offered, kept: NDArray[np.bool_]) -> Offered:
    """Return the actions of the decisions selected by a mask, without features."""
    of_actions = np.repeat(kept, offered.counts)
    return Offered(
        offered.counts[kept],
        offered.ids.where(of_actions),
        (),
        offered.played[kept],
        offered.baselines[kept],
        [one for one, keep in zip(offered.eligible, kept.tolist(), strict=True) if keep],
    )
