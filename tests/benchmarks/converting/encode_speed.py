"""Arrow batches to framed `tf.train.Example` records: CPU time of shardkit's kernel and of others on the same rows.

    python -m tests.benchmarks.converting.encode_speed --rounds 7

Contenders that are not installed are named as such. `tfx_bsl` needs an environment of its own with shardkit in it:
`peers.py --install DIR` makes one; `DIR/tensorflow/bin/python -m` this module has them all.
tfx_bsl returns records without frames; all others frame them. The columns are wrapped into lists for tfx_bsl, because
it takes nothing else; that costs no copy. memcpy is of the same output, repeated to at least 32 MB, into warm memory.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit.encoding import encoder, example
from shardkit.encoding.tfrecord import iter_records
from tests.benchmarks.measure import (
    Check,
    Contender,
    is_installed,
    median_seconds,
    print_checks,
    print_machine,
    print_table,
)
from tests.benchmarks.workloads import Workload, rows_of_columns, rows_of_floats, rows_of_images, rows_of_tokens

KERNEL = "shardkit kernel"
REFERENCE = "shardkit reference (protobuf)"
TFX_BSL = "tfx_bsl C++ encoder, no frames"
IDIOMATIC = "tf.train.Example(...) + TFRecordWriter"
APPENDING = "tf.train.Example append + TFRecordWriter"
MEMCPY = "memcpy of the output"
MEMCPY_BYTES = 32_000_000
# Rows a call: about what fits a cache, and for the slow ways a part of them.
WORKLOADS: tuple[tuple[Callable[[int], Workload], int], ...] = (
    (rows_of_columns, 8192),
    (rows_of_tokens, 1024),
    (rows_of_floats, 512),
    (rows_of_images, 128),
)
TARGETS: dict[str, dict[str, float]] = {
    "20 columns": {TFX_BSL: 15, IDIOMATIC: 150, MEMCPY: 0.12},
    "768 floats": {MEMCPY: 0.45},
    "18.7 KB images": {MEMCPY: 0.6},
}


def lists_of_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows as tfx_bsl takes them: lists of int64, float32 or binary, without copying values."""
    return pa.RecordBatch.from_arrays([_as_lists(column) for column in batch.columns], names=batch.schema.names)


def _as_lists(column: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_list(column.type):
        width, values = column.type.list_size, column.values
    else:
        width, values = 1, column.view(pa.binary()) if pa.types.is_string(column.type) else column
    offsets = pa.array(np.arange(len(column) + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, values)


class Protobuf:
    """Rows to records by TensorFlow's Python classes, as its guides show, and with the least calls."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._tf = importlib.import_module("tensorflow")
        self._batch = batch
        self._writer = self._tf.io.TFRecordWriter("/dev/null")
        self._kinds = [_kind(column.type) for column in batch.columns]

    def idiomatic(self) -> list[bytes]:
        """Builds the messages from values."""
        train = self._tf.train
        lists = {"float_list": train.FloatList, "int64_list": train.Int64List, "bytes_list": train.BytesList}
        records = []
        for row in self._rows():
            feature = {
                name: train.Feature(**{kind: lists[kind](value=values)})
                for (name, kind), values in zip(self._columns(), row, strict=True)
            }
            message = train.Example(features=train.Features(feature=feature))
            record = message.SerializeToString()
            self._writer.write(record)
            records.append(record)
        return records

    def appending(self) -> list[bytes]:
        """Fills the messages in place."""
        new = self._tf.train.Example
        columns = self._columns()
        records = []
        for row in self._rows():
            message = new()
            feature = message.features.feature
            for (name, kind), values in zip(columns, row, strict=True):
                getattr(feature[name], kind).value.extend(values)
            record = message.SerializeToString()
            self._writer.write(record)
            records.append(record)
        return records

    def _columns(self) -> list[tuple[str, str]]:
        return list(zip(self._batch.schema.names, self._kinds, strict=True))

    def _rows(self) -> Any:
        return zip(*(_python_lists(column) for column in self._batch.columns), strict=True)


def _kind(type_: pa.DataType) -> str:
    value = type_.value_type if pa.types.is_fixed_size_list(type_) else type_
    if pa.types.is_floating(value):
        return "float_list"
    return "int64_list" if pa.types.is_integer(value) else "bytes_list"


def _python_lists(column: pa.Array) -> Any:
    if pa.types.is_fixed_size_list(column.type):
        # Protobuf takes Python's numbers several times faster than NumPy's.
        return column.flatten().to_numpy().reshape(-1, column.type.list_size).tolist()
    if pa.types.is_string(column.type):
        column = column.view(pa.binary())
    return [(value,) for value in column.to_pylist()]


def contenders_for(work: Workload) -> list[Contender]:
    """Returns the ways to encode these rows that are installed, after checking that they agree."""
    features = work.features
    batch = work.batch
    part = batch.slice(0, max(1, batch.num_rows // 8))
    framed = bytes(encoder.encode_batch(batch, features).data)
    if bytes(example.encode_batch(batch, features).data) != framed:
        raise SystemExit(f"{work.title}: kernel and reference disagree")
    found = [
        Contender(KERNEL, lambda: encoder.encode_batch(batch, features)),
        Contender(REFERENCE, lambda: example.encode_batch(part, features), part.num_rows / batch.num_rows),
        memcpy_of(framed),
    ]
    records = list(iter_records(framed, "output"))
    if is_installed("tfx_bsl"):
        coder = importlib.import_module("tfx_bsl.coders.example_coder").RecordBatchToExamplesEncoder()
        lists = lists_of_columns(batch)
        _check_same(records, coder.encode(lists), f"{work.title}: {TFX_BSL}")
        found.append(Contender(TFX_BSL, lambda: coder.encode(lists)))
    if is_installed("tensorflow"):
        python = Protobuf(part)
        share = part.num_rows / batch.num_rows
        for name, encode in ((IDIOMATIC, python.idiomatic), (APPENDING, python.appending)):
            _check_same(records[: part.num_rows], encode(), f"{work.title}: {name}")
            found.append(Contender(name, encode, share))
    return found


def memcpy_of(data: bytes) -> Contender:
    """Returns copying the same bytes, repeated until no cache holds them, into memory that was touched before."""
    once = np.frombuffer(data, dtype=np.uint8)
    source = np.tile(once, -(-MEMCPY_BYTES // len(once)))
    target = np.ones_like(source)
    return Contender(MEMCPY, lambda: np.copyto(target, source), len(source) / len(once))


def _check_same(ours: Sequence[bytes], theirs: Sequence[bytes], who: str) -> None:
    parse = importlib.import_module("tensorflow").train.Example.FromString
    if len(ours) != len(theirs) or any(parse(a) != parse(b) for a, b in zip(ours, theirs, strict=True)):
        raise SystemExit(f"{who} does not give the same examples")


def run(work: Workload, rounds: int) -> list[Check]:
    """Prints the table of one kind of rows and returns what its targets say."""
    contenders = contenders_for(work)
    seconds = median_seconds(contenders, rounds)
    num_rows = work.batch.num_rows
    num_bytes = len(encoder.encode_batch(work.batch, work.features).data)
    rows = [
        (
            name,
            1e9 * seconds[name] / num_rows,
            num_bytes / seconds[name] / 1e6,
            seconds[MEMCPY] / seconds[name],
            seconds[name] / seconds[KERNEL],
        )
        for name in sorted(seconds, key=lambda name: seconds[name])
    ]
    title = f"{work.title}: {num_rows} rows a call, {num_bytes / num_rows:.0f} B a framed record"
    print_table(title, ("contender", "ns/record", "MB/s a core", "of memcpy", "CPU time, kernel = 1"), rows)
    absent = [name for name in (TFX_BSL, IDIOMATIC, APPENDING) if name not in seconds]
    if absent:
        print(f"not installed here: {', '.join(absent)}")
    checks = []
    for name, target in TARGETS.get(work.title, {}).items():
        measured = seconds[name] / seconds[KERNEL] if name in seconds else None
        checks.append(Check(f"encode + frame, {work.title}: speed / {name}", measured, target))
    return checks


def main() -> None:
    """Prints one table for each kind of rows, then the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not encoder.HAS_KERNEL:
        raise SystemExit("the compiled kernel was not built here: there is nothing to compare")
    print_machine("pyarrow", "numpy", "protobuf", "tensorflow", "tfx-bsl")
    checks = [v for make, num_rows in WORKLOADS for v in run(make(num_rows), options.rounds)]
    print_checks(checks)


if __name__ == "__main__":
    main()
