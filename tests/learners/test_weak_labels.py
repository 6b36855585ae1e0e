from itertools import permutations, product

import pytest

from tests.learners.weak_labels import classes_along, is_separable, missing_permutation, separable_classes


def is_subsequence(short: tuple[int, ...], long: tuple[int, ...]) -> bool:
    rest = iter(long)
    return all(item in rest for item in short)


def is_separable_by_definition(classes: tuple[int, ...]) -> bool:
    n = len(classes)
    return all(
        classes[i] != classes[j] or all(classes[m] == classes[i] for m in range(i, j + 1))
        for i in range(n)
        for j in range(i, n)
    )


EXHAUSTIVE = [(n, k) for k in (1, 2, 3) for n in range(8)] + [(n, 4) for n in range(6)]


@pytest.mark.parametrize(("n", "k"), EXHAUSTIVE)
def test_separable_classes_exist_if_and_only_if_a_permutation_is_missing(n: int, k: int) -> None:
    solutions = [c for c in product(range(k), repeat=n) if is_separable_by_definition(c)]
    orders = list(permutations(range(k)))
    for weak in product(range(k), repeat=n):
        solvable = any(all(c != w for c, w in zip(s, weak, strict=True)) for s in solutions)
        missing = [order for order in orders if not is_subsequence(order, weak)]
        assert solvable == bool(missing)
        found, classes = missing_permutation(weak, k), separable_classes(weak, k)
        if not missing:
            assert found is None
            assert classes is None
            continue
        assert found in missing
        assert classes is not None
        for order in missing:
            along = classes_along(order, weak)
            assert is_separable_by_definition(tuple(along))
            assert all(c != w for c, w in zip(along, weak, strict=True))


def test_is_separable_agrees_with_its_definition() -> None:
    for classes in product(range(3), repeat=6):
        assert is_separable(classes) == is_separable_by_definition(classes)
    assert is_separable([])


def test_shortest_rows_with_every_permutation_are_detected() -> None:
    # The shortest sequence that contains every permutation of 4 classes as a subsequence has length 12.
    complete = (0, 1, 2, 3, 0, 1, 2, 0, 3, 1, 0, 2)
    assert missing_permutation(complete, 4) is None
    for left_out in range(len(complete)):
        assert missing_permutation(complete[:left_out] + complete[left_out + 1 :], 4) is not None


def test_separable_classes_are_found_for_many_points() -> None:
    weak = [i * i % 10 for i in range(20_000)]  # the last digit of a square is 0, 1, 4, 5, 6 or 9
    classes = separable_classes(weak, 10)
    assert classes is not None
    assert is_separable(classes)


@pytest.mark.parametrize(("weak", "k"), [([0, 3], 3), ([-1], 3), ([], 0), ([], 21)])
def test_labels_and_sizes_out_of_range_are_rejected(weak: list[int], k: int) -> None:
    with pytest.raises(ValueError, match="weak labels: "):
        missing_permutation(weak, k)
