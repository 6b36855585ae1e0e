"""The measured time per event: the fastest of several measurements, excluding compilation."""

from itertools import accumulate, chain

import numpy as np

from onebit.learner_costs import event_us, first_events
from producers.datasets.named import load
from stream.learners import create
from stream.randomness.draws import Purpose, uniform

OPTDIGITS = load("optdigits")


def test_fastest_of_the_long_measurements_is_reported() -> None:
    # The first three parts have 1, 2 and 4 events. The third takes long enough, so three more parts of 4 events follow.
    parts_s = [0.002, 0.008, 0.016, 0.020, 0.012, 0.048]
    readings = accumulate(chain.from_iterable((1.0, part_s) for part_s in parts_s))
    learner = create("perceptron", OPTDIGITS.n_classes, OPTDIGITS.n_features)

    assert abs(event_us(learner, first_events(OPTDIGITS), lambda: next(readings)) - 3_000) < 1e-6
    assert next(readings, None) is None
    assert np.any(learner.weights())


def test_measured_events_use_the_random_draws_of_their_ids() -> None:
    events = first_events(OPTDIGITS)
    event_id = OPTDIGITS.event_id(7)

    assert len(events) == 1_000
    assert events[7].known.label == OPTDIGITS.label(7)
    assert events[7][2:] == (uniform(1, Purpose.ACTION, event_id), uniform(1, Purpose.UPDATE, event_id))
