"""gzip files without points to start at: inflated whole, header, members and trailers."""

from __future__ import annotations

import contextlib
import io
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import deflate
from isal import igzip_lib, isal_zlib

from shardkit.encoding.byte_stream import ByteStream
from shardkit.encoding.codec import check_room
from shardkit.errors import DamageError
from shardkit.units import KiB

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PIECE_BYTES = 1024 * 1024
COMPRESSED_BYTES = 256 * KiB
_GZIP_WINDOW = 16 + 15
_GZIP_MAGIC = b"\x1f\x8b"
CUT_OFF = "Compressed file ended before the end-of-stream marker was reached"
DAMAGED = cast(type[Exception], igzip_lib.IsalError)
_MAX_EXPANSION = 1032


def inflate_file(data: Buffer, num_uncompressed_bytes: int, where: str) -> bytes | bytearray:
    """Returns the content of a gzip file of one or more members, never more than the index states.

    Args:
        data: All bytes of the file.

    Raises:
        DamageError: If it is no gzip data of exactly that size.
    """
    num_bytes = memoryview(data).nbytes
    why = f"its {num_bytes:,} bytes are no gzip data of exactly {num_uncompressed_bytes:,} bytes"
    # A size from the index must be possible before it is allocated.
    if not 0 <= num_uncompressed_bytes <= num_bytes * _MAX_EXPANSION:
        raise DamageError("a file cannot be inflated", where=where, why=f"{why}, more than gzip can hold")
    check_room(num_uncompressed_bytes)
    content: bytes | bytearray = b""
    # libdeflate takes 0 for an unknown size, and goes by the one that the file states.
    if num_uncompressed_bytes:
        with contextlib.suppress(deflate.DeflateError):
            # It is the fastest, and reads one member only.
            content = deflate.gzip_decompress(data, num_uncompressed_bytes)
    if not content or len(content) != num_uncompressed_bytes:
        content = _inflate_members(data, num_uncompressed_bytes, where, why)
    return content


def _inflate_members(data: Buffer, num_uncompressed_bytes: int, where: str, why: str) -> bytearray:
    stream = GzipStream(io.BytesIO(data))
    content = bytearray()
    try:
        while len(content) <= num_uncompressed_bytes and (piece := stream.read(_PIECE_BYTES)):
            content += piece
    except (EOFError, zlib.error) as error:
        raise DamageError("a file cannot be inflated", where=where, why=f"{why}: {error}") from error
    if len(content) != num_uncompressed_bytes:
        raise DamageError("a file cannot be inflated", where=where, why=why)
    return content


class GzipStream(ByteStream):
    """The content of a gzip file of any number of members, decompressed without holding up other threads."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._rest = b""
        self._member: Any = None
        self._num_members = 0

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none at the end.

        Raises:
            EOFError: If the file is cut off.
            zlib.error: If it is damaged.
        """
        while self._member is not None or self._begin():
            data = self._rest or self._raw.read(COMPRESSED_BYTES)
            try:
                found: bytes = self._member.decompress(data, num_bytes)
            except DAMAGED as error:
                raise zlib.error(str(error)) from error
            if self._member.eof:
                self._rest, self._member = self._member.unused_data, None
            else:
                self._rest = self._member.unconsumed_tail
                if not data and not found:
                    raise EOFError(CUT_OFF)
            if found:
                return found
        return b""

    def _begin(self) -> bool:
        # Behind a member there may be another one, or zeros that fill a block of a tape.
        while data := self._rest or self._raw.read(COMPRESSED_BYTES):
            self._rest = data.lstrip(b"\0") if self._num_members else data
            if self._rest:
                if self._num_members and not self._rest.startswith(_GZIP_MAGIC[: len(self._rest)]):
                    raise followed(self._rest, self._raw)
                self._member = isal_zlib.decompressobj(_GZIP_WINDOW)
                self._num_members += 1
                return True
        return False


def followed(rest: bytes, raw: BinaryIO) -> zlib.error:
    num_bytes = len(rest)
    while data := raw.read(COMPRESSED_BYTES):
        num_bytes += len(data)
    follow = "byte follows" if num_bytes == 1 else "bytes follow"
    return zlib.error(f"{num_bytes:,} other {follow} the end of its compressed content")
