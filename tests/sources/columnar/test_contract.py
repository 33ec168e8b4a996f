"""Parquet, Arrow and ORC keep the contract of sources."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tests.support.files.format_contract import FormatContract

SCHEMA = pa.schema({"n": pa.int64(), "s": pa.binary(), "x": pa.float32(), "l": pa.list_(pa.int32())})


def table_of(rows) -> pa.Table:
    """Returns a table; the text of a row that is None is not UTF-8."""
    bad = {"n": 0, "s": b"\xff\xfe", "x": 0.5, "l": []}
    table = pa.Table.from_pylist([bad if row is None else row | {"s": row["s"].encode()} for row in rows], SCHEMA)
    return table.set_column(1, "s", pa.chunked_array([c.view(pa.string()) for c in table["s"].chunks], pa.string()))


class ColumnarContract(FormatContract):
    format = "parquet"
    reads_compressed = False

    def row(self, number):
        return {"n": number, "s": f"é{number}", "x": None if number % 3 else 0.5, "l": [number] * (number % 3)}


class TestParquet(ColumnarContract):
    def write(self, folder, name, rows):
        pq.write_table(table_of(rows), folder / f"{name}.parquet", row_group_size=4)


class TestArrowFile(ColumnarContract):
    format = "arrow"

    def write(self, folder, name, rows):
        table = table_of(rows)
        with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=4)


class TestArrowStream(ColumnarContract):
    format = "arrow"
    reads_compressed = True

    def write(self, folder, name, rows):
        table = table_of(rows)
        with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=4)


class TestOrc(ColumnarContract):
    format = "orc"

    def write(self, folder, name, rows):
        orc.write_table(table_of(rows), str(folder / f"{name}.orc"), stripe_size=1, batch_size=4)
