"""What tests share: the optional folder of test data, and the engine compiled once for the tests in C."""
import os

import pytest
from engine import Engine
from places import ROOT


@pytest.fixture(scope="session")
def shared():
    """The folder of test data that is not part of the project: GOMLX_SHARED, or ../shared beside the repository."""
    path = os.environ.get("GOMLX_SHARED") or os.path.join(os.path.dirname(ROOT), "shared")
    if not os.path.isdir(path):
        pytest.skip("no test data: set GOMLX_SHARED, or put a folder 'shared' beside the repository")
    return path


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    """The engine's objects, without the binding, under ASan and UBSan: see engine.py."""
    return Engine(ROOT, tmp_path_factory.mktemp("engine"))
