"""Random draws depend only on their inputs and are uniform and uncorrelated. All SplitMix64 implementations agree."""

import itertools
from functools import cache
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from producers.datasets import synthetic
from stream.randomness.draws import GAMMA, SEED_MAX, Draws, Purpose, mix, uniform, words
from stream.wire.records import FloatArray

FALSE_ALARM = 1e-6
"""False-alarm rate of a statistical test. The seeds are fixed, so the result changes only if the code changes."""

EVENT_IDS = [f"optdigits-0-{row:06}" for row in range(20_000)]
SEEDS = (0, 1, 2, 12345)


@cache
def streams() -> dict[tuple[int, Purpose], FloatArray]:
    return {
        (seed, purpose): np.fromiter(map(Draws(seed, purpose), EVENT_IDS), float)
        for seed in SEEDS
        for purpose in Purpose
    }


def test_draws_equal_the_values_of_earlier_versions() -> None:
    golden = {
        (0, Purpose.ACTION, ""): 0.2974295452030694,
        (1, Purpose.ACTION, "optdigits-0-000123"): 0.8272803584028373,
        (1, Purpose.UPDATE, "optdigits-0-000123"): 0.5932708529297338,
        (1, Purpose.DELAY, "optdigits-0-000123"): 0.6564253694118067,
        (1, Purpose.LOSS, "optdigits-0-000123"): 0.3373456358008612,
        (1, Purpose.DUPLICATE, "optdigits-0-000123"): 0.06987777910631698,
        (1, Purpose.DUPLICATE_DELAY, "optdigits-0-000123"): 0.24253269057202798,
        (1, Purpose.SHUFFLE, "optdigits-0-000123"): 0.03510420285709248,
        (SEED_MAX, Purpose.ACTION, "größer"): 0.23749902929647115,
    }
    assert {key: uniform(*key) for key in golden} == golden


@given(st.integers(0, SEED_MAX), st.sampled_from(Purpose), st.text(st.characters(exclude_categories=["Cs"])))
def test_draw_is_the_upper_53_bits_of_the_keyed_hash(seed: int, purpose: Purpose, event_id: str) -> None:
    digest = blake2b(
        event_id.encode(), digest_size=8, key=seed.to_bytes(8, "little"), person=purpose.value.encode()
    ).digest()
    bits = int.from_bytes(digest, "little")
    draw = Draws(seed, purpose)
    assert draw.bits(event_id) == bits
    assert draw(event_id) == uniform(seed, purpose, event_id) == (bits >> 11) / 2**53
    assert 0.0 <= draw(event_id) < 1.0


def test_draw_does_not_depend_on_earlier_draws() -> None:
    draw = Draws(7, Purpose.DELAY)
    forwards = [draw(event_id) for event_id in EVENT_IDS[:100]]
    backwards = [draw(event_id) for event_id in reversed(EVENT_IDS[:100])]
    assert forwards == backwards[::-1]


@pytest.mark.slow
def test_draws_are_uniform() -> None:
    for key, stream in streams().items():
        assert stats.kstest(stream, "uniform").pvalue > FALSE_ALARM / len(streams()), key


@pytest.mark.slow
def test_draws_of_different_purposes_seeds_and_events_are_uncorrelated() -> None:
    drawn = list(streams().values())
    pairs = [*itertools.combinations(drawn, 2), *((stream[1:], stream[:-1]) for stream in drawn)]
    # The sample correlation of n independent pairs is approximately normal with variance 1/n.
    bound = stats.norm.isf(FALSE_ALARM / len(pairs) / 2) / np.sqrt(len(EVENT_IDS) - 1)
    assert max(abs(float(np.corrcoef(one, other)[0, 1])) for one, other in pairs) < bound


@pytest.mark.parametrize("seed", [-1, SEED_MAX + 1])
def test_seed_out_of_range_is_rejected(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        uniform(seed, Purpose.ACTION, "a")


WORDS = st.integers(0, 2**64 - 1)


def test_first_random_words_equal_those_of_the_reference_implementation() -> None:
    # Vigna's reference implementation, splitmix64.c, returns these numbers for the seed 1234567.
    assert words(1_234_567, 3).tolist() == [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ]


@given(WORDS, st.integers(1, 5))
def test_array_of_draws_equals_individual_draws(state: int, n: int) -> None:
    one_by_one = [mix((state + k * GAMMA) % 2**64) for k in range(1, n + 1)]
    assert words(state, n).tolist() == one_by_one


def test_compiled_and_python_versions_of_splitmix64_agree() -> None:
    for word in words(7, 50):
        assert int(synthetic._mix(np.uint64(word))) == mix(int(word))
