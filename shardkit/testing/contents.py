"""Changes of the bytes of a file: compressed, cut off, damaged; the same every time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import pyarrow as pa

_NUM_CUTS = 10

PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda content: cast(bytes, pa.compress(content, "zstd", asbytes=True)),
}
"""Ways to compress a file as a whole."""


def cut_lengths(num_bytes: int) -> list[int]:
    """Returns lengths, at least 1, at which a test cuts off a file of so many bytes."""
    spread = range(1, num_bytes, num_bytes // _NUM_CUTS + 1)
    edges = (4, 8, 12, num_bytes // 2, num_bytes - 9, num_bytes - 8, num_bytes - 2, num_bytes - 1)
    return sorted(length for length in {*spread, *edges} if 0 < length < num_bytes)


def mutations(content: bytes, num_mutations: int) -> Iterator[bytes]:
    """Yields the content so many times with some of its bytes changed, removed or doubled."""
    rng = random.Random(0)
    for number in range(num_mutations):
        data = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            # Headers and indexes mostly are at one of the ends.
            edge = min(len(data), 120)
            place = rng.choice((rng.randrange(len(data)), rng.randrange(edge), len(data) - 1 - rng.randrange(edge)))
            if number % 4 < 2:
                data[place] ^= 1 << rng.randrange(8)
            elif number % 4 == 2:
                data[place : place + rng.randint(1, 9)] = b"\0" * rng.randint(0, 9)
            else:
                data[place:place] = data[place : place + 20]
            data = data or bytearray(b"\0")
        yield bytes(data)
