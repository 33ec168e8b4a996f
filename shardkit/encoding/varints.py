"""Integers of seven bits a byte, as Protocol Buffers, Thrift, Avro and Snappy write them."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_BYTES = 10


class VarintError(ValueError):
    """An integer that does not end."""


def read_varint(data: Iterable[int], max_bytes: int = _MAX_BYTES) -> tuple[int, int]:
    """Returns the integer that some bytes begin with, without a sign, and of how many bytes it is.

    Raises:
        VarintError: If it does not end within `max_bytes`, or the bytes do before.
    """
    value = 0
    for index, byte in zip(range(max_bytes), data, strict=False):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, index + 1
    raise VarintError("a number is too long")
