"""Batches of rows that lie in several blocks: gathered, then decoded together.

What is decoded has just been in the cache, and nothing is decoded that is not delivered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardkit.codec_kernel import BytesLike, Int64s, gather
from shardkit.decoder import RecordDecoder
from shardkit.errors import DamageError
from shardkit.features import Features
from shardkit.reading.blocks import Block
from shardkit.reading.columns import Batch, BatchMaker

_NONE: Int64s = np.zeros(0, np.int64)


class Piece(NamedTuple):
    """Neighbouring rows of one block."""

    block: Block
    start: int
    stop: int


class Assembler:
    """Makes batches of rows that lie in several blocks; for any number of threads.

    Args:
        features: Which to decode, at least one.
        decodes_text: See `ReadingOptions`.
    """

    def __init__(self, features: Features, *, decodes_text: bool = True) -> None:
        self._decoder = RecordDecoder(features)
        self._maker = BatchMaker(features, decodes_text=decodes_text)

    def assemble(self, pieces: list[Piece]) -> Batch:
        """Returns the rows of the pieces as one batch, in their order.

        Raises:
            DamageError: If a record is no example with these features; names shard, block and record.
        """
        frames: list[BytesLike] = []
        starts: list[Int64s] = [_NONE]
        lengths = np.concatenate([_NONE, *(p.block.lengths[p.start : p.stop] for p in pieces)])
        num_bytes = 0
        for block, start, stop in pieces:
            starts.append(block.starts[start:stop] + num_bytes)
            frames.append(block.frames)
            num_bytes += len(block.frames)
        records = gather(frames or [b""], np.concatenate(starts), lengths)

        def locate(row: int) -> str:
            for block, start, stop in pieces:
                if row < stop - start:
                    return f"{block.where}, record {block.stored_rows[start + row]}"
                row -= stop - start
            raise IndexError(row)

        columns = self._decoder.decode_buffers(records, np.cumsum(lengths) - lengths, lengths, locate)
        try:
            return self._maker.make(columns, len(lengths))
        except pa.ArrowException as error:
            blocks = ", ".join(sorted({piece.block.where for piece in pieces}))
            raise DamageError("text cannot be read", where=blocks, why=str(error)) from error
