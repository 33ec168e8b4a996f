"""Blocks of an Avro file as Arrow batches of a wanted size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.sources.avro.columns import NO_STOP, ColumnDecoder, Piece
from shardkit.sources.avro.rows import RecordReader, columns_of
from shardkit.sources.avro.schema import AvroSchema, Leaf


class BatchReader:
    """Reads columns of the records of one file, by the kernel, or by fastavro where the kernel cannot.

    Args:
        schema: Of the file.
        leaves: Columns that are wanted, in the order of the schema.
        uses_kernel: Whether it decodes what it can.

    Raises:
        ValueError: If the schema is none.
    """

    def __init__(self, schema: AvroSchema, leaves: Sequence[Leaf], *, uses_kernel: bool = HAS_KERNEL) -> None:
        self._leaves = leaves
        self._records = RecordReader(schema)
        self._columns = ColumnDecoder.of(self._records.record, leaves) if uses_kernel else None

    def batches(self, blocks: Iterable[tuple[bytes, int]], batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yields so many rows at a time as take up about `batch_bytes` in their blocks.

        Args:
            blocks: Content of each, and how many rows it says it has.
            batch_bytes: Wanted.

        Raises:
            ValueError: If a record is damaged, a block does not hold just as many, or a number is larger than its type.
        """
        pieces: list[Piece] = []
        num_bytes = 0
        found = _pieces_of(blocks)
        while True:
            try:
                piece = next(found, None)
            except Exception:
                # Errors of the rows in front of it come first.
                self._check(pieces)
                raise
            if piece is None:
                break
            pieces.append(piece)
            num_bytes += len(piece.data)
            while num_bytes >= batch_bytes:
                batch, rest = self._take(pieces, batch_bytes)
                yield batch
                pieces = [] if rest is None else [rest]
                num_bytes = 0 if rest is None else len(rest.data) - rest.start
        if any(piece.num_rows for piece in pieces):
            yield self._take(pieces, NO_STOP)[0]
        else:
            self._check(pieces)

    def _take(self, pieces: Sequence[Piece], stop_bytes: int) -> tuple[pa.RecordBatch, Piece | None]:
        taken = None if self._columns is None else self._columns.decode(pieces, stop_bytes)
        if taken is not None:
            return taken
        rows, rest = self._records.read(pieces, stop_bytes)
        return columns_of(rows, self._leaves), rest

    def _check(self, pieces: Sequence[Piece]) -> None:
        if self._columns is None or self._columns.decode(pieces) is None:
            self._records.read(pieces)


def _pieces_of(blocks: Iterable[tuple[bytes, int]]) -> Iterator[Piece]:
    for data, num_rows in blocks:
        if num_rows > len(data):
            raise ValueError(f"a block of {len(data)} bytes says that it has {num_rows} rows")
        yield Piece(data, 0, num_rows, 0)
