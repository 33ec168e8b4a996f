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


def write_arrow(table: pa.Table, path, new) -> None:
    """Writes record batches of several sizes, of which some are empty, with a dictionary."""
    table = table.append_column("d", table["l"].combine_chunks().value_lengths().cast(pa.string()).dictionary_encode())
    with new(path, table.schema) as out:
        start = 0
        for num_rows in (3, 0, 1, 7, 5, 0, table.num_rows):
            for batch in table.slice(start, num_rows).combine_chunks().to_batches():
                out.write_batch(batch)
            start += num_rows


class ColumnarContract(FormatContract):
    format = "parquet"
    reads_compressed = False
    knows_its_end = True

    def row(self, number):
        return {"n": number, "s": f"é{number}", "x": None if number % 3 else 0.5, "l": [number] * (number % 3)}


class TestParquet(ColumnarContract):
    def write(self, folder, name, rows):
        pq.write_table(table_of(rows), folder / f"{name}.parquet", row_group_size=4)


class TestArrowFile(ColumnarContract):
    format = "arrow"

    def row(self, number):
        return super().row(number) | {"d": str(number % 3)}

    def write(self, folder, name, rows):
        write_arrow(table_of(rows), folder / f"{name}.arrow", pa.ipc.new_file)


class TestArrowStream(TestArrowFile):
    reads_compressed = True

    def write(self, folder, name, rows):
        write_arrow(table_of(rows), folder / f"{name}.arrow", pa.ipc.new_stream)


class TestOrc(ColumnarContract):
    format = "orc"

    def write(self, folder, name, rows):
        orc.write_table(table_of(rows), str(folder / f"{name}.orc"), stripe_size=1, batch_size=4)
