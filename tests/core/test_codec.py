"""Blocks: one gzip member for everybody, each block alone for us."""

import gzip
import io
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.codec import (
    GZIP_HEADER,
    GZIP_TRAILER_BYTES,
    compress_block,
    crc32,
    crc32_combine,
    gzip_trailer,
    inflate_block,
)
from shardkit.errors import DamageError

compressible = st.builds(lambda word, n: word * n, st.binary(min_size=1, max_size=50), st.integers(1, 5000))
noise = st.builds(lambda seed, n: random.Random(seed).randbytes(n), st.integers(), st.integers(1, 200_000))
blocks = st.lists(compressible | noise, min_size=1, max_size=5)


def assemble(parts):
    packed = [compress_block(p, "gzip") for p in parts]
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return b"".join([GZIP_HEADER, *packed, gzip_trailer(crc, sum(map(len, parts)))]), packed


@given(blocks)
@settings(max_examples=50)
def test_a_shard_is_one_plain_gzip_member_and_each_block_opens_alone(parts):
    whole, packed = assemble(parts)
    assert gzip.decompress(whole) == b"".join(parts)
    member = zlib.decompressobj(31)
    assert member.decompress(whole) == b"".join(parts)
    assert member.eof
    assert member.unused_data == b""
    for part, data in zip(parts, packed, strict=True):
        assert inflate_block(data, len(part), "x") == part
        # zlib alone, as any other reader would.
        assert zlib.decompressobj(-15).decompress(data) == part


def test_noise_is_stored_and_costs_next_to_nothing():
    data = random.Random(1).randbytes(1 << 20)
    packed = compress_block(data, "gzip")
    assert len(data) < len(packed) <= len(data) + 100


def test_what_shrinks_is_deflated():
    assert len(compress_block(b"abc" * 100_000, "gzip")) < 3000


def test_none_leaves_the_bytes_alone():
    assert compress_block(b"abc" * 100, "none") == b"abc" * 100


def test_the_same_bytes_every_time():
    data = b"".join(random.Random(i).randbytes(20) + b"padding" * 9 for i in range(5000))
    assert compress_block(data, "gzip") == compress_block(data, "gzip")
    assert GZIP_HEADER[4:8] == bytes(4), "no time stamp"


@pytest.mark.parametrize("data", [b"row,of,text\n" * 3000, random.Random(3).randbytes(5000)])
def test_a_wrong_border_or_size_is_found(data):
    packed = compress_block(data, "gzip")
    for damaged, size in (
        (packed[:-1], len(data)),
        (packed + b"x", len(data)),
        (packed[: len(packed) // 2], len(data)),
        (packed, len(data) - 1),
        (packed, len(data) + 1),
        (b"", len(data)),
        (packed + packed, len(data)),
    ):
        with pytest.raises(DamageError):
            inflate_block(damaged, size, "x")


def test_a_bomb_is_stopped_at_the_stated_size():
    bomb = compress_block(bytes(50_000_000), "gzip")
    with pytest.raises(DamageError, match="wrong size"):
        inflate_block(bomb, 1000, "x")


@given(st.binary(max_size=500), st.binary(max_size=500))
def test_checksums_of_pieces_combine(first, second):
    assert crc32_combine(crc32(first), crc32(second), len(second)) == zlib.crc32(first + second)


def test_size_in_the_trailer_wraps_at_four_gibibytes():
    assert gzip_trailer(0, 2**32 + 5)[-4:] == (5).to_bytes(4, "little")
    assert len(gzip_trailer(0, 0)) == GZIP_TRAILER_BYTES
    assert io.BytesIO(GZIP_HEADER).read(2) == b"\x1f\x8b"
