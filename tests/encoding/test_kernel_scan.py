"""The kernel follows frames and gathers pieces as the reference does, and never leaves the buffer."""

import mmap
import random
import struct

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding import kernel_reference as reference
from shardkit.encoding.tfrecord import frame, masked_crc32c
from tests.support.examples import draws
from tests.support.wire.kernel_comparison import find_scan_difference
from tests.support.wire.kernel_threads import runs_beside_python
from tests.support.wire.wire_forms import mutate

_kernel = pytest.importorskip("shardkit._kernel", reason="the kernel was not built here", exc_type=ImportError)

seeds = st.integers(0, 2**64 - 1).map(random.Random)


@given(st.lists(st.binary(max_size=300), max_size=8), seeds)
@settings(max_examples=draws(300), deadline=None)
def test_scans_as_the_reference_does(records, rng):
    frames = b"".join(map(frame, records))
    starts, lengths, states, end = _kernel.scan(frames)
    spans = zip(np.frombuffer(starts, np.int64), np.frombuffer(lengths, np.int64), strict=True)
    assert [frames[a : a + n] for a, n in spans] == records
    assert bytes(states) == bytes(len(records))
    assert end == len(frames)
    for _ in range(5):
        assert find_scan_difference(_kernel, mutate(rng, frames, frames)) is None


@pytest.mark.parametrize("length", [0, 1, 2, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 16, 2**64 - 1])
@pytest.mark.parametrize("num_left", [0, 1, 3, 4, 5, 100])
def test_lengths_with_the_right_crc_are_not_trusted(length, num_left):
    header = struct.pack("<Q", length)
    frames = frame(b"good") + header + struct.pack("<I", masked_crc32c(header)) + bytes(num_left)
    assert find_scan_difference(_kernel, frames) is None


@pytest.mark.parametrize("size", [*range(70), 255, 256, 1023, 1024, 1025, 4095, 4096, 8191, 8192, 100_000, 1_000_003])
def test_crcs_of_records_of_every_size(size):
    record = random.Random(size).randbytes(size)
    frames = frame(record) + frame(b"next")
    assert find_scan_difference(_kernel, frames) is None
    assert bytes(_kernel.scan(frames)[2]) == b"\0\0"
    if size:
        at = 12 + random.Random(size).randrange(size)
        damaged = frames[:at] + bytes([frames[at] ^ 0x10]) + frames[at + 1 :]
        assert bytes(_kernel.scan(damaged)[2]) == b"\1\0"


def test_buffers_of_any_owner_are_scanned():
    frames = frame(b"one") + frame(b"two")
    shifted = memoryview(b"x" + frames)[1:]
    for data in (
        frames,
        bytearray(frames),
        memoryview(frames),
        shifted,
        np.frombuffer(frames, np.uint8),
        pa.py_buffer(frames),
    ):
        assert [bytes(part) if i < 3 else part for i, part in enumerate(_kernel.scan(data))] == [
            np.array([12, 31]).tobytes(),
            np.array([3, 3]).tobytes(),
            b"\0\0",
            len(frames),
        ]


@pytest.mark.parametrize("arguments", [(), (None,), ("text",), (memoryview(b"abcd")[::2],), (b"", True, b"")])
def test_what_is_no_buffer_is_refused(arguments):
    with pytest.raises((TypeError, ValueError, BufferError)):
        _kernel.scan(*arguments)


@given(st.lists(st.binary(max_size=500), min_size=1, max_size=5), seeds)
@settings(max_examples=draws(200), deadline=None)
def test_gathers_as_the_reference_does(buffers, rng):
    starts, sizes = [], []
    for _ in range(rng.randrange(30)):
        i = rng.randrange(len(buffers))
        start = rng.randint(0, len(buffers[i]))
        starts.append(sum(map(len, buffers[:i])) + start)
        sizes.append(rng.randint(0, len(buffers[i]) - start))
    starts, sizes = np.array(starts, np.int64), np.array(sizes, np.int64)
    expected = b"".join(b"".join(buffers)[a : a + n] for a, n in zip(starts, sizes, strict=True))
    assert bytes(_kernel.gather(buffers, starts, sizes)) == expected
    assert bytes(_kernel.gather(b"".join(buffers), starts, sizes)) == expected
    assert reference.gather(buffers, starts, sizes) == expected


@pytest.mark.parametrize("data", [b"abc", [b"abc"], [b"ab", b"c"], [b"", b"abc", b""], []])
@pytest.mark.parametrize(
    ("starts", "sizes"),
    [
        ([-1], [1]),
        ([-1], [0]),
        ([0], [-1]),
        ([0], [4]),
        ([4], [0]),
        ([4], [1]),
        ([2**63 - 1], [0]),
        ([2**63 - 1], [2**63 - 1]),
        ([-(2**63)], [-(2**63)]),
        ([0, 1], [1]),
        ([0], [1, 1]),
        ([], [1]),
        ([0, 0, 5], [1, 1, 1]),
    ],
)
def test_pieces_outside_of_the_data_are_refused(data, starts, sizes):
    for gather in (_kernel.gather, reference.gather):
        with pytest.raises(ValueError, match=r"outside|a start and a size|nothing to gather from"):
            gather(data, np.array(starts, np.int64), np.array(sizes, np.int64))


@pytest.mark.parametrize("data", [[b"ab", b"cd"], [b"a", b"", b"bcd"]])
def test_a_piece_of_two_buffers_is_refused(data):
    for gather in (_kernel.gather, reference.gather):
        with pytest.raises(ValueError, match="outside"):
            gather(data, np.array([0]), np.array([3]))


def test_a_sum_of_sizes_that_nothing_can_hold_is_refused(tmp_path):
    # 2**20 pieces of 2**43 bytes, of a file with holes that takes no room.
    with (tmp_path / "holes").open("wb+") as file:
        file.truncate(2**43)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, pytest.raises((MemoryError, ValueError)):
            _kernel.gather(data, np.zeros(2**20, np.int64), np.full(2**20, 2**43))


def test_scanning_lets_python_run():
    frames = frame(b"") * 1_000_000
    assert runs_beside_python(lambda: _kernel.scan(frames))


def test_gathering_lets_python_run():
    data = bytes(1000)
    starts, sizes = np.zeros(100_000, np.int64), np.full(100_000, 1000)
    assert runs_beside_python(lambda: _kernel.gather(data, starts, sizes))


def test_encoding_lets_python_run():
    batch = pa.record_batch({"a": pa.array([b"x" * 200] * 100_000), "b": pa.array(range(100_000))})
    assert runs_beside_python(lambda: _kernel.encode(*batch.__arrow_c_array__()))


@given(st.binary(max_size=3000), st.integers(0, 2**32 - 1), st.integers(0, 70))
@settings(max_examples=draws(200), deadline=None)
def test_crc32c_continues_from_any_start(data, start, skip):
    assert _kernel.crc32c(data) == google_crc32c.value(data)
    assert _kernel.crc32c(data, start) == google_crc32c.extend(start, data) == reference.crc32c(data, start)
    assert _kernel.crc32c(memoryview(data)[skip:]) == google_crc32c.value(data[skip:])
