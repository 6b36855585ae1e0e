"""A valid run, which the tests copy before they edit it."""

import pytest

from tests.pipeline import Pipeline
from tests.verifying.tampering import hand_made_run


@pytest.fixture(scope="session")
def good() -> Pipeline:
    return hand_made_run()
