"""What tests of the server share."""
import pytest

import gomlx


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as made:
        yield made
