"""Writing files: under a temporary name beside their own, renamed at the end, so that what read the old file goes on
reading it."""
import os
import tempfile

from gomlx import _gomlx as mx
from gomlx._files.reading import is_path


def replace(function, file, extension, writer):
    """Calls writer(stream) with a file object, or with a temporary file that then replaces the file at a path."""
    if not is_path(file):
        if not hasattr(file, "write"):
            raise ValueError(f"{function}: expected a path or a file object opened for writing, got "
                             f"{type(file).__name__}")
        writer(file)
        return
    path = with_extension(file, extension)
    folder, name = os.path.split(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=name + ".", dir=folder or ".")
    except OSError as error:
        raise RuntimeError(f"{function}: cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            writer(stream)
        try:
            mode = os.stat(path).st_mode & 0o777
        except OSError:
            mode = 0o666 & ~umask()
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def with_extension(file, extension):
    path = os.fspath(file)
    path = os.fsdecode(path) if isinstance(path, bytes) else path
    return path if path.endswith(extension) else path + extension


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def bytes_of(array):
    """The elements of an array in row-major order."""
    if array.size == 0:
        return b""
    flat = mx.contiguous(mx.reshape(array, [-1]))
    return memoryview(flat if array.dtype == mx.bool_ else mx.view(flat, mx.uint8)).cast("B")
