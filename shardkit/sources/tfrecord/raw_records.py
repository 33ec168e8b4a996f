"""TFRecords of any content: each record is a row of one column of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from shardkit.features import Features, arrow_schema, make_feature
from shardkit.sources.columns.casting import BadValueError, cast_column
from shardkit.sources.tfrecord.blocks import RecordBlock
from shardkit.sources.tfrecord.rows import DecodedBlock, whole_records

RECORD = make_feature("record", "bytes")
"""The column of such a table."""


class RawDecoder:
    """Gives the records of blocks as they are.

    Args:
        features: RECORD, as anything that bytes can become; others have no values.
        max_record_bytes: Longer records do not fit.
    """

    def __init__(self, features: Features, max_record_bytes: int) -> None:
        self._features = features
        self._feature = next(feature for feature in features if feature.name == RECORD.name)
        self._schema = arrow_schema(features)
        self._max_record_bytes = max_record_bytes

    def decode(self, block: RecordBlock) -> Iterator[DecodedBlock]:
        """Yields the rows of a block in one piece."""
        bad_values: dict[int, str] = {}
        rows = np.arange(len(block.starts), dtype=np.int64)
        rows = whole_records(block, rows, self._max_record_bytes, bad_values)
        column = pa.array([], self._feature.arrow_type)
        while len(rows):
            try:
                records = pa.array([block.record(row) for row in rows.tolist()], pa.binary())
                column = cast_column(records, self._feature).column
                break
            except BadValueError as error:
                bad_values[int(rows[error.row])] = f"expected {error.expected}, got {error.got}"
                rows = np.delete(rows, error.row)
        columns = [column if f is self._feature else pa.nulls(len(rows), f.arrow_type) for f in self._features]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        yield DecodedBlock(batch, rows, {}, sorted(bad_values.items()))
