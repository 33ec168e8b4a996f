"""A dataset of what a Python program holds: rows go to files among the intermediate ones, which are converted."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
import xxhash

from shardkit.conversion.inputs.database_rows import ROWS_FOLDER
from shardkit.conversion.memory.arrow_file import ArrowFile, unite_files
from shardkit.conversion.memory.batches import BATCH_ROWS, batch_of_rows, batches_of, with_schema
from shardkit.conversion.memory.keywords import request_of
from shardkit.conversion.plan import work_roots
from shardkit.conversion.run.convert import convert as run_request
from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.storage import files as storage

_READ_BYTES = 1 << 20


def convert(data: Any, destination: str | os.PathLike[str], *, workers: int | None = None, **options: Any) -> None:
    """Makes a dataset of paths, as the command does, or of rows that the program holds; see `shardkit.convert`."""
    place = os.fspath(destination)
    paths = _paths(data)
    if paths is not None:
        run_request(request_of(options, paths, place), workers)
        return
    with Writer(place, workers=workers, **options) as writer:
        for batch in batches_of(data):
            writer.write_batch(batch)


class Writer:
    """Takes in rows, and makes a dataset of them when the `with` block ends without an error.

        with shardkit.Writer("out/people", split={"train": 0.9, "test": 0.1}) as writer:
            writer.write({"name": "Ada", "age": 36})

    Nothing can be read at the destination before. Rows go to a file some thousands at a time. Several processes write
    parts of one dataset through writers with the same `spool`; one of them commits all.

    Args:
        destination: Of the dataset.
        features: Types of the columns, as `shardkit.features.make_feature` makes them; None infers them of all rows.
        spool: Folder of the rows until then, which all processes that write parts share; None takes one beside the
            other intermediate files.
        workers: Pieces of work at the same time; None lets the rows decide.
        options: Of `shardkit convert`, as keywords.

    Raises:
        UsageError: If an option is wrong.
    """

    def __init__(
        self,
        destination: str | os.PathLike[str],
        features: Features | None = None,
        *,
        spool: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        if "format" in options:
            raise UsageError("rows have no format", next_step="Leave format out")
        self._destination, self._workers, self._options = os.fspath(destination), workers, options
        request = request_of(options, ("rows",), self._destination)
        work_root, _ = work_roots(storage.normalize(request.destination), request.work_dir)
        self._folder = Path(spool) if spool is not None else storage.local_path(work_root) / ROWS_FOLDER
        self._prefix = "" if spool is not None else f"{secrets.token_hex(8)}-"
        self._features = features
        self._own: Part | None = None

    def write(self, row: Mapping[str, Any]) -> None:
        """Takes in a row: values by column.

        Raises:
            UsageError: If the values of a column have no common type.
            OutOfSpaceError: If the disk is full.
        """
        self._own_part().write(row)

    def write_batch(self, batch: Any) -> None:
        """Takes in several rows: a batch or table of Arrow, a data frame, or a dict of columns."""
        self._own_part().write_batch(batch)

    def part(self, index: int) -> Part:
        """Returns a part of the rows, to be written in a `with` block by any process; parts follow each other.

        A part that is written again takes the place of the one before.
        """
        schema = None if self._features is None else arrow_schema(self._features)
        return Part(self._folder, f"{self._prefix}part-{index:05d}", schema)

    def commit(self) -> None:
        """Makes the dataset of all parts that are whole, and removes them.

        Raises:
            ShardkitError: What `shardkit convert` ends with; the dataset is then as it was.
        """
        if self._own is not None:
            self._own.close()
            self._own = None
        paths = sorted(self._folder.glob(f"{self._prefix}part-*.arrow"))
        if len({pa.ipc.open_file(path).schema for path in paths}) > 1:
            united = self._folder / f"{self._prefix}part-united.arrow"
            unite_files(paths, united)
            paths = [united]
        if not paths:
            raise UsageError(
                "there are no rows", state="Nothing was committed", next_step="Write some, or make no dataset"
            )
        named = [path.rename(self._folder / f"rows-{i:05d}-{_digest(path)}.arrow") for i, path in enumerate(paths)]
        options = {**self._options, "format": "arrow"}
        declared = self._folder / f"{self._prefix}features.json"
        try:
            if self._features is not None:
                declared.write_bytes(msgspec.json.encode({"features": {f.name: _declared(f) for f in self._features}}))
                options["schema"] = declared
            run_request(request_of(options, tuple(map(str, named)), self._destination), self._workers)
        finally:
            self._remove([*named, declared])

    def close(self) -> None:
        """Removes the rows that were written; the dataset stays as it is."""
        if self._own is not None:
            self._own.discard()
            self._own = None
        self._remove(list(self._folder.glob(f"{self._prefix}part-*")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def _own_part(self) -> Part:
        if self._own is None:
            self._own = self.part(0)
        return self._own

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
            # The work folder, and that of the dataset if nothing else is there.
            self._folder.parent.rmdir()
            self._folder.parent.parent.rmdir()


class Part:
    """Some of the rows of a writer, visible to it once the part is closed.

    Args:
        folder: Of the files.
        name: Of the part.
        schema: Of all rows; None takes that of the values.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._target = folder / f"{name}.arrow"
        # Two processes may write one part, where the first seems lost.
        self._file = ArrowFile(folder / f"{name}.{secrets.token_hex(4)}")
        self._schema = schema
        self._rows: list[Mapping[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> None:
        """Takes in a row: values by column."""
        self._rows.append(row)
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def write_batch(self, batch: Any) -> None:
        """Takes in several rows."""
        self._flush()
        for part in batches_of(batch):
            self._file.write(part if self._schema is None else with_schema(part, self._schema))

    def close(self) -> None:
        """Ends the part."""
        self._flush()
        if paths := self._file.close():
            unite_files(paths, self._target)

    def discard(self) -> None:
        """Removes the part."""
        for path in self._file.close():
            path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._file.write(batch_of_rows(rows, self._schema))


def _paths(data: Any) -> tuple[str, ...] | None:
    """Returns paths as texts; None if the data is something else."""
    if isinstance(data, str | os.PathLike):
        return (os.fspath(data),)
    if isinstance(data, list | tuple) and data and all(isinstance(item, str | os.PathLike) for item in data):
        return tuple(map(os.fspath, data))
    return None


def _declared(feature: Feature) -> dict[str, Any]:
    """Returns what a schema file says of a feature."""
    said = {name: getattr(feature, name) for name in ("dtype", "vocabulary", "nullable", "media_type", "timezone")}
    said["shape"] = ["*" if size is None else size for size in feature.shape] or None
    return {name: value for name, value in said.items() if value is not None}


def _digest(path: Path) -> str:
    # The names and sizes of inputs name a dataset; those of rows must tell other rows from these.
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
