"""Reading ahead: the same bytes and the same errors as without, and no thread that outlives its block."""

from __future__ import annotations

import gzip
import io
import random
import threading
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding import gzip_files
from shardkit.encoding.gzip_files import GzipStream
from shardkit.sources.files import read_ahead as module
from shardkit.sources.files.read_ahead import read_ahead


class Failing(io.BytesIO):
    def read(self, num_bytes: int = -1, /) -> bytes:
        data = super().read(num_bytes)
        if not data:
            raise EOFError("cut off")
        return data


def read_all(stream, sizes):
    parts = []
    while True:
        buffer = bytearray(sizes[len(parts) % len(sizes)])
        count = stream.readinto(memoryview(buffer))
        if not count:
            return b"".join(parts)
        parts.append(bytes(buffer[:count]))


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 40), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_bytes_come_whole_and_in_order(data, piece_bytes, sizes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE_BYTES", piece_bytes)
        with read_ahead(io.BytesIO(data)) as stream:
            assert read_all(stream, sizes) == data
            assert stream.read(5) == b""


def test_an_error_comes_behind_the_bytes_before_it(monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 4)
    with read_ahead(Failing(b"0123456789")) as stream:
        assert [stream.read(4) for _ in range(3)] == [b"0123", b"4567", b"89"]
        for _ in range(2):
            with pytest.raises(EOFError, match="cut off"):
                stream.read(4)


def test_no_more_is_read_than_is_bounded_and_no_thread_stays(monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 10)
    source = io.BytesIO(bytes(10_000))
    before = threading.active_count()
    with read_ahead(source) as stream:
        assert stream.read(1) == b"\0"
    assert threading.active_count() == before
    assert source.tell() <= 10 * (2 + module._NUM_PIECES)


@pytest.mark.full
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.booleans(), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(1, 3000),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_gzip_members_are_read_one_after_the_other(members, compressed_bytes, sizes, num_zeros):
    parts = [bytes(n) if is_flat else random.Random(n).randbytes(n) for n, is_flat, _ in members]
    packed = b"".join(
        gzip.compress(part, level) + bytes(num_zeros) for part, (_, _, level) in zip(parts, members, strict=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_files, "COMPRESSED_BYTES", compressed_bytes)
        assert read_all(GzipStream(io.BytesIO(packed)), sizes) == b"".join(parts)
        with pytest.raises((EOFError, zlib.error)):
            read_all(GzipStream(io.BytesIO(packed[: len(packed) - num_zeros - 1])), sizes)


def test_damaged_gzip_is_an_error():
    packed = bytearray(gzip.compress(random.Random(1).randbytes(10_000)))
    packed[-6] ^= 1
    for wrong in (bytes(packed), gzip.compress(b"x") + b"noise" * 10):
        with pytest.raises(zlib.error):
            read_all(GzipStream(io.BytesIO(wrong)), [4096])
