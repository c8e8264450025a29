"""gomlx.core.array as others see it: copies and pickles, subclasses, the buffer protocol, DLPack."""
import copy
import ctypes
import hashlib
import pickle

import numpy as np
import pytest
from arrays import NUMPY_DTYPES, name_of, named

import gomlx
import gomlx.core as mx

# ---- copies and pickles ----

@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, "bfloat16"])
def test_pickle_and_copy(dtype):
    a = mx.array([[1, 0], [2, 3]]).astype(named(dtype)).T
    for b in (pickle.loads(pickle.dumps(a)), copy.copy(a), copy.deepcopy(a)):
        assert type(b) is mx.array and b is not a
        assert b.dtype == a.dtype and b.shape == a.shape and b.tolist() == a.tolist()
    b += 1
    assert b.tolist() != a.tolist() or dtype == "bool"


class Labelled(mx.array):
    label = "none"


def test_before_init_an_array_is_empty():
    a = mx.array.__new__(mx.array)
    assert a.shape == (0,) and a.tolist() == [] and "array(" in repr(a)
    a.__init__([1, 2], mx.float32)
    assert a.tolist() == [1, 2] and a.dtype == mx.float32

    class Pair(mx.array):
        def __init__(self, first, second):
            super().__init__([first, second])
            self.first = first

    assert Pair(3, 4).tolist() == [3, 4] and Pair(3, 4).first == 3 and type(Pair(3, 4) + 1) is mx.array


def test_subclass():
    a = Labelled([1, 2])
    a.label = "x"
    assert isinstance(a, mx.array) and a.tolist() == [1, 2] and type(a + 1) is mx.array
    assert (1 + a).tolist() == [2, 3] and (mx.array([1, 1]) + a).tolist() == [2, 3] and mx.exp(a).shape == (2,)
    b = pickle.loads(pickle.dumps(a))
    assert type(b) is Labelled and b.label == "x" and b.tolist() == [1, 2]
    a += 1
    assert type(a) is Labelled and a.label == "x" and a.tolist() == [2, 3]
    assert np.asarray(a).tolist() == [2, 3]


def test_state_methods():
    a, b = mx.array([[1.5, 2]], mx.bfloat16), mx.array(0)
    b.__setstate__(a.__getstate__())
    assert b.dtype == mx.bfloat16 and b.tolist() == [[1.5, 2]]
    for state in (None, (1, 2), (mx.float32, (2,), b"12")):
        with pytest.raises((ValueError, TypeError)):
            b.__setstate__(state)
    assert a.__div__(2).tolist() == [[0.75, 1]] and a.__rdiv__(3).tolist() == [[2, 1.5]]


def test_hostile_pickles():
    make = mx.array([1]).__reduce__()[0]
    for arguments in ((mx.array, mx.int32, (2,), b"1234"), (mx.array, mx.int32, (-1,), b""),
                      (int, mx.int32, (1,), b"1234"),
                      (mx.array, None, (1,), b"1234"), (mx.array, mx.int32, (2**31 - 1,) * 3, b""),
                      (mx.array, 1, (1,), b"1")):
        with pytest.raises((ValueError, TypeError)):
            make(*arguments)


# ---- the buffer protocol ----

@pytest.mark.parametrize("dtype", list(NUMPY_DTYPES))
def test_numpy_shares_memory(dtype):
    a = mx.array(np.arange(12).reshape(3, 4) % 3, named(dtype))
    mx.eval(a)
    view = np.asarray(a)
    assert not view.flags.owndata and view.flags.writeable and view.dtype.name == dtype
    assert np.asarray(a).__array_interface__["data"][0] == view.__array_interface__["data"][0]
    assert memoryview(a.T).strides == (a.itemsize, 4 * a.itemsize) and memoryview(a).shape == (3, 4)


def test_writing_through_a_view():
    a = mx.array([1, 2, 3])
    np.asarray(a)[0] = 7
    assert a.tolist() == [7, 2, 3]


def test_memory_with_other_readers_is_read_only():
    a = mx.array([1, 2, 3])
    later = a + 1
    assert not np.asarray(a).flags.writeable
    assert later.tolist() == [2, 3, 4]
    b = mx.array([1, 2, 3])
    part = b[1:]
    mx.eval(part)
    assert not np.asarray(b).flags.writeable and not np.asarray(part).flags.writeable
    assert not np.asarray(mx.broadcast_to(mx.array(1), (3,))).flags.writeable
    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_char * 12).from_buffer(b)


def test_an_export_is_not_reused():
    a = mx.array(np.arange(1000, dtype=np.float32))
    view = np.asarray(a)
    b = a * 2
    del a
    for _ in range(10):
        b = b + 1
        mx.eval(b)
    np.testing.assert_array_equal(view, np.arange(1000))
    c = mx.array(np.ones(1000, np.float32))
    view = np.asarray(c)
    c += 1
    mx.eval(c)
    assert view[0] == 1 and c[0].item() == 2


def test_buffer_flags():
    a = mx.array([[1, 2, 3], [4, 5, 6]])
    assert bytes(a) == np.arange(1, 7, dtype=np.int32).tobytes()
    assert bytes(a.T) == np.arange(1, 7, dtype=np.int32).reshape(2, 3).T.tobytes()
    assert hashlib.sha256(a).digest() == hashlib.sha256(bytes(a)).digest()      # asks for plain bytes
    with pytest.raises(BufferError, match="contiguous"):
        hashlib.sha256(a.T)
    half = mx.array([[1.0, -2.0], [0.5, 3.0]], mx.bfloat16)
    with pytest.raises(BufferError, match=r"astype\(float32\).*view\(uint16\)"):
        memoryview(half)
    assert bytes(half.T) == bytes(half.view(mx.uint16).T) == b"\x80\x3f\x00\x3f\x00\xc0\x40\x40"
    assert hashlib.sha256(half).digest() == hashlib.sha256(bytes(half)).digest()
    assert bytes(mx.array(3)) == np.int32(3).tobytes()
    assert memoryview(mx.array(np.zeros((0, 3)))).nbytes == 0
    assert memoryview(mx.array(1.5))[()] == 1.5


def test_array_method():
    a = mx.array([1.5, 2.5])
    assert a.__array__().tolist() == [1.5, 2.5] and a.__array__(np.float64).dtype == np.float64
    assert np.array(a, copy=True).flags.owndata
    b = mx.array([1.5, 2.5], mx.bfloat16)
    assert b.__array__(np.float32).tolist() == [1.5, 2.5]
    for read in (b.__array__, lambda: np.asarray(b), lambda: np.array(b, copy=True)):
        with pytest.raises(BufferError, match=r"astype\(float32\)"):
            read()
    assert np.asarray(b, np.float32).tolist() == b.numpy().tolist() == [1.5, 2.5] and b.numpy().dtype == np.float32
    assert a.numpy().ctypes.data == np.asarray(a).ctypes.data and mx.array(2).numpy().shape == ()
    assert mx.array([1]).__array_namespace__() is mx


# ---- DLPack ----

@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_dlpack_round_trip(dtype):
    x = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    if dtype == "bool" and np.lib.NumpyVersion(np.__version__) < "1.25.0":
        pytest.skip("NumPy before 1.25 has no bool in DLPack")
    a = mx.from_dlpack(x)
    assert name_of(a.dtype) == ("float32" if dtype == "float64" else dtype)
    assert name_of(mx.from_dlpack(x, copy=False).dtype) == dtype
    np.testing.assert_array_equal(np.asarray(a), x)
    np.testing.assert_array_equal(np.from_dlpack(mx.array(x)), mx.array(x).tolist())
    np.testing.assert_array_equal(np.from_dlpack(a.T), x.T)
    np.testing.assert_array_equal(np.asarray(mx.from_dlpack(x[::-1, ::2])), x[::-1, ::2])


def test_dlpack_of_complex128():
    x = np.arange(6).reshape(2, 3) * (1 + 2j)
    for source in (x, x.T, x[::-1, ::2], x[:0], np.array(3 - 1j)):
        a = mx.from_dlpack(source)
        assert a.dtype == mx.complex64 and a.shape == source.shape and a.tolist() == source.tolist()


def test_dlpack_of_tensors_with_a_gradient():
    torch = pytest.importorskip("torch")
    assert mx.array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_dlpack_copies_unless_it_is_asked_to_share():
    x = np.arange(6, dtype=np.float32)
    shared = mx.from_dlpack(x, copy=False)
    copied = [mx.from_dlpack(x), mx.from_dlpack(x, copy=None), mx.from_dlpack(x, copy=True),
              mx.from_dlpack(x[::-1])[::-1]]
    x[0] = 9
    assert shared[0].item() == 9 and not np.asarray(shared).flags.writeable       # it is somebody else's
    assert [a[0].item() for a in copied] == [0, 0, 0, 0]
    assert all(np.asarray(a).flags.writeable for a in copied[:3])
    b = mx.array([1.0, 2.0])
    mx.eval(b)
    assert np.from_dlpack(b).__array_interface__["data"][0] == np.asarray(b).__array_interface__["data"][0]
    c = mx.from_dlpack(mx.array([1.5], mx.bfloat16))
    assert c.dtype == mx.bfloat16 and c.item() == 1.5
    d = mx.from_dlpack(mx.array([[1, 2], [3, 4]]).T, copy=True)
    assert d.tolist() == [[1, 3], [2, 4]]


def test_a_bare_dlpack_capsule():
    x = np.arange(3)
    capsule = x.__dlpack__()
    assert mx.from_dlpack(capsule).tolist() == [0, 1, 2]
    with pytest.raises(ValueError):                # it was consumed
        mx.from_dlpack(capsule)
    shared = mx.from_dlpack(x.__dlpack__(), copy=False)
    x[1] = 7
    assert shared.tolist() == [0, 7, 2]


def test_dimensions_above_int32_are_refused_with_their_number():
    wide = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (2, 2**31), (0, 0))
    for make in (mx.array, mx.asarray, lambda x: mx.asarray(x, copy=False), mx.from_dlpack):
        with pytest.raises(OverflowError, match="2147483648"):
            make(wide)


def test_dlpack_arguments():
    a = mx.array([1.0])
    assert a.__dlpack_device__() == (1, 0)
    assert '"dltensor"' in repr(a.__dlpack__())
    assert '"dltensor_versioned"' in repr(a.__dlpack__(max_version=(1, 0)))
    assert '"dltensor_versioned"' in repr(a.__dlpack__(max_version=(1, 3), dl_device=(1, 0), copy=True, stream=None))
    assert '"dltensor"' in repr(a.__dlpack__(stream=1))
    with pytest.raises(BufferError):
        a.__dlpack__(dl_device=(2, 0))
    for wrong in ({"dl_device": [1, 0]}, {"dl_device": "ab"}, {"max_version": [1, 0]}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            a.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        mx.from_dlpack([1])


def test_asarray():
    x = np.arange(3, dtype=np.int32)
    shared = mx.asarray(x, copy=False)
    x[0] = 5
    assert shared.tolist() == [5, 1, 2] and mx.asarray(x, copy=True).tolist() == [5, 1, 2]
    assert mx.asarray(1, dtype=mx.float32).dtype == mx.float32 and mx.asarray([1, 2]).tolist() == [1, 2]
    for bad in ([1], 1, np.zeros(2, np.complex128)):
        with pytest.raises(ValueError):
            mx.asarray(bad, copy=False)
    with pytest.raises(ValueError):
        mx.asarray(x, mx.float32, copy=False)


def test_torch():
    torch = pytest.importorskip("torch")
    t = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert mx.array(t).dtype == mx.bfloat16 and mx.from_dlpack(t.T).tolist() == t.T.tolist()
    assert torch.from_dlpack(mx.array([1.5], mx.bfloat16)).tolist() == [1.5]


def test_buffers_without_strides():
    """ctypes gives a shape and no strides: the memory is contiguous then."""
    flat, grid, one = (ctypes.c_float * 3)(1, 2, 3), ((ctypes.c_int32 * 3) * 2)((1, 2, 3),
                                                                                (4, 5, 6)), ctypes.c_double(2.5)
    for read in (mx.array, mx.asarray):
        assert read(flat).tolist() == [1, 2, 3] and read(flat).dtype == mx.float32
        assert read(grid).tolist() == [[1, 2, 3], [4, 5, 6]] and read(grid).dtype == mx.int32
        assert read(one).item() == 2.5
        assert read((ctypes.c_float * 0)()).shape == (0,)
    assert mx.array(grid, mx.float16).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (mx.array([1.0, 1.0, 1.0]) + flat).tolist() == [2, 3, 4]
    assert mx.array(memoryview(b"abcd").cast("B", (2, 2))).tolist() == [[97, 98], [99, 100]]
    assert gomlx.sample((ctypes.c_float * 3)(1, 9, 3), temperature=0) == [1]
