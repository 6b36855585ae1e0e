"""A fixture with a valid run. Tests edit a copy of this run."""

import pytest

from tests.pipeline import Pipeline
from tests.verifying.tampering import hand_made_run


@pytest.fixture(scope="session")
def good() -> Pipeline:
    return hand_made_run()
