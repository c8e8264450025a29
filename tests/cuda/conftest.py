import pytest
from fake_device import build_fake_device
from fake_driver import write_kernels


# For what refuses a GPU no kernel has to be compiled.
@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    return write_kernels(tmp_path_factory.mktemp("cuda") / "kernels")


@pytest.fixture(scope="session")
def library():
    """The fake device's."""
    return build_fake_device()
