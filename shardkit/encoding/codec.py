"""Blocks: pieces of one gzip member that can be inflated alone.

A shard is one ordinary gzip member. Each block is compressed on its own and ends with a full flush, hence on a byte
border and without references to earlier bytes; a reader that knows where it starts opens it as raw deflate. One member
only, because some gzip readers stop silently after the first. Nothing depends on the clock.

The levels, on 20-column rows in blocks of 1 MiB, one core (tests/benchmarks/converting has all of it):

    level      compressor   size    compress   inflate
    fast       ISA-L 1      0.290   600 MB/s   1170 MB/s
    balanced   ISA-L 2      0.287   600 MB/s   1200 MB/s
    small      zlib-ng 6    0.238    69 MB/s   1470 MB/s

`small` gives the same bytes on every processor. ISA-L 1 and 2 give the same on all x86-64 from SSE4.2 on and others on
ARM. ISA-L 3 differs between x86-64 with and without AVX2, costs 2 to 4 times as much and gains 1 to 5 %: not used.
Nor are zlib 6 and 9: as small as zlib-ng 6 within 5 %, in 1.2 to 7 times its time, and every system has another zlib.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import deflate
from isal import isal_zlib
from zlib_ng import zlib_ng

from shardkit.errors import DamageError
from shardkit.units import KiB, MiB

if TYPE_CHECKING:
    from typing_extensions import Buffer

Compression = Literal["gzip", "none"]
CompressionLevel = Literal["fast", "balanced", "small"]

DEFAULT_LEVEL: CompressionLevel = "balanced"
BLOCK_BYTES = MiB
GZIP_HEADER = bytes((0x1F, 0x8B, 0x08, 0, 0, 0, 0, 0, 0, 0xFF))
GZIP_HEADER_BYTES = len(GZIP_HEADER)
GZIP_TRAILER_BYTES = 10
FILE_SUFFIX: dict[Compression, str] = {"gzip": ".tfrecord.gz", "none": ".tfrecord"}


class _Level(NamedTuple):
    """One way to compress.

    Attributes:
        library: Module with zlib's interface.
        number: Its own level.
        num_head_bytes: How many of the first bytes are stored, and known to the compressor as its dictionary.
        min_gain: A block that shrinks by less is stored.
        num_sample_pieces: How many pieces of a block are tried before all of it.
        sample_piece_bytes: Size of each; nothing that repeats further away is seen.
    """

    library: Any
    number: int
    num_head_bytes: int
    min_gain: float
    num_sample_pieces: int
    sample_piece_bytes: int


# Stored data is inflated at 20 GB/s, JPEG and float data at 0.3. So an eighth less to read pays where a core gets less
# than 40 MB/s from the disk, and 3 % where it gets less than 10; only `small` compresses for so little.
#
# ISA-L notes the third byte of a stream without history under a hash of the stream's own address (write_first_byte in
# its igzip_icf_body_h1_gr_bt.asm hashes a register it has not set). Where that hash is also one of the data's, a match
# is lost: one process in several hundred wrote other bytes. A stream with a dictionary does not go that way.
_LEVELS: dict[CompressionLevel, _Level] = {
    "fast": _Level(isal_zlib, 1, 8, 0.125, 8, 8 * KiB),
    "balanced": _Level(isal_zlib, 2, 8, 0.125, 8, 8 * KiB),
    "small": _Level(zlib_ng, 6, 0, 0.03, 4, 64 * KiB),
}

# Less data than four samples is compressed without one.
_MIN_BYTES_A_SAMPLE_BYTE = 4
_NUM_GLANCES = 16
_GLANCE_BYTES = 512
# Data that shrinks so much at a glance is compressed without a sample.
_PROMISING_GAIN = 0.25
# A sample shrinks by a little less than the whole and is not exact, so data this close to the border is compressed.
_SAMPLE_PART = 0.85

_STORED_CHUNK = 65535
_STORED_HEADER = struct.Struct("<BHH")
_FULL_CHUNK_HEADER = _STORED_HEADER.pack(0, _STORED_CHUNK, 0)
_FINAL_EMPTY_BLOCK = b"\x03\x00"
# Ends a deflate stream that is open, with a byte that shows that it was.
FINAL_BYTE = b"\x01" + _STORED_HEADER.pack(0, 1, 0xFFFE)[1:] + b"\xa5"
# 258 bytes from a match of two bits (https://zlib.net/zlib_tech.html).
_MAX_EXPANSION = 1032
_MANY_BYTES = 16 * MiB
_TRAILER = struct.Struct("<II")


@overload
def compress_block(data: bytes, compression: Compression, level: CompressionLevel | None = ...) -> bytes: ...
@overload
def compress_block(
    data: Buffer, compression: Compression, level: CompressionLevel | None = ...
) -> bytes | memoryview[int]: ...
def compress_block(
    data: Buffer, compression: Compression, level: CompressionLevel | None = None
) -> bytes | memoryview[int]:
    """Returns the bytes of one block: raw deflate up to and including a full flush, or the data itself.

    The result is a function of the arguments alone. The data is stored if it would shrink by less than the level wants
    (an eighth for `fast` and `balanced`, 3 % for `small`). So as not to compress JPEG files in vain, a sample is tried
    first: 8 pieces of 8 KiB (for `small` 4 of 64 KiB), evenly spread, each compressed alone; unless they shrink by 0.85
    of what is wanted, everything is stored. So what repeats only at a longer distance than a piece, such as a photo
    stored twice in a row, is seen by `small` alone. The sample is passed over for data of less than four samples and
    for what shrinks by a quarter at 16 places of 512 bytes.

    Args:
        data: Framed records in any contiguous buffer; never copied before it is compressed.
        compression: `none` gives the data back, as bytes or as a view.
        level: How much time to spend, `balanced` if None; without effect on `none`.
    """
    if compression == "none":
        return data if isinstance(data, bytes) else memoryview(data).cast("B")
    chosen, view = _LEVELS[level or DEFAULT_LEVEL], memoryview(data).cast("B")
    if _looks_hopeless(view, chosen):
        return _store(view)
    packed = _deflate(view, chosen)
    return packed if len(packed) <= view.nbytes * (1 - chosen.min_gain) else _store(view)


def inflate_block(data: Buffer, num_uncompressed_bytes: int, where: str) -> bytearray:
    """Returns the framed records of one gzip block, never more than the index states.

    Args:
        data: The bytes of the block, in any contiguous buffer.

    Raises:
        DamageError: If it is not deflate data of exactly that size.
        MemoryError: If there is no room for so much.
    """
    return inflate_sealed(b"".join((data, FINAL_BYTE)), num_uncompressed_bytes, where)


def inflate_sealed(data: Buffer, num_uncompressed_bytes: int, where: str) -> bytearray:
    """Returns the same as `inflate_block`, from the bytes of a block that `FINAL_BYTE` follows.

    libdeflate inflates 20 to 30 % faster than ISA-L or zlib-ng (tests/benchmarks/converting), and into
    memory of the right size at once.
    """
    num_bytes = memoryview(data).nbytes - len(FINAL_BYTE)
    why = f"its {num_bytes:,} bytes are no deflate data of exactly {num_uncompressed_bytes:,} bytes"
    # A size from the index must be possible before it is allocated.
    if not 0 <= num_uncompressed_bytes <= num_bytes * _MAX_EXPANSION:
        raise DamageError("a block cannot be inflated", where=where, why=f"{why}, more than deflate can hold")
    check_room(num_uncompressed_bytes)
    try:
        # The final byte is there only if the bytes before end where a block may start, and are no end themselves.
        records: bytearray = deflate.deflate_decompress(data, num_uncompressed_bytes + 1)
    except deflate.DeflateError as error:
        raise DamageError("a block cannot be inflated", where=where, why=why) from error
    if len(records) != num_uncompressed_bytes + 1 or records.pop() != FINAL_BYTE[-1]:
        raise DamageError("a block cannot be inflated", where=where, why=why)
    return records


def check_room(num_bytes: int) -> None:
    """Asks the system for so many bytes, which it clears when they are used, where they are many.

    CPython 3.11 writes of a bytearray for which there is no room that it has exported buffers.

    Raises:
        MemoryError: If there is no room.
    """
    if num_bytes > _MANY_BYTES:
        bytes(num_bytes)


def crc32(data: Buffer, start: int = 0) -> int:
    """Returns gzip's CRC32 of `data`, continued from `start`."""
    return isal_zlib.crc32(data, start)


def crc32_combine(first: int, second: int, num_second_bytes: int) -> int:
    """Returns the CRC32 of two runs of bytes from the CRC32 of each."""
    return isal_zlib.crc32_combine(first, second, num_second_bytes)


def gzip_trailer(crc: int, num_uncompressed_bytes: int) -> bytes:
    """Returns the end of the member: an empty final block, the CRC32 and the size modulo 2**32."""
    return _FINAL_EMPTY_BLOCK + _TRAILER.pack(crc, num_uncompressed_bytes & 0xFFFFFFFF)


def _deflate(data: memoryview[int], level: _Level) -> bytes:
    head, rest = bytes(data[: level.num_head_bytes]), data[level.num_head_bytes :]
    stored = _STORED_HEADER.pack(0, len(head), len(head) ^ 0xFFFF) + head if head else b""
    compressor = level.library.compressobj(level.number, level.library.DEFLATED, -15, zdict=head)
    packed: bytes = stored + compressor.compress(rest) + compressor.flush(level.library.Z_FULL_FLUSH)
    return packed


def _looks_hopeless(data: memoryview[int], level: _Level) -> bool:
    """Whether a sample says that compressing all of the data will not pay."""
    piece_bytes = level.sample_piece_bytes
    sample_bytes = level.num_sample_pieces * piece_bytes
    if data.nbytes < sample_bytes * _MIN_BYTES_A_SAMPLE_BYTE:
        return False
    glances = memoryview(b"".join(_spread(data, _NUM_GLANCES, _GLANCE_BYTES)))
    if len(_deflate(glances, level)) <= len(glances) * (1 - _PROMISING_GAIN):
        return False
    # Pieces compressed as one would share their codes, and text between images would look like images.
    pieces = _spread(data, level.num_sample_pieces, piece_bytes)
    gained = sum(max(0, piece_bytes - len(_deflate(piece, level))) for piece in pieces)
    return gained < sample_bytes * level.min_gain * _SAMPLE_PART


def _spread(data: memoryview[int], num_pieces: int, piece_bytes: int) -> list[memoryview[int]]:
    starts = [(data.nbytes - piece_bytes) * i // (num_pieces - 1) for i in range(num_pieces)]
    return [data[start : start + piece_bytes] for start in starts]


def _store(data: memoryview[int]) -> bytes:
    # Views of the data joined once: half the time of joining copies.
    num_full = data.nbytes // _STORED_CHUNK
    parts: list[bytes | memoryview[int]] = []
    for start in range(0, num_full * _STORED_CHUNK, _STORED_CHUNK):
        parts += [_FULL_CHUNK_HEADER, data[start : start + _STORED_CHUNK]]
    rest = data[num_full * _STORED_CHUNK :]
    if rest.nbytes:
        parts += [_STORED_HEADER.pack(0, rest.nbytes, rest.nbytes ^ 0xFFFF), rest]
    return b"".join(parts)
