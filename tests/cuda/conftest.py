import pytest
from fake_driver import write_kernels


# For what refuses a GPU no kernel has to be compiled.
@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    return write_kernels(tmp_path_factory.mktemp("cuda") / "kernels")
