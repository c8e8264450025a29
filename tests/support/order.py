"""In which order files of tests begin."""
import os

from places import TESTS

# Those that take long, the longest first. With pytest-xdist's loadfile a processor takes a whole file, the next in this
# order: one that begins last would be waited for.
LONG = ["c/test_c.py", "cuda/test_contracts.py", "c/test_neon.py", "cuda/test_cuda.py", "cuda/test_nccl.py",
        "project/test_notebooks.py", "cuda/test_cuda_package.py", "project/test_structure.py", "c/test_fuzz.py",
        "cuda/test_fake_device.py", "models/test_gguf_formats.py", "backends/test_mlx_lm.py", "core/test_ops.py",
        "core/test_distributed.py", "nn/test_train_together.py", "files/test_convert.py"]


def place_of(path):
    name = os.path.relpath(path, TESTS)
    return LONG.index(name) if name in LONG else len(LONG)
