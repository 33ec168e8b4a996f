"""Small text files parsed in one go: a call of a parser costs as much as a thousand rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardkit.sources.base import BATCH_BYTES, RawFile, RowBatch, SourceOptions, row_identities
from shardkit.sources.files.streams import check_unchanged, open_stream, read_exactly
from shardkit.units import KiB

_SMALL_BYTES = 64 * KiB
# The columns of a text may take several times its bytes, and all rows must fit into one batch.
_MOST_BYTES = BATCH_BYTES // 8
_PARTITION = "="


class SmallText(NamedTuple):
    """The records of a small file.

    Attributes:
        data: Its records, the last one ended.
        num_rows: Lines of it that are rows.
    """

    file_index: int
    data: bytes
    num_rows: int


def read_small_texts(
    indices: Sequence[int],
    files: Sequence[RawFile],
    options: SourceOptions,
    records_of: Callable[[int, bytes], tuple[bytes, int] | None],
) -> list[SmallText] | None:
    """Returns the records of small files; None if they are too large together, or one must be read alone.

    Args:
        options: Limit a record; files that may hold a longer one are read alone.
        records_of: Returns the records of a file, a line each, and their number, given its position and content;
            None if it must be read alone.

    Raises:
        BadInputError, StorageError: If a file cannot be read.
    """
    if options.max_record_bytes < _SMALL_BYTES:
        return None
    texts = []
    num_bytes = 0
    for index in indices:
        file = files[index]
        if _PARTITION in file.name:  # The names of its folders may hold values.
            return None
        with open_stream(file) as stream:
            data = read_exactly(stream, _SMALL_BYTES)
        num_bytes += len(data)
        if len(data) == _SMALL_BYTES or num_bytes > _MOST_BYTES or (found := records_of(index, data)) is None:
            return None
        records, num_rows = found
        if num_rows:
            texts.append(SmallText(index, records if records.endswith(b"\n") else records + b"\n", num_rows))
    return texts or None


def rows_of(
    batch: pa.RecordBatch, num_rounded: dict[str, int], texts: Sequence[SmallText], files: Sequence[RawFile]
) -> RowBatch | None:
    """Returns the rows that the texts together were parsed to, as reading one after the other gives them.

    Returns:
        None if they are not as many as the texts have lines.

    Raises:
        BadInputError: If a file changed since it was listed.
    """
    counts = [text.num_rows for text in texts]
    if batch.num_rows != sum(counts):
        return None
    for text in texts:
        check_unchanged(files[text.file_index])
    return RowBatch(
        batch,
        np.concatenate([row_identities(files[text.file_index], 0, 0, text.num_rows) for text in texts]),
        np.repeat(np.array([text.file_index for text in texts], np.int64), counts),
        num_rounded,
    )
