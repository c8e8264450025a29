"""Tests that differ where arrays are on a GPU (GOMLX_TEST_DEVICE), each with its reason."""

# What an error says of what a GPU does not do: a test that comes upon it differs.
REFUSALS = ["float64 is not supported on the GPU", "has no kernel on the GPU"]

FORK = "a process that was forked has no GPU"
FLOAT64 = "the test expects values of float64, which is not supported on the GPU"
PROCESSOR = "the test is of the processor's devices, streams or memory"
CANCELLED = "what a device has begun runs to its end, which takes the fake device seconds"
SLOW = "a chain that grows faster than the fake device evaluates it"

# Pattern of a test's name (of fnmatch, but that [ is itself) and the reason. These are expected to fail.
DIFFERENT = [
    ("core/test_against_mlx.py::*float64*", FLOAT64),
    ("core/test_against_mlx.py::test_case[argmax]", FLOAT64),
    ("core/test_against_mlx.py::test_case[nan_to_num]", FLOAT64),
    ("core/test_against_mlx.py::test_case[var]", FLOAT64),
    ("core/test_array.py::test_memory_functions", PROCESSOR),
    ("core/test_devices.py::test_devices", PROCESSOR),
    ("core/test_devices.py::test_metal_and_cuda_are_not_there", PROCESSOR),
    ("core/test_devices.py::test_what_is_not_there", PROCESSOR),
    ("core/test_lazy_load.py::test_memory_is_taken_when_values_are_read*", PROCESSOR),
    ("core/test_lifetime.py::test_export_memory_comes_back", PROCESSOR),
    ("files/test_memory_plan.py::test_what_is_described_is_what_is_loaded*", PROCESSOR),
    ("generate/test_sessions.py::test_the_peak_of_a_generation_is_its_own", PROCESSOR),
    ("generate/test_robustness.py::test_a_dropped_stream_gives_everything_back", PROCESSOR),
    ("generate/test_inspection.py::test_more_than_fits_is_said_before_anything_is_computed", PROCESSOR),
    ("core/test_lazy_load.py::test_what_is_computed_first_works_in_the_memory_of_the_load*", PROCESSOR),
]

# These cannot run at all, or not in reasonable time.
SKIPPED = [
    ("core/test_lifetime.py::test_fork*", FORK),
    ("generate/test_robustness.py::test_fork*", FORK),
    ("generate/test_robustness.py::test_multiprocessing[fork]", FORK),
    ("generate/test_robustness.py::test_interrupted_logits_and_eval", CANCELLED),
    ("core/test_lifetime.py::test_signals_interrupt_evaluation", CANCELLED),
    ("core/test_lifetime.py::test_threads_change_a_handle_that_others_read", SLOW),
]
