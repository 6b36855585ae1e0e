"""A valid run, which the tests copy before they edit it."""

import pytest

from tests.pipeline import Pipeline
from tests.verifying.tampering import made_by_hand


@pytest.fixture(scope="session")
def good() -> Pipeline:
    return made_by_hand()
