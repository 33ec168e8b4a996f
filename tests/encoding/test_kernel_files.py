"""Bytes of files with their checksum: by the kernel as by the reference."""

import os

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding import kernel as codec_kernel
from shardkit.encoding import kernel_reference as reference
from tests.support.examples import draws

_kernel = pytest.importorskip("shardkit._kernel", reason="the kernel was not built here", exc_type=ImportError)

SIZE = 600_001
CONTENT = (bytes(range(256)) * (SIZE // 256 + 1))[:SIZE]


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "content"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@settings(max_examples=draws(100), deadline=None)
@given(start=st.integers(0, SIZE + 9), num_bytes=st.integers(0, SIZE + 9), tail=st.binary(max_size=9))
@pytest.mark.parametrize("module", [_kernel, reference, codec_kernel], ids=lambda m: m.__name__)
def test_what_lies_there_the_tail_and_the_checksum(descriptor, module, start, num_bytes, tail):
    there = CONTENT[start : start + num_bytes]
    data, crc = module.read_at(descriptor, start, num_bytes, tail)
    assert bytes(data) == there + tail
    assert crc == google_crc32c.value(there)


@pytest.mark.parametrize("module", [_kernel, reference])
def test_what_cannot_be_read(descriptor, tmp_path, module):
    for start, num_bytes in ((-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="not negative"):
            module.read_at(descriptor, start, num_bytes, b"")
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        module.read_at(folder, 0, 1, b"")
    os.close(folder)
    with pytest.raises(OSError, match=r"[Bb]ad file descriptor"):
        module.read_at(folder, 0, 1, b"")
