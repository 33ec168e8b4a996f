"""Headers of NumPy's array files; nothing of them is run.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import struct
import warnings
from typing import Any

import numpy as np

from shardkit.encoding.byte_stream import ByteStream
from shardkit.errors import DamagedFileError
from shardkit.file_types import text_kind
from shardkit.messages import shown
from shardkit.sources.arrays.rows import ArrayLayout, checked
from shardkit.sources.files.streams import read_exactly
from shardkit.units import KiB

MAGIC = b"\x93NUMPY"

_LENGTHS = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
_MAX_HEADER_BYTES = 64 * KiB
_MAX_AXES = 64
_KEYS = {"descr", "fortran_order", "shape"}
_HEADER_ERRORS = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, OverflowError, KeyError, IndexError)


def read_layout(stream: ByteStream, where: str) -> ArrayLayout:
    """Returns the layout of the array that follows in a stream; its values follow next.

    Raises:
        DamagedFileError: If the header is damaged or states more than a file holds, or the array is a single value.
    """
    magic = read_exactly(stream, len(MAGIC) + 2)
    if not magic.startswith(MAGIC):
        why = f"it begins with {text_kind(magic)}" if magic else "it is empty"
        raise DamagedFileError("the file is no NumPy array", where=where, why=why)
    length = _LENGTHS.get(magic[len(MAGIC)] if len(magic) > len(MAGIC) else 0)
    if length is None or magic[-1:] != b"\0" or len(magic) < len(MAGIC) + 2:
        raise _damaged(where, f"its version is {shown(magic[len(MAGIC) :])}, which is not known")
    prefix = read_exactly(stream, length.size)
    num_bytes = length.unpack(prefix)[0] if len(prefix) == length.size else 0
    if num_bytes > _MAX_HEADER_BYTES:
        raise _damaged(where, f"its header has {num_bytes:,} bytes")
    header = read_exactly(stream, num_bytes)
    if not num_bytes or len(header) < num_bytes:
        raise _damaged(where, "it ends in the header")
    return _parse(header, magic[len(MAGIC)], len(magic) + len(prefix) + num_bytes, where)


def _parse(header: bytes, version: int, data_start: int, where: str) -> ArrayLayout:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = ast.literal_eval(header.decode("utf-8" if version == 3 else "latin-1").strip(" \n"))
            if not isinstance(found, dict) or set(found) != _KEYS:
                raise ValueError("it has not the entries descr, fortran_order and shape")
            dtype = np.lib.format.descr_to_dtype(found["descr"])
            if dtype.subdtype is not None:
                raise ValueError("its dtype is an array itself")
    except _HEADER_ERRORS as error:
        raise _damaged(where, f"its header cannot be read ({str(error)[:100] or type(error).__name__})") from error
    shape, is_fortran = found["shape"], found["fortran_order"]
    is_shape = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or not isinstance(is_fortran, bool) or len(shape) > _MAX_AXES:
        raise _damaged(where, "its header has no valid shape")
    if not shape:
        raise DamagedFileError("the array has no rows", where=where, why="it is a single value without axes")
    return checked(ArrayLayout(dtype, shape, is_fortran and len(shape) > 1, data_start), where)


def _damaged(where: str, why: str) -> DamagedFileError:
    return DamagedFileError("the NumPy array is damaged", where=where, why=why)
