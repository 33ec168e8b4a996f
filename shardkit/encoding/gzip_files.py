"""gzip files without points to start at: inflated whole, header, members and trailers."""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING

import deflate

from shardkit.errors import DamageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from shardkit.dataset.manifest import ShardInfo

_MAX_EXPANSION = 1032
_PIECE_BYTES = 1024 * 1024


def is_whole_file(shard: ShardInfo) -> bool:
    """Whether a gzip shard is one block from its first byte to its last; shardkit's own have a header before it."""
    return shard.block_num_bytes == (shard.num_bytes,)


def inflate_file(data: Buffer, num_uncompressed_bytes: int, where: str) -> bytes | bytearray:
    """Returns the content of a gzip file of one or more members, never more than the index states.

    Args:
        data: All bytes of the file.
        num_uncompressed_bytes: What the index states.
        where: For the error.

    Raises:
        DamageError: If it is no gzip data of exactly that size.
    """
    num_bytes = memoryview(data).nbytes
    why = f"its {num_bytes:,} bytes are no gzip data of exactly {num_uncompressed_bytes:,} bytes"
    # What the index states must not be allocated before it is possible.
    if not 0 <= num_uncompressed_bytes <= num_bytes * _MAX_EXPANSION:
        raise DamageError("a file cannot be inflated", where=where, why=f"{why}, more than gzip can hold")
    content: bytes | bytearray
    try:
        # libdeflate is the fastest, and reads one member only.
        content = deflate.gzip_decompress(data, num_uncompressed_bytes)
    except deflate.DeflateError:
        content = b""
    if len(content) != num_uncompressed_bytes:
        content = _inflate_members(data, num_uncompressed_bytes, where, why)
    return content


def _inflate_members(data: Buffer, num_uncompressed_bytes: int, where: str, why: str) -> bytearray:
    # Here, so that whoever reads a dataset does not load the sources of all formats.
    from shardkit.sources.files.streams import GzipStream

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
