"""MosaicML's MDS, version 2: a folder for each split, with shards and the `index.json` that lists them.

A shard is the number of its samples, where each begins (uint32), a JSON document of the columns, and the samples. A
sample is the lengths (uint32) of its columns of no fixed size, and the bytes of all columns, in the order of the names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.exporting.base import ExportFormat, Rows, WrittenFile
from shardkit.exporting.columns import as_text, flat_values, is_numeric, json_values
from shardkit.features import Feature, Features
from shardkit.reading.row_files import shaped

_MAX_BYTES = 2**32 - 1
_SHAPE_DTYPES = ("<u1", "<u2", "<u4")


class Mds(ExportFormat):
    """Uncompressed MDS without hashes."""

    title = "MDS"
    suffix = "mds"
    notes = (
        "truth values are uint8, lists of numbers ndarray, other lists and columns with nulls json; dates and times "
        "are text, bytes in lists base64, durations counts of their unit; the names of classes are in export.json"
    )
    reader = """from streaming import StreamingDataset
rows = StreamingDataset(local="{folder}/{split}", batch_size=1)
print(len(rows), rows[0])"""

    def why_not(self, feature: Feature) -> str | None:
        is_file = feature.is_scalar and feature.dtype == "bytes"
        return "MDS has no null, and bytes have no place in its json" if is_file and feature.nullable else None

    def file_name(self, split: str, index: int, num_files: int) -> str:
        return f"{split}/shard.{index:05d}.mds"

    def write(self, path: Path, rows: Rows) -> None:
        ordered = sorted(rows.features, key=lambda f: f.name)
        settings = json.dumps(_settings(rows.features), sort_keys=True).encode()
        sizes = [encoding_of(f)[1] for f in ordered]
        variable = [i for i, size in enumerate(sizes) if size is None]
        ends = np.zeros(rows.num_rows + 1, np.int64)
        ends[0] = 4 + 4 * len(ends) + len(settings)
        row = 0
        with path.open("wb") as file:
            file.seek(int(ends[0]))
            for batch in rows.batches:
                table = shaped(batch, rows.features)
                columns = [_encode(table.column(f.name), f) for f in ordered]
                for values in zip(*columns, strict=True):
                    head = np.array([len(values[i]) for i in variable], "<u4").tobytes()
                    sample = b"".join((head, *values))
                    file.write(sample)
                    row += 1
                    ends[row] = ends[row - 1] + len(sample)
            if ends[-1] > _MAX_BYTES:
                raise UsageError(
                    "an MDS shard would have more than 4 GiB", next_step="Give fewer rows with --rows-per-file"
                )
            file.seek(0)
            file.write(np.array([rows.num_rows, *ends], "<u4").tobytes() + settings)

    def index_name(self, split: str) -> str | None:
        return f"{split}/index.json"

    def index(self, features: Features, files: Sequence[WrittenFile]) -> bytes:
        settings = _settings(features)
        shards = [
            {
                **settings,
                "raw_data": {"basename": PurePosixPath(file.name).name, "bytes": file.num_bytes, "hashes": {}},
                "samples": file.num_rows,
                "zip_data": None,
            }
            for file in files
        ]
        return json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()


def _settings(features: Features) -> dict[str, Any]:
    ordered = sorted(features, key=lambda f: f.name)
    encodings, sizes = zip(*map(encoding_of, ordered), strict=True)
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "column_names": [f.name for f in ordered],
        "column_encodings": encodings,
        "column_sizes": sizes,
    }


def encoding_of(feature: Feature) -> tuple[str, int | None]:
    """Returns how MDS stores a column, and the bytes of a value if they are the same for all."""
    if feature.nullable or feature.is_json or (feature.shape and not is_numeric(feature)):
        return "json", None
    if is_numeric(feature):
        dtype = _dtype(feature)
        if not feature.shape:
            return ("int" if dtype.name == "int64" else dtype.name), dtype.itemsize
        if feature.num_values is None:
            return f"ndarray:{dtype.name}", None
        shape = ",".join(map(str, feature.shape))
        return f"ndarray:{dtype.name}:{shape}", dtype.itemsize * feature.num_values
    if feature.dtype.startswith("duration"):
        return "int", 8
    return {"bytes": "bytes", "decima": "str_decimal"}.get(feature.dtype[:6], "str"), None


def _dtype(feature: Feature) -> np.dtype[Any]:
    return np.dtype("uint8" if feature.dtype == "bool" else feature.dtype)


def _encode(column: pa.Array, feature: Feature) -> list[bytes]:
    """Returns the bytes of each value of a column."""
    encoding, size = encoding_of(feature)
    if encoding == "json":
        return [msgspec.json.encode(value) for value in json_values(column, feature)]
    if encoding == "bytes":
        found: list[bytes] = column.to_pylist()
        return found
    values = as_text(column, feature) if not is_numeric(feature) else flat_values(column)
    if encoding.startswith("str"):
        return [text.encode() for text in values.to_pylist()]
    numbers = values.to_numpy(zero_copy_only=False)
    dtype = _dtype(feature) if is_numeric(feature) else np.dtype(np.int64)
    raw = numbers.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    if size is not None:
        return [raw[start : start + size] for start in range(0, len(raw), size)]
    ends = (np.asarray(column.offsets) * dtype.itemsize).tolist()
    heads = [_array_head(length) for length in np.diff(np.asarray(column.offsets)).tolist()]
    return [head + raw[a:b] for head, a, b in zip(heads, ends, ends[1:], strict=False)]


def _array_head(length: int) -> bytes:
    """Returns the number of dimensions, 1, with the type of the length, and the length."""
    code = 0 if length < 2**8 else 1 if length < 2**16 else 2
    return bytes([1 << 2 | code]) + np.array([length], _SHAPE_DTYPES[code]).tobytes()
