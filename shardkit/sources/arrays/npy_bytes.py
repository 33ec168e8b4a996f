"""NumPy's `npy` form in memory: a header and the values of one array; objects are refused.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. The header is matched, not evaluated.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_MAX_HEADER_BYTES = 64 * 1024
_MAX_DIMENSIONS = 32
_DESCR = re.compile(rb"'descr': *'([<>|=]?)([A-Za-z])([0-9]*)'")
_ORDER = re.compile(rb"'fortran_order': *(True|False)")
_SHAPE = re.compile(rb"'shape': *\(((?: *[0-9]{1,18} *,)* *(?:[0-9]{1,18})? *)\)")
_DTYPES = {
    "b1": "bool",
    "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "f2": "float16", "f4": "float32", "f8": "float64",
}  # fmt: skip


class NpyError(Exception):
    """Why some bytes are no array of numbers.

    Args:
        is_pickled: Whether the array holds Python objects.
    """

    def __init__(self, why: str, *, is_pickled: bool = False) -> None:
        super().__init__(why)
        self.is_pickled = is_pickled


class NpyHeader(NamedTuple):
    """What a header says.

    Attributes:
        dtype: Logical dtype of the values.
        is_fortran: Whether the first dimension varies fastest.
        stored_dtype: With its byte order.
    """

    dtype: str
    shape: tuple[int, ...]
    is_fortran: bool
    stored_dtype: np.dtype[Any]
    num_bytes: int


def parse_npy_header(data: bytes | memoryview) -> NpyHeader:
    """Returns the header. Raises NpyError if it is none, or of an array that is not read."""
    start = bytes(data[:12])
    if not start.startswith(_MAGIC):
        raise NpyError("not the npy form")
    size = _LENGTH_BYTES.get(start[6]) if len(start) == 12 else None
    if size is None:
        raise NpyError("an unknown version of the npy form")
    num_bytes = int.from_bytes(start[8 : 8 + size], "little")
    text = bytes(data[8 + size : 8 + size + num_bytes])
    if num_bytes > _MAX_HEADER_BYTES or len(text) < num_bytes:
        raise NpyError(f"its header claims {num_bytes:,} bytes")
    if re.search(rb"'descr': *'\|?O", text):
        raise NpyError("pickled objects, which run code when they are read", is_pickled=True)
    descr, order, shape = _DESCR.search(text), _ORDER.search(text), _SHAPE.search(text)
    if descr is None or order is None or shape is None:
        raise NpyError("not an array of plain numbers")
    code = (descr.group(2) + descr.group(3)).decode()
    if code not in _DTYPES:
        raise NpyError(f"an array of {descr.group(0).decode()[9:]}")
    sizes = tuple(int(n) for n in shape.group(1).split(b",") if n.strip())
    if len(sizes) > _MAX_DIMENSIONS:
        raise NpyError(f"an array of {len(sizes)} dimensions")
    dtype = np.dtype((descr.group(1) or b"=").decode() + code)
    return NpyHeader(_DTYPES[code], sizes, order.group(1) == b"True", dtype, 8 + size + num_bytes)


def read_npy(data: bytes | memoryview) -> npt.NDArray[Any]:
    """Returns the array, in the machine's byte order and row-major.

    Raises:
        NpyError: If it is none of numbers, or not as large as its header says.
    """
    header = parse_npy_header(data)
    wanted = math.prod(header.shape) * header.stored_dtype.itemsize
    if len(data) - header.num_bytes != wanted:
        raise NpyError(f"{len(data) - header.num_bytes:,} bytes of values where its header says {wanted:,}")
    values = np.frombuffer(data, dtype=header.stored_dtype, offset=header.num_bytes)
    array = values.reshape(header.shape, order="F" if header.is_fortran else "C")
    return np.ascontiguousarray(array, dtype=header.stored_dtype.newbyteorder("=")).reshape(header.shape)
