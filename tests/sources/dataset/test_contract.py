"""Datasets of shardkit keep the contract of sources."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from tests.support.files.format_contract import FormatContract

FEATURES = (
    make_feature("n", "int64"),
    make_feature("s", "string"),
    make_feature("x", "float64", nullable=True),
    make_feature("l", "int32", (None,)),
)


class TestDataset(FormatContract):
    format = "dataset"
    reads_compressed = False
    knows_its_end = True
    leaves_out: ClassVar = {
        "test_a_bad_row_ends_the_reading": "a record that does not fit is damage of its shard",
        "test_good_and_rejected_rows_are_all_rows": "a record that does not fit is damage of its shard",
    }

    def row(self, number):
        return {"n": number, "s": f"é{number}", "x": None if number % 3 else 1 / 3, "l": [number] * (number % 3)}

    def write(self, folder, name, rows):
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(FEATURES))
        write_dataset(folder / name, FEATURES, {"train": batch}, num_shards=1)
