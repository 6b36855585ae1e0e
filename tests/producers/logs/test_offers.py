"""The bundled offers log is the output of its script, and matches the probabilities that the script defines."""

import gzip
from importlib.resources import as_file, files

import numpy as np

from producers.datasets.logs.mapping import read_mapping
from producers.datasets.logs.reading import LogFile, open_log
from tests.producers.logs import offers


def shipped() -> LogFile:
    with as_file(files("producers.datasets") / "files") as folder:
        return open_log(folder / offers.LOG_NAME, read_mapping(folder / offers.MAPPING_NAME))


def test_shipped_log_equals_the_output_of_its_script() -> None:
    folder = files("producers.datasets") / "files"
    assert gzip.decompress((folder / offers.LOG_NAME).read_bytes()) == offers.content()
    assert (folder / offers.MAPPING_NAME).read_text() == offers.MAPPING


def test_shipped_log_is_readable() -> None:
    log = shipped()
    batches = list(log.batches())
    assert sum(len(batch.ids) for batch in batches) == offers.ROWS
    assert (log.name, log.n_features, log.class_names) == ("offers", 10, offers.OFFERS)
    assert log.skipped == {}
    batch = batches[0]
    assert set(batch.propensities.tolist()) == {0.1}
    known = batch.rewards >= 0
    assert ((batch.delays_ms >= 0) == known).all()
    assert 0.03 < 1 - known.mean() < 0.07
    assert 25_000 < batch.delays_ms[known].mean() < 35_000


def test_click_rates_match_the_true_probabilities() -> None:
    batch = next(shipped().batches())
    known = batch.rewards >= 0
    probabilities = offers.truth().click(offers.visits())[np.arange(offers.ROWS), batch.actions][known]
    deviation = (batch.rewards[known] - probabilities).sum() / np.sqrt((probabilities * (1 - probabilities)).sum())
    assert abs(deviation) < 3
    best = offers.truth().click(offers.visits())
    assert best.max(axis=1).mean() > 2 * best.mean()  # the best offers are better than average
    assert best.max(axis=1).mean() > best.mean(axis=0).max() + 0.05  # the best offer depends on the context
