"""SplitMix64 in its forms: one number, an array of them, and compiled."""

import doctest

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from producers.datasets import synthetic
from stream.randomness import splitmix

WORDS = st.integers(0, 2**64 - 1)


def test_first_words_are_those_of_the_authors() -> None:
    # From the reference implementation by Vigna, splitmix64.c, seeded with 1234567.
    assert splitmix.words(1_234_567, 3).tolist() == [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ]


def test_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(splitmix).failed == 0


@given(WORDS, st.integers(1, 5))
def test_array_is_the_numbers_one_by_one(state: int, n: int) -> None:
    one_by_one = [splitmix.mix((state + k * splitmix.GAMMA) % 2**64) for k in range(1, n + 1)]
    assert splitmix.words(state, n).tolist() == one_by_one


def test_compiled_form_is_the_same_function() -> None:
    for word in splitmix.words(7, 50):
        assert int(synthetic._mix(np.uint64(word))) == splitmix.mix(int(word))
