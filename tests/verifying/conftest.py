"""A good run that tests copy and edit, and do not change."""

import pytest

from tests.pipeline import Pipeline
from tests.verifying.tampering import made_by_hand


@pytest.fixture(scope="session")
def good() -> Pipeline:
    return made_by_hand()
