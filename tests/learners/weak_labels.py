"""Finds classes for a row of points. Each point has a weak label, which is a class that the point does not have.

See "Bandit Multiclass Classification" (the Notes), section 11. There are N points in a row and K classes. The class of
point i is not weak[i]. Classes c_1..c_N are separable if the points of each class are contiguous: c_i = c_j implies
that all classes between i and j are equal to c_i. The Notes state without proof that separable classes with c_i ≠
weak[i] for all i exist if and only if some permutation of the K classes is not a subsequence of weak.

Proof. Let c be such classes. Let π be the permutation that lists the classes in the order of their first occurrence in
c, followed by the classes that do not occur. Suppose that π is a subsequence of weak, at positions i_1 < ... < i_K. The
class at i_1 is not π_1, so it comes later in π. The class at i_2 does not come before the class at i_1, and is not π_2,
so it comes after π_2. By induction, the class at i_K comes after π_K, which is impossible. Conversely, suppose that π
is not a subsequence of weak. Assign π_1 to the points before the first weak label π_1. From that point on, assign π_2
until the next weak label π_2, and so on. No point is assigned its weak label. The permutation is not exhausted, because
otherwise π would be a subsequence of weak.

This module finds a missing permutation by dynamic programming over sets of classes, in O(N K + 2^K K) steps. The Notes
ask for an algorithm that is polynomial in N and K. This algorithm is polynomial only in N.

>>> missing_permutation([0, 1, 2, 0, 1], 3)  # example 1 of the Notes, with classes numbered from 0
(2, 1, 0)
>>> separable_classes([0, 1, 2, 0, 1], 3)
[2, 2, 1, 1, 0]
>>> missing_permutation([0, 1, 2, 0, 1, 2, 0], 3) is None  # example 2
True
"""

from collections.abc import Sequence
from itertools import pairwise

CLASSES_MAX = 20
"""The maximum number of classes. The algorithm needs 2^K K steps (2·10⁷ for 20 classes) and stores 2^K numbers."""


def missing_permutation(weak: Sequence[int], n_classes: int) -> tuple[int, ...] | None:
    """Return a permutation of the classes that is not a subsequence of the weak labels, or None if there is none.

    For each ordering of a set S of classes, consider the end of its earliest match. reach(S) is the maximum of these
    ends over all orderings of S. It is equal to the maximum over the last class k of following(k, reach(S without k)),
    because a later position never has an earlier next match. A permutation is missing if and only if reach of all
    classes is N + 1.

    Raises:
        ValueError: A label is out of range, or there are too many classes.
    """
    _check(weak, n_classes)
    end = len(weak) + 1
    following = _following(weak, n_classes)
    reach = [0] * (1 << n_classes)
    last = [0] * (1 << n_classes)
    for members in range(1, 1 << n_classes):
        reach[members] = -1
        for k in range(n_classes):
            if members >> k & 1:
                position = following[reach[members ^ 1 << k]][k]
                if position > reach[members]:
                    reach[members], last[members] = position, k
    members = (1 << n_classes) - 1
    if reach[members] < end:
        return None
    order = []
    while members:
        order.append(last[members])
        members ^= 1 << last[members]
    return tuple(reversed(order))


def separable_classes(weak: Sequence[int], n_classes: int) -> list[int] | None:
    """Return separable classes that differ from the weak label at every point, or None if no such classes exist.

    Raises:
        ValueError: See `missing_permutation`.
    """
    permutation = missing_permutation(weak, n_classes)
    return None if permutation is None else classes_along(permutation, weak)


def classes_along(permutation: Sequence[int], weak: Sequence[int]) -> list[int]:
    """Assign the classes of a permutation in order. If a weak label equals the current class, the next class begins."""
    place = 0
    classes = []
    for label in weak:
        if label == permutation[place]:
            place += 1
        classes.append(permutation[place])
    return classes


def is_separable(classes: Sequence[int]) -> bool:
    """Return whether the points of each class are contiguous."""
    changes = sum(one != other for one, other in pairwise(classes))
    return changes + 1 == len(set(classes)) or not classes


def _following(weak: Sequence[int], n_classes: int) -> list[list[int]]:
    """Return following[p][k], which is 1 + the first position at or after p that has label k.

    The value is N + 1 if there is no such position or if p = N + 1.
    """
    end = len(weak) + 1
    table = [[end] * n_classes for _ in range(end + 1)]
    for place in range(len(weak) - 1, -1, -1):
        table[place] = table[place + 1].copy()
        table[place][weak[place]] = place + 1
    return table


def _check(weak: Sequence[int], n_classes: int) -> None:
    if not 1 <= n_classes <= CLASSES_MAX:
        raise ValueError(f"weak labels: expected 1 to {CLASSES_MAX} classes; got {n_classes}")
    for place, label in enumerate(weak):
        if not 0 <= label < n_classes:
            raise ValueError(f"weak labels: expected a class in 0..{n_classes - 1} at point {place}; got {label}")
