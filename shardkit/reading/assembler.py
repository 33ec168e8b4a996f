"""Batches of rows that lie in several blocks: decoded together, where they lie.

Only rows that are delivered are decoded.
"""

from __future__ import annotations

import pyarrow as pa

from shardkit.dataset.block_loader import Block
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.decoder import RecordDecoder
from shardkit.errors import DamageError
from shardkit.features import Features
from shardkit.reading.batch import Batch, BatchMaker

Piece = tuple[Block, int, int]
"""Neighbouring rows of a block: it, the first, and the one after the last. A batch has dozens; a class takes longer."""


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

        def locate(row: int) -> str:
            for block, start, stop in pieces:
                if row < stop - start:
                    return f"{block.where}, record {block.stored_rows[start + row]}"
                row -= stop - start
            raise IndexError(row)

        columns = self._decoder.decode_pieces(pieces, locate, self._maker.takes_objects)
        try:
            return self._maker.make(columns, sum([stop - start for _, start, stop in pieces]))
        except (pa.ArrowException, *DECODE_ERRORS) as error:
            blocks = ", ".join(sorted({block.where for block, _, _ in pieces}))
            raise DamageError("text cannot be read", where=blocks, why=str(error)) from error
