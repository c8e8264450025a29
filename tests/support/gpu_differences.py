"""Tests that differ where arrays are on a GPU (GOMLX_TEST_DEVICE), each with its reason."""

# What an error says of what a GPU does not do on purpose: a test that comes upon it differs. With how many tests of the
# whole suite that may be at most: with more, something is refused that was not.
REFUSALS = {"float64 is not supported on the GPU": 800, "it has no kernel on the GPU": 360}

FORK = "a process that was forked has no GPU"
FLOAT64 = "the test expects values of float64, which is not supported on the GPU"
HOST = "NumPy takes no memory of GPUs"
PROCESSOR = "the test is of the processor's devices, streams or memory"
MODELS = "the test is of the memory of models, which is the processor's; that of the default device is another one"
CANCELLED = "what a device has begun runs to its end, which takes the fake device seconds"
ITSELF = "this run is what it begins"
SLOW = "a chain that grows faster than the fake device evaluates it"

# Pattern of a test's name (of fnmatch, but that [ is itself) and the reason. These are expected to fail.
DIFFERENT = [
    ("core/test_against_mlx.py::*float64*", FLOAT64),
    ("core/test_against_mlx.py::test_case[argmax]", FLOAT64),
    ("core/test_against_mlx.py::test_case[var]", FLOAT64),
    ("core/test_array.py::test_memory_functions", PROCESSOR),
    ("core/test_devices.py::test_devices", PROCESSOR),
    ("core/test_devices.py::test_metal_and_cuda_are_not_there", PROCESSOR),
    ("core/test_devices.py::test_what_is_not_there", PROCESSOR),
    ("core/test_lazy_load.py::test_memory_is_taken_when_values_are_read*", PROCESSOR),
    ("core/test_lifetime.py::test_export_memory_comes_back", PROCESSOR),
    ("core/test_lifetime.py::test_export_outlives_the_array", HOST),
    ("core/test_lifetime.py::test_nothing_leaks", HOST),
    ("core/test_lifetime.py::test_memory_that_is_*kept*", PROCESSOR),
    ("core/test_lazy_load.py::test_what_is_computed_first_works_in_the_memory_of_the_load*", PROCESSOR),
    ("files/test_memory_plan.py::test_what_is_described_is_what_is_loaded*", MODELS),
    ("files/test_memory_plan.py::test_the_plan_is_what_is_used*", MODELS),
    ("files/test_memory_plan.py::test_weights_that_are_not_unpacked_yet_are_not_free[False]", MODELS),
    ("generate/test_sessions.py::test_the_peak_of_a_generation_is_its_own", MODELS),
    ("generate/test_robustness.py::test_a_dropped_stream_gives_everything_back", MODELS),
    ("generate/test_robustness.py::test_a_thousand_tokens_need_no_more_than_a_hundred", MODELS),
    ("generate/test_robustness.py::test_close_gives_the_memory_back_at_once", MODELS),
    ("generate/test_inspection.py::test_more_than_fits_is_said_before_anything_is_computed", MODELS),
    ("models/test_gguf_formats.py::test_memory_is_the_bytes_of_the_file*", MODELS),
    ("models/test_packing.py::test_the_second_pass_takes_the_memory_and_closes_the_file*", MODELS),
]

# Those of matrices that are of the same values in other shapes or layouts, where another library makes them: tests of
# bits alone, of the types that it takes. What the values are, other tests say, and these are not excused.
BITS = "products that cuBLASLt makes have bits that follow from the shape and from how operands lie"
OF_LIBRARY = [
    ("core/test_matmul.py::test_rows_columns_and_batches_do_not_change_bits[*float*]", BITS),
    ("core/test_matmul.py::test_rows_batches_and_layouts_do_not_change_bits_with_a_vector[*float*]", BITS),
    ("core/test_matmul.py::test_threads_do_not_change_bits[*float*]", BITS),
    ("core/test_products.py::test_chosen_matrices_have_the_bits_of_each_alone*", BITS),
]

# These cannot run at all, or not in reasonable time.
SKIPPED = [
    ("core/test_lifetime.py::test_fork*", FORK),
    ("generate/test_robustness.py::test_fork*", FORK),
    ("generate/test_robustness.py::test_multiprocessing[fork]", FORK),
    ("generate/test_robustness.py::test_interrupted_logits_and_eval", CANCELLED),
    ("core/test_lifetime.py::test_signals_interrupt_evaluation", CANCELLED),
    ("core/test_lifetime.py::test_threads_change_a_handle_that_others_read", SLOW),
    ("cuda/test_fake_device.py::test_the_suite_on_the_device*", ITSELF),
]
