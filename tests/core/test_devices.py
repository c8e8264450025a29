"""Devices, streams, memory limits, and what stands for hardware and processes that are not there."""
import importlib.util
import subprocess
import sys
import threading
import warnings

import pytest

import gomlx.core as mx


def test_devices():
    assert repr(mx.cpu) == "DeviceType.cpu" and mx.cpu != mx.gpu and mx.DeviceType(0) is mx.cpu
    cpu = mx.default_device()
    assert repr(cpu) == "Device(cpu, 0)" and cpu.type is mx.cpu
    assert cpu == mx.Device(mx.cpu) == mx.cpu and mx.cpu == cpu and hash(cpu) == hash(mx.Device(mx.cpu, 0))
    assert cpu != mx.Device(mx.cpu, 1) and cpu != mx.Device(mx.gpu) and cpu != "cpu"
    assert mx.is_available(mx.cpu) and not mx.is_available(mx.gpu) and not mx.is_available(mx.Device(mx.cpu, 1))
    assert mx.device_count(mx.cpu) == 1 and mx.device_count(mx.gpu) == 0
    assert {"architecture", "device_name"} <= mx.device_info().keys() and mx.device_info(mx.gpu) == {}
    mx.set_default_device(mx.cpu)
    assert mx.default_device() == cpu


def test_what_is_not_there():
    for call in (lambda: mx.set_default_device(mx.gpu), lambda: mx.default_stream(mx.gpu),
                 lambda: mx.new_stream(mx.gpu),
                 lambda: mx.add(1, 2, stream=mx.gpu)):
        with pytest.raises(ValueError):
            call()
    for call in (lambda: mx.default_stream(mx.Device(mx.cpu, 3)), lambda: mx.exp(1, stream=mx.Device(mx.cpu, 3))):
        with pytest.raises(IndexError):
            call()
    for call in (lambda: mx.Device(0), lambda: mx.Device(mx.cpu, "0"), lambda: mx.Stream(), lambda: mx.is_available(3),
                 lambda: mx.set_default_device("cpu"), lambda: mx.default_stream(3), lambda: mx.stream(None),
                 lambda: mx.set_default_stream(mx.cpu), lambda: mx.add(1, 2, stream=3), lambda: mx.synchronize("x"),
                 lambda: mx.device_count(mx.Device(mx.cpu))):
        with pytest.raises(TypeError):
            call()


def test_streams():
    one, other = mx.new_stream(mx.cpu), mx.new_thread_unsafe_stream(mx.default_device())
    local = mx.new_thread_local_stream(mx.cpu)
    assert one != other and one == one and one.device == mx.cpu and hash(one) == hash(one)
    assert repr(one).startswith("Stream(Device(cpu, 0), ") and repr(local).startswith("ThreadLocalStream(Device(cpu, "
                                                                                      "0), ")
    a = mx.array([1.0, 2.0])
    for stream in (None, one, local, mx.cpu, mx.default_device(), mx.default_stream(mx.cpu)):
        assert mx.add(a, 1, stream=stream).tolist() == [2, 3] and a.sum(stream=stream).item() == 3
    mx.synchronize()
    mx.synchronize(one)
    mx.synchronize(mx.cpu)


def test_the_default_stream_belongs_to_the_thread_and_the_context():
    first, one = mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)
    with mx.stream(one) as nothing:
        assert nothing is None and mx.default_stream(mx.cpu) == one
        with mx.stream(mx.cpu):
            assert mx.default_stream(mx.cpu) == one
        seen = []
        thread = threading.Thread(target=lambda: seen.append(mx.default_stream(mx.cpu)))
        thread.start()
        thread.join()
        assert seen == [first]
    assert mx.default_stream(mx.cpu) == first
    context = mx.StreamContext(one)
    for _ in range(2):
        with pytest.raises(KeyError), context:
            raise KeyError
        assert mx.default_stream(mx.cpu) == first
    mx.set_default_stream(one)
    assert mx.default_stream(mx.cpu) == one
    mx.clear_streams()
    assert mx.default_stream(mx.cpu) == first


def test_a_thread_local_stream_is_another_one_in_each_thread():
    local, seen = mx.new_thread_local_stream(mx.cpu), []

    def look():
        with mx.stream(local):
            seen.append(mx.default_stream(mx.cpu))

    look()
    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen[0] == seen[1] != seen[2]


def test_any_thread_uses_any_stream():
    stream, results = mx.new_stream(mx.cpu), []

    def work():
        with mx.stream(stream):
            results.append(mx.arange(1000).sum().item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [499500] * 4


def test_memory_limits():
    old = mx.set_cache_limit(1 << 20)
    assert mx.set_cache_limit(old) == 1 << 20
    old = mx.set_memory_limit(1 << 40)
    assert mx.set_memory_limit(old) == 1 << 40
    assert mx.set_wired_limit(1 << 20) == 0
    for bad in (-1, 1.5, "1", None):
        for function in (mx.set_cache_limit, mx.set_memory_limit):
            with pytest.raises(TypeError):
                function(bad)
    mx.clear_cache()
    assert mx.get_cache_memory() == 0 <= mx.get_active_memory() <= mx.get_peak_memory()


def test_metal_and_cuda_are_not_there():
    assert not mx.metal.is_available() and not mx.cuda.is_available()
    with pytest.warns(DeprecationWarning, match="gomlx.core"):
        assert mx.metal.get_active_memory() == mx.get_active_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert mx.metal.device_info() == {} and mx.metal.set_wired_limit(0) == 0
    assert mx.metal.start_capture("trace") is None and mx.metal.stop_capture() is None


def test_a_group_of_one():
    group = mx.distributed.init()
    assert group.rank() == 0 and group.size() == 1 and isinstance(group, mx.distributed.Group)
    assert mx.distributed.is_available("mpi") == (importlib.util.find_spec("mpi4py") is not None)
    x = mx.array([1, 2])
    for function in ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter"):
        assert getattr(mx.distributed, function)(x, group=group, stream=mx.cpu).tolist() == [1, 2]
    assert mx.distributed.all_sum(3).item() == 3
    with pytest.raises(TypeError):
        mx.distributed.all_sum(x, group=3)
    for call in (lambda: mx.distributed.send(x, 0), lambda: mx.distributed.recv((2,), mx.int32, 0),
                 lambda: mx.distributed.recv_like(x, 0), lambda: mx.distributed.init(backend="pigeon")):
        with pytest.raises(ValueError):
            call()
    for call in (lambda: group.split(0), lambda: mx.distributed.init(strict=True)):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(TypeError):
        mx.distributed.Group()


@pytest.mark.parametrize("name", ["cuda", "distributed", "fast", "fft", "linalg", "metal", "random"])
def test_submodules_can_be_imported(name):
    program = f"import gomlx.core.{name} as module; import gomlx.core as mx; assert module is mx.{name}"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_every_name_of_the_list_is_there():
    assert len(set(mx.__all__)) == len(mx.__all__)
    assert [name for name in mx.__all__ if not hasattr(mx, name)] == []
    assert mx.pow is mx.power and mx.acos is mx.arccos and mx.newaxis is None


@pytest.mark.parametrize("error, make", [(RuntimeError, lambda: mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu)),
                                         (IndexError, lambda: mx.arange(3)[mx.array([7])])])
def test_errors_of_async_eval_come_out_of_synchronize(error, make):
    mx.synchronize()
    with pytest.raises(error) as plain:
        mx.eval(make())
    bad, good = make(), mx.ones(2) + 1
    mx.async_eval(bad)
    mx.async_eval(good)
    with pytest.raises(error) as told:
        mx.synchronize()
    assert str(told.value) == str(plain.value)
    mx.synchronize()                                       # it is told once
    assert good.tolist() == [2, 2]
    for read in (bad.tolist, lambda: mx.eval(bad), lambda: mx.eval(bad + 1),
                 lambda: mx.synchronize(mx.async_eval(bad))):
        with pytest.raises(error) as later:
            read()
        assert str(plain.value) in str(later.value)


def test_kernels_for_devices_that_are_not_there():
    described = mx.fast.metal_kernel(name="one", input_names=["x"], output_names=["y"], source="y[0] = x[0];")
    with pytest.raises(RuntimeError, match="No Metal back-end"):
        described(inputs=[mx.ones(2)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(2,)],
                  output_dtypes=[mx.float32], stream=mx.gpu)
    with pytest.raises(RuntimeError, match="No CUDA back-end"):
        mx.fast.cuda_kernel(name="one", input_names=["x"], output_names=["y"], source="")
