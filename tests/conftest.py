"""What tests share: the optional folder of test data, the engine compiled once for the tests in C, and the device that
arrays are on."""
import collections
import fnmatch
import gc
import os
import signal

import pytest
from engine import Engine
from order import place_of
from places import ROOT

# NumPy's products, which results are compared with, are small: threads that wait for one another are a fifth of what
# tests of models would take. Before NumPy is imported, here and in the programs that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The suite means the same on every machine: GOMLX_TEST_DEVICE=gpu runs it on the GPU, GOMLX_TEST_DEVICE=fake on the
# fake device (cuda/fake_device.c), anything else on the processor. It is set before gomlx is imported.
DEVICE = os.environ.get("GOMLX_TEST_DEVICE", "cpu")
os.environ["GOMLX_DEVICE"] = "cpu" if DEVICE == "cpu" else "cuda"
if DEVICE == "fake":
    from fake_device import build_fake_device
    os.environ["GOMLX_DEVICE_LIBRARY"] = build_fake_device()

# nohup and shells in the background leave Ctrl-C ignored, here and in the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """pytest-xdist's own order is by how many tests a file has."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Puts the files that take long first, and marks the tests of gpu_differences.py where arrays are on a GPU."""
    items.sort(key=lambda item: place_of(item.path))
    if DEVICE == "cpu":
        return
    from gpu_differences import DIFFERENT, OF_LIBRARY, SKIPPED

    import gomlx.core as mx
    has_library = mx.device_info(mx.gpu)["libraries"].startswith("cuBLASLt")
    different = DIFFERENT + (OF_LIBRARY if has_library else [])
    for item in items:
        name = os.path.relpath(item.path, os.path.join(ROOT, "tests")) + "::" + item.nodeid.split("::", 1)[-1]
        for table, mark in ((SKIPPED, pytest.mark.skip), (different, pytest.mark.xfail)):
            for pattern, reason in table:
                if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
                    item.add_marker(mark(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freezes what was made while tests were collected, half a million objects that live to the end: to walk over
    them took 0.2 s of each gc.collect() of a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that comes upon what no GPU does is one that differs."""
    report = yield
    if DEVICE != "cpu" and call.excinfo is not None and report.failed:
        from gpu_differences import REFUSALS
        for text in REFUSALS:
            if text in str(call.excinfo.value):
                report.outcome, report.wasxfail = "skipped", text
    return report


refused = collections.Counter()


def pytest_runtest_logreport(report):
    if getattr(report, "wasxfail", None):
        refused[report.wasxfail] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Where tests run in several processes, the one that gathers their reports counts."""
    if DEVICE == "cpu" or hasattr(session.config, "workerinput"):
        return
    from gpu_differences import REFUSALS
    for text, most in REFUSALS.items():
        if refused[text] > most:
            print(f"\n{refused[text]} tests came upon {text!r}, expected at most {most}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
