"""Parquet, Arrow IPC files, CSV and JSON Lines, also as one local file with rows of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from shardkit.errors import ConflictError, UsageError, place_is_taken
from shardkit.exporting.base import ExportFormat, Rows
from shardkit.exporting.columns import JSON_NOTES, as_text, json_values, nested_type
from shardkit.features import Feature, Features
from shardkit.reading.row_files import shaped, shaped_schema
from shardkit.storage import files as storage
from shardkit.storage.temporary_files import fsync_folder, temporary_beside
from shardkit.units import MiB

_ROW_GROUP_BYTES = 32 * MiB
# Types as Hugging Face `datasets` names them, where Arrow has another name.
_HUGGING_FACE_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64", "date32[day]": "date32"}
_LOAD_DATASET = """from datasets import load_dataset
files = {{"{split}": "{files}"}}
print(load_dataset("KIND", data_files=files)["{split}"][0])"""


class Parquet(ExportFormat):
    """Parquet with zstd; row groups of about 32 MiB before compression."""

    title = "Parquet"
    suffix = "parquet"
    reader = _LOAD_DATASET.replace("KIND", "parquet")

    def why_not(self, feature: Feature) -> str | None:
        type_ = feature.value_type
        if pa.types.is_decimal(type_) and type_.scale < 0:
            return "a decimal of Parquet has no negative scale"
        return None

    def write(self, path: Path, rows: Rows) -> None:
        import pyarrow.parquet as pq

        schema = _parquet_schema(rows.features)
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            held: list[pa.RecordBatch] = []
            num_bytes = 0
            for batch in rows.batches:
                held.append(shaped(batch, rows.features).cast(schema))
                num_bytes += batch.nbytes
                if num_bytes >= _ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held, schema))
                    held, num_bytes = [], 0
            if held:
                writer.write_table(pa.Table.from_batches(held, schema))


def _parquet_schema(features: Features) -> pa.Schema:
    # Arrow cannot read lists of a fixed size back from Parquet where one is null; it can if they are of any size.
    fields = zip(shaped_schema(features), features, strict=True)
    schema = pa.schema([x.with_type(nested_type(x.type, f.value_type)) if f.nullable else x for x, f in fields])
    return _with_class_names(schema, features)


class Arrow(ExportFormat):
    """Arrow IPC files, which is Feather of version 2, uncompressed so that they can be mapped."""

    title = "Arrow"
    suffix = "arrow"
    reader = """import glob, pyarrow as pa
files = sorted(glob.glob("{files}"))
print(pa.concat_tables(pa.ipc.open_file(f).read_all() for f in files))"""

    def write(self, path: Path, rows: Rows) -> None:
        schema = _with_class_names(shaped_schema(rows.features), rows.features)
        with pa.ipc.new_file(path, schema) as writer:
            for batch in rows.batches:
                writer.write_batch(shaped(batch, rows.features).cast(schema))


class Csv(ExportFormat):
    """CSV with a header line; text is quoted, a null is nothing, and an empty text is two quotes."""

    title = "CSV"
    suffix = "csv"
    reader = 'import duckdb\nrows = duckdb.read_csv("{files}")\nprint(rows.limit(5))'
    notes = 'a null is an empty field, an empty text is ""; the names of classes are in export.json'

    def why_not(self, feature: Feature) -> str | None:
        if not feature.is_scalar:
            return "a field of CSV holds one value, not a list"
        return "a field of CSV holds text, not bytes" if feature.dtype == "bytes" else None

    def why_not_all(self, features: Features) -> str | None:
        if len(features) == 1 and features[0].nullable:
            return "a null alone in its row is an empty line, which readers pass over"
        return None

    def write(self, path: Path, rows: Rows) -> None:
        from pyarrow import csv

        empty = shaped_schema(rows.features).empty_table().columns
        fields = [as_text(c.combine_chunks(), f).type for c, f in zip(empty, rows.features, strict=True)]
        schema = pa.schema([pa.field(f.name, type_) for f, type_ in zip(rows.features, fields, strict=True)])
        with csv.CSVWriter(path, schema) as writer:
            for batch in rows.batches:
                columns = [as_text(c, f) for c, f in zip(batch.columns, rows.features, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


class JsonLines(ExportFormat):
    """JSON Lines: one object a row."""

    title = "JSON Lines"
    suffix = "jsonl"
    notes = JSON_NOTES
    reader = _LOAD_DATASET.replace("KIND", "json")

    def write(self, path: Path, rows: Rows) -> None:
        encoder = msgspec.json.Encoder()
        with path.open("wb") as file:
            for batch in rows.batches:
                file.write(encoder.encode_lines(json_rows(batch, rows.features)))


def json_rows(batch: pa.RecordBatch, features: Features) -> list[dict[str, Any]]:
    """Returns the rows of a batch as objects of JSON."""
    columns = [json_values(c, f) for c, f in zip(shaped(batch, features).columns, features, strict=True)]
    names = [f.name for f in features]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


_BY_ENDING: dict[str, ExportFormat] = {".parquet": Parquet(), ".csv": Csv(), ".jsonl": JsonLines()}


def check_rows_file(path: Path, features: Features) -> None:
    """Checks that rows of these features can become a file of that name.

    Raises:
        ConflictError: If it is there already.
        UsageError: If no format has that ending, or it has no place for one of the features.
    """
    if path.exists() or path.is_symlink():
        raise place_is_taken(str(path))
    if path.suffix not in _BY_ENDING:
        raise UsageError(
            f"no format has the ending {path.suffix!r}",
            where=str(path),
            next_step=f"End the name with {', '.join(_BY_ENDING)}",
        )
    kind = _BY_ENDING[path.suffix]
    for feature in features:
        if (why := kind.why_not(feature)) is not None:
            raise UsageError(
                f"{kind.title} has no place for {feature.name!r}, which is {feature.describe_type()}",
                why=why,
                next_step="Leave it out, or write .jsonl",
            )


def write_rows(path: Path, features: Features, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes rows to a file that is there whole or not at all, and returns how many.

    Args:
        path: Its ending, one of `.parquet`, `.csv` and `.jsonl`, says how.
        batches: With the schema of the features.

    Raises:
        ConflictError: If there is such a file, which is not touched.
        UsageError: If it cannot be written.
    """
    check_rows_file(path, features)
    num_rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal num_rows
        for batch in batches:
            num_rows += batch.num_rows
            yield batch

    storage.make_folder(str(path.parent))
    with storage.translate_os_errors(path), temporary_beside(path) as (temporary, file):
        # These formats do not ask how many rows there will be.
        _BY_ENDING[path.suffix].write(temporary, Rows(features, 0, 0, counted()))
        os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # Exclusive, unlike a rename.
        except FileExistsError as error:
            raise ConflictError("there is something already", where=str(path), state="It is untouched") from error
        fsync_folder(path.parent)
    return num_rows


def _with_class_names(schema: pa.Schema, features: Features) -> pa.Schema:
    """Returns a schema that says which columns are classes; `datasets` wants all columns described, or none."""
    if all(f.vocabulary is None for f in features):
        return schema
    described = {f.name: _described(field.type, f) for field, f in zip(schema, features, strict=True)}
    return schema.with_metadata({"huggingface": msgspec.json.encode({"info": {"features": described}})})


def _described(type_: pa.DataType, feature: Feature) -> dict[str, Any]:
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        length = type_.list_size if pa.types.is_fixed_size_list(type_) else -1
        return {"_type": "Sequence", "length": length, "feature": _described(type_.value_type, feature)}
    if feature.vocabulary is not None:
        return {"_type": "ClassLabel", "names": feature.vocabulary}
    return {"_type": "Value", "dtype": _HUGGING_FACE_NAMES.get(str(type_), str(type_))}
