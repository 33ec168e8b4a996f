"""Framed `tf.train.Example` records to columns: CPU time of shardkit's kernel and of others on the same block.

    python -m tests.benchmarks.reading.scan_decode_speed --rounds 7

A block is a MiB of framed records (images: 4 MiB), as a reader has it after inflating. Scanning follows the frames and
checks both CRC32C of every record. tfx_bsl and TensorFlow decode records that were cut out before, without CRCs: what
cutting and checking costs them is in the scan table. Contenders that are not installed are named as such; `peers.py
--install DIR` makes an environment that has all: `DIR/tensorflow/bin/python -m` this module.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit.encoding import encoder
from shardkit.encoding import kernel_reference as reference
from shardkit.encoding.decoder import RecordDecoder
from shardkit.encoding.tfrecord import OVERHEAD_BYTES, iter_records
from shardkit.units import MiB
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
PYTHON = "Python loop + google_crc32c"
REFERENCE = "shardkit reference"
DECODER = "shardkit.encoding.decoder (scan + decode to Arrow)"
UPB = "tf.train.Example (upb) to NumPy, no scan"
TFX_BSL = "tfx_bsl C++ decoder, no scan"
PARSE_EXAMPLE = "tf.io.parse_example, no scan"
OTHERS = (UPB, TFX_BSL, PARSE_EXAMPLE)
SCAN_TARGET_GB = 10.0
WORKLOADS: tuple[tuple[Callable[[int], Workload], int], ...] = (
    (rows_of_columns, MiB),
    (rows_of_tokens, MiB),
    (rows_of_floats, MiB),
    (rows_of_images, 4 * MiB),
)
KINDS = {"bytes_list": 1, "float_list": 2, "int64_list": 3, "little_endian_bytes": 4}
DTYPES = {2: np.float32, 3: np.int64}


def block_of(make: Callable[[int], Workload], num_bytes: int) -> tuple[Workload, bytes]:
    """Returns rows whose framed records fill a block, and the block."""
    sample = make(64)
    row_bytes = len(encoder.encode_batch(sample.batch, sample.features).data) / 64
    work = make(int(num_bytes / row_bytes))
    return work, bytes(encoder.encode_batch(work.batch, work.features).data)


def specs_of(work: Workload) -> list[tuple[bytes, int, int, bool]]:
    """Returns what the kernel must know of each feature: name, kind, values per example, whether it is required."""
    return [(f.name.encode(), KINDS[f.stored_as], f.num_values or -1, True) for f in work.features]


def time_scan(work: Workload, block: bytes, rounds: int) -> float:
    """Prints the table of scanning a block and returns the kernel's rate in GB a CPU second."""
    kernel = importlib.import_module("shardkit._kernel")
    num_rows = work.batch.num_rows
    lengths = [len(record) for record in iter_records(block, "block")]
    for implementation in (kernel, reference):
        _, found, states, end = implementation.scan(block)
        if np.frombuffer(found, np.int64).tolist() != lengths or any(bytes(states)) or end != len(block):
            raise SystemExit(f"{work.title}: {implementation.__name__}.scan does not find the records")
    seconds = median_seconds(
        [
            Contender(KERNEL, lambda: kernel.scan(block)),
            Contender(REFERENCE, lambda: reference.scan(block)),
            Contender(PYTHON, lambda: sum(1 for _ in iter_records(block, "block"))),
        ],
        rounds,
    )
    rows = [
        (name, 1e9 * s / num_rows, len(block) / s / 1e9, s / seconds[KERNEL])
        for name, s in sorted(seconds.items(), key=lambda item: item[1])
    ]
    title = f"scan + CRC, {work.title}: {num_rows} records of {len(block) / num_rows - OVERHEAD_BYTES:.0f} B"
    print_table(title, ("contender", "ns/record", "GB/s a core", "CPU time, kernel = 1"), rows)
    return len(block) / seconds[KERNEL] / 1e9


def time_decode(work: Workload, block: bytes, rounds: int) -> None:
    """Prints the table of decoding a block."""
    kernel = importlib.import_module("shardkit._kernel")
    specs = specs_of(work)
    starts, lengths = kernel.scan(block)[:2]
    share = 1 / 8
    part, part_batch = _first_part(block, work, share)
    part_starts, part_lengths = kernel.scan(part)[:2]
    decoder = RecordDecoder(work.features)
    _check_columns(work, work.batch, decoder.decode(block, "block"), DECODER)
    if _raw(kernel.decode(part, part_starts, part_lengths, specs)) != _raw(
        reference.decode(part, part_starts, part_lengths, specs)
    ):
        raise SystemExit(f"{work.title}: kernel and reference decode differently")
    share = part_batch.num_rows / work.batch.num_rows
    contenders = [
        Contender(f"{KERNEL}, decode alone", lambda: kernel.decode(block, starts, lengths, specs)),
        Contender(DECODER, lambda: decoder.decode(block, "block")),
        Contender(
            f"{REFERENCE}, decode alone", lambda: reference.decode(part, part_starts, part_lengths, specs), share
        ),
    ]
    contenders += _others(work, list(iter_records(block, "block")))
    seconds = median_seconds(contenders, rounds)
    num_rows = work.batch.num_rows
    rows = [
        (name, 1e9 * s / num_rows, len(block) / s / 1e6, s / seconds[DECODER])
        for name, s in sorted(seconds.items(), key=lambda item: item[1])
    ]
    headers = ("contender", "ns/record", "MB/s a core", "CPU time, shardkit.encoding.decoder = 1")
    print_table(f"decode, {work.title}: {num_rows} records", headers, rows)
    absent = [name for name in OTHERS if name not in seconds]
    if absent:
        print(f"not installed here: {', '.join(absent)}")


def _first_part(block: bytes, work: Workload, share: float) -> tuple[bytes, pa.RecordBatch]:
    batch = work.batch.slice(0, max(1, int(work.batch.num_rows * share)))
    return bytes(encoder.encode_batch(batch, work.features).data), batch


def _others(work: Workload, records: list[bytes]) -> list[Contender]:
    found = []
    if is_installed("tensorflow"):
        part = records[: max(1, len(records) // 8)]
        upb = _upb_decoder(work)
        _check_arrays(work, upb(part), len(part), UPB)
        found.append(Contender(UPB, lambda: upb(part), len(part) / len(records)))
        parse = _tensorflow_parser(work, records)
        _check_arrays(work, parse(), len(records), PARSE_EXAMPLE)
        found.append(Contender(PARSE_EXAMPLE, parse))
    if is_installed("tfx_bsl"):
        decoder = _tfx_decoder(work)
        _check_columns(work, work.batch, decoder(records), TFX_BSL)
        found.append(Contender(TFX_BSL, lambda: decoder(records)))
    return found


def _upb_decoder(work: Workload) -> Callable[[list[bytes]], dict[str, Any]]:
    parse = importlib.import_module("tensorflow").train.Example.FromString
    columns = [(f.name, f.stored_as, f.num_values, DTYPES.get(KINDS[f.stored_as])) for f in work.features]

    def decode(records: list[bytes]) -> dict[str, Any]:
        maps = [parse(record).features.feature for record in records]
        arrays: dict[str, Any] = {}
        for name, kind, num_values, dtype in columns:
            if dtype is None:
                arrays[name] = [getattr(m[name], kind).value[0] for m in maps]
            else:
                arrays[name] = np.empty((len(maps), num_values), dtype)
                for row, m in zip(arrays[name], maps, strict=True):
                    row[:] = getattr(m[name], kind).value
        return arrays

    return decode


def _tensorflow_parser(work: Workload, records: list[bytes]) -> Callable[[], dict[str, Any]]:
    tf = importlib.import_module("tensorflow")
    types = {1: tf.string, 2: tf.float32, 3: tf.int64}
    spec = {f.name: tf.io.FixedLenFeature([f.num_values], types[KINDS[f.stored_as]]) for f in work.features}
    parse = tf.function(lambda serialized: tf.io.parse_example(serialized, spec))
    serialized = tf.constant(records)
    return lambda: parse(serialized)


def _tfx_decoder(work: Workload) -> Callable[[list[bytes]], pa.RecordBatch]:
    protos = importlib.import_module("tensorflow_metadata.proto.v0.schema_pb2")
    types = {1: protos.BYTES, 2: protos.FLOAT, 3: protos.INT}
    schema = protos.Schema()
    for f in work.features:
        schema.feature.add(name=f.name, type=types[KINDS[f.stored_as]])
    coders = importlib.import_module("tfx_bsl.coders.example_coder")
    decode: Callable[[list[bytes]], pa.RecordBatch] = coders.ExamplesToRecordBatchDecoder(
        schema.SerializeToString()
    ).DecodeBatch
    return decode


def _check_columns(work: Workload, expected: pa.RecordBatch, found: pa.RecordBatch, who: str) -> None:
    for f in work.features:
        want, got = _flat(expected.column(f.name)), _flat(found.column(f.name))
        if found.num_rows != expected.num_rows or not got.cast(want.type).equals(want):
            raise SystemExit(f"{work.title}: {who} decodes {f.name} differently")


def _flat(column: pa.Array) -> pa.Array:
    while pa.types.is_nested(column.type):
        column = column.flatten()
    return column


def _check_arrays(work: Workload, found: dict[str, Any], num_rows: int, who: str) -> None:
    for f in work.features:
        want = _flat(work.batch.column(f.name).slice(0, num_rows)).to_numpy(zero_copy_only=False)
        values = found[f.name]
        got = np.ravel(values.numpy() if hasattr(values, "numpy") else values)
        if want.dtype == object:
            same = [w.encode() if isinstance(w, str) else w for w in want] == list(got)
        else:
            same = np.array_equal(got, want)
        if not same:
            raise SystemExit(f"{work.title}: {who} decodes {f.name} differently")


def _raw(decoded: tuple[Any, Any]) -> tuple[list[list[bytes | None]], bytes]:
    columns, problems = decoded
    return [[None if part is None else bytes(part) for part in column] for column in columns], bytes(problems)


def main() -> None:
    """Prints two tables for each kind of rows, then the target of scanning."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not encoder.HAS_KERNEL:
        raise SystemExit("the compiled kernel was not built here: there is nothing to compare")
    print_machine("pyarrow", "numpy", "protobuf", "tensorflow", "tfx-bsl")
    rates = {}
    for make, num_bytes in WORKLOADS:
        work, block = block_of(make, num_bytes)
        rates[work.title] = time_scan(work, block, options.rounds)
        time_decode(work, block, options.rounds)
    print_checks([Check("scan + CRC, 458-byte records, GB/s a core", rates["20 columns"], SCAN_TARGET_GB)])


if __name__ == "__main__":
    main()
