"""Bytes that are no gzip file end in the error of a damaged file, whatever the library raises."""

import gzip
import tracemalloc

import pytest

from shardkit.encoding.gzip_files import inflate_file
from shardkit.errors import DamageError


def test_members_are_inflated():
    assert inflate_file(gzip.compress(b"ab", mtime=0) + gzip.compress(b"c"), 3, "here") == b"abc"


@pytest.mark.parametrize(
    ("data", "size"),
    [(b"x" * 30, 0), (b"\x1f\x8b\x08", 0), (b"x", 1), (b"x" * 30, 5), (gzip.compress(b"ab", mtime=0)[:-4], 2)],
)
def test_other_bytes_are_damage(data, size):
    with pytest.raises(DamageError, match="a file cannot be inflated"):
        inflate_file(data, size, "here")


def test_no_more_is_held_than_the_index_states():
    bomb = gzip.compress(bytes(2**26))
    tracemalloc.start()
    try:
        with pytest.raises(DamageError, match="exactly 0 bytes"):
            inflate_file(bomb, 0, "here")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**23
