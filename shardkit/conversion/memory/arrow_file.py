"""Batches of one type or several, written to Arrow files of one type."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from shardkit.conversion.memory.batches import with_schema
from shardkit.errors import OutOfSpaceError, UsageError


class ArrowFile:
    """Writes batches to an Arrow file, and to further ones where the schema changes.

    Args:
        path: What the names of the files begin with.

    Raises:
        OutOfSpaceError: If the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._paths: list[Path] = []
        self._writer: pa.RecordBatchFileWriter | None = None
        self._schema: pa.Schema | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes in a batch."""
        batch = batch.replace_schema_metadata(batch.schema.metadata and _kept(batch.schema.metadata))
        try:
            if self._writer is None or batch.schema != self._schema:
                self._open(batch.schema)
            assert self._writer is not None
            self._writer.write_batch(batch)
        except OSError as error:
            raise OutOfSpaceError("rows cannot be written", where=str(self._path.parent), why=str(error)) from error

    def close(self) -> list[Path]:
        """Ends the files, and returns them in order."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        return self._paths

    def _open(self, schema: pa.Schema) -> None:
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        path = self._path.with_name(f"{self._path.name}-{len(self._paths):05d}.open")
        self._schema = schema
        self._writer = pa.ipc.new_file(path, schema)
        self._paths.append(path)


def unite_files(paths: Iterable[Path], target: Path) -> None:
    """Writes the rows of some files, in order, to one of a schema that holds all of them; removes the others.

    Raises:
        UsageError: If a column has types that no type holds.
        OutOfSpaceError: If the disk is full.
    """
    paths = list(paths)
    schemas = _with_lists([pa.ipc.open_file(path).schema for path in paths])
    try:
        schema = pa.unify_schemas(list(dict.fromkeys(schemas)), promote_options="permissive")
    except pa.ArrowException as error:
        raise UsageError(
            "a column has values of several types in different rows",
            why=str(error).partition("\n")[0],
            next_step="Give values of one type, or name the types by features",
        ) from error
    if len(paths) == 1:
        paths[0].replace(target)
        return
    try:
        with pa.ipc.new_file(target, schema) as writer:
            for batch in itertools.chain.from_iterable(map(_batches, paths)):
                writer.write_batch(with_schema(batch, schema))
    except OSError as error:
        raise OutOfSpaceError("rows cannot be written", where=str(target.parent), why=str(error)) from error
    for path in paths:
        path.unlink()


def _with_lists(schemas: list[pa.Schema]) -> list[pa.Schema]:
    """Returns the schemas with lists of any length where lists of a fixed one differ in it."""
    types: dict[str, set[pa.DataType]] = {}
    for field in itertools.chain.from_iterable(schemas):
        types.setdefault(field.name, set()).add(field.type)
    differing = {name for name, found in types.items() if len(found) > 1}
    return [
        pa.schema(
            [
                field.with_type(pa.list_(field.type.value_type))
                if field.name in differing and pa.types.is_fixed_size_list(field.type)
                else field
                for field in schema
            ],
            schema.metadata,
        )
        for schema in schemas
    ]


def _batches(path: Path) -> Iterable[pa.RecordBatch]:
    with pa.memory_map(str(path)) as mapped:
        reader = pa.ipc.open_file(mapped)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _kept(metadata: dict[bytes, bytes]) -> dict[bytes, bytes]:
    # Names of classes; what pandas says of its index differs from batch to batch.
    return {key: value for key, value in metadata.items() if key == b"huggingface"}
