"""Weak labels: what "not this class" tells about points in a row, and the missing permutation it is equal to.

"Bandit Multiclass Classification" (the Notes), sect. 11. N points stand in a row; of point i it is known that its
class is not weak[i], of K classes. Classes c_1..c_N are separable when equal classes stand together: c_i = c_j implies
that all between are equal too. The Notes state, and leave unproved, that separable classes with c_i ≠ weak[i] for all i
exist if and only if some permutation of the K classes is not a subsequence of weak.

Proof. Let c be such classes. They name their classes in some order; append the classes they leave out: a permutation
π, in which c never goes back. Were π a subsequence of weak, at positions i_1 < ... < i_K, then c at i_1 would not be
π_1, so a later one; c at i_2 no earlier than that and not π_2, so later than π_2; and c at i_K later than π_K, which
there is none. Conversely, let π be missing: give the points π_1 until weak says π_1, from that very point on π_2 until
weak says π_2, and so on. No point gets its weak label, and the classes do not run out, or π would be a subsequence.

That a permutation is missing is found here by dynamic programming over the sets of classes, O(N K + 2^K K) steps. The
Notes ask for steps polynomial in N and K; this is polynomial in N alone.

>>> missing_permutation([0, 1, 2, 0, 1], 3)  # the Notes' example 1, classes from 0
(2, 1, 0)
>>> separable_classes([0, 1, 2, 0, 1], 3)
[2, 2, 1, 1, 0]
>>> missing_permutation([0, 1, 2, 0, 1, 2, 0], 3) is None  # example 2
True
"""

from collections.abc import Sequence
from itertools import pairwise

CLASSES_MAX = 20
"""2^K K steps and 2^K numbers: with 20 classes 2·10⁷ steps."""


def missing_permutation(weak: Sequence[int], n_classes: int) -> tuple[int, ...] | None:
    """A permutation of the classes that is not a subsequence of the weak labels; None when all of them are.

    For a set S of classes, reach(S) is the latest position at which the earliest match of an ordering of S ends. An
    ordering that matches latest leaves the least to come, so that reach(S) is the maximum over the last class k of
    following(k, reach(S without k)), and a permutation is missing if and only if reach of all classes is the end.

    Raises:
        ValueError: a label is not one of the classes, or there are too many classes.
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
    """Separable classes that differ from the weak label at every point; None when there are none.

    Raises:
        ValueError: as `missing_permutation`.
    """
    permutation = missing_permutation(weak, n_classes)
    return None if permutation is None else classes_along(permutation, weak)


def classes_along(permutation: Sequence[int], weak: Sequence[int]) -> list[int]:
    """The classes that follow a missing permutation, going on to the next one where the weak label forbids this one."""
    place = 0
    classes = []
    for label in weak:
        if label == permutation[place]:
            place += 1
        classes.append(permutation[place])
    return classes


def is_separable(classes: Sequence[int]) -> bool:
    """Whether equal classes stand together."""
    changes = sum(one != other for one, other in pairwise(classes))
    return changes + 1 == len(set(classes)) or not classes


def _following(weak: Sequence[int], n_classes: int) -> list[list[int]]:
    """following[p][k]: 1 + the first place from p on with label k; N + 1 when there is none, and from N + 1 itself."""
    end = len(weak) + 1
    table = [[end] * n_classes for _ in range(end + 1)]
    for place in range(len(weak) - 1, -1, -1):
        table[place] = table[place + 1].copy()
        table[place][weak[place]] = place + 1
    return table


def _check(weak: Sequence[int], n_classes: int) -> None:
    if not 1 <= n_classes <= CLASSES_MAX:
        raise ValueError(f"weak labels: 1 to {CLASSES_MAX} classes are accepted; got {n_classes}")
    for place, label in enumerate(weak):
        if not 0 <= label < n_classes:
            raise ValueError(f"weak labels: a class in 0..{n_classes - 1} is expected at point {place}; got {label}")
