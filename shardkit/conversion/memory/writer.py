"""A dataset of what a Python program holds: rows go to files among the intermediate ones, which are converted."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, Unpack, cast

import msgspec
import pyarrow as pa
import xxhash

from shardkit.conversion.inputs.database_rows import ROWS_FOLDER
from shardkit.conversion.inputs.option_checks import check_options
from shardkit.conversion.memory.arrow_file import unite_files
from shardkit.conversion.memory.batches import batches_of
from shardkit.conversion.memory.keywords import (
    ROWS_FORMAT,
    check_for_rows,
    checked_destination,
    checked_workers,
    request_of,
)
from shardkit.conversion.memory.part import Part
from shardkit.conversion.memory.typed_options import ConvertOptions, RowOptions
from shardkit.conversion.plan import work_roots
from shardkit.conversion.run.convert import convert as run_request
from shardkit.dataset.open import newest_version
from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema
from shardkit.storage import files as storage
from shardkit.storage.temporary_files import create_locked, try_lock

_READ_BYTES = 1 << 20
_NOTHING = "Nothing was committed"


def convert(
    data: Any, destination: str | os.PathLike[str], *, workers: int | None = None, **options: Unpack[ConvertOptions]
) -> None:
    """Makes a dataset of paths, as the command does, or of rows that the program holds; see `shardkit.convert`."""
    paths = _paths(data)
    if paths is not None:
        run_request(request_of(options, paths, checked_destination(destination)), checked_workers(workers))
        return
    with Writer(destination, workers=workers, **cast(RowOptions, options)) as writer:
        for batch in batches_of(data):
            writer.write_batch(batch)


class Writer:
    """Takes in rows, and makes a dataset of them when the `with` block ends without an error.

        with shardkit.Writer("out/people", split={"train": 0.9, "test": 0.1}) as writer:
            writer.write({"name": "Ada", "age": 36})

    Nothing can be read at the destination before. Rows go to a file some thousands at a time. With a `spool`, several
    processes write parts of one dataset, each through its own writer. One writer commits all parts.

    Args:
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
        **options: Unpack[RowOptions],
    ) -> None:
        check_for_rows(options)
        # The program may change its folder before the end.
        self._destination = storage.normalize(checked_destination(destination))
        self._workers, self._options, self._features = checked_workers(workers), options, features
        request = request_of(options, ("rows",), self._destination)
        if not request.append:
            check_options(request)
        work_root, _ = work_roots(self._destination, request.work_dir)
        if features is not None and not all(isinstance(feature, Feature) for feature in features):
            raise UsageError(
                "features are made by shardkit.features.make_feature",
                next_step="Write them like (make_feature('age', 'int64'), make_feature('name', 'string'))",
            )
        self._is_shared = spool is not None
        self._folder = Path(spool).absolute() if spool is not None else storage.local_path(work_root) / ROWS_FOLDER
        self._prefix = "" if self._is_shared else f"{secrets.token_hex(8)}-"
        self._own: Part | None = None
        self._lock: BinaryIO | None = None
        # Programs write from several threads.
        self._mutex = threading.Lock()
        self._gave_parts = False
        self._is_closed = False

    def write(self, row: Mapping[str, Any]) -> None:
        """Takes in a row: values by column.

        Raises:
            UsageError: If the values of a column have no common type, or the writer has a `spool` or is closed.
            OutOfSpaceError: If the disk is full.
        """
        self._own_part().write(row)

    def write_batch(self, batch: Any) -> None:
        """Takes in several rows: a batch or table of Arrow, a data frame, a dict of columns, or dicts."""
        self._own_part().write_batch(batch)

    def part(self, index: int) -> Part:
        """Returns a part of the rows, to be written in a `with` block by any process; parts follow each other by index.

        A part that is written again takes the place of the one before.
        """
        if type(index) is not int or index < 0:
            raise UsageError(f"a part is a whole number from 0, and not {index!r}", next_step="Number the parts")
        if self._own is not None:
            raise UsageError(
                "rows were written to the writer itself", next_step="Write all rows to parts, or all to the writer"
            )
        self._gave_parts = True
        return self._part(index)

    def _part(self, index: int) -> Part:
        if not self._is_shared and self._lock is None:
            with storage.translate_os_errors(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                _remove_dead(self._folder)
                self._lock = create_locked(lambda: self._folder / f"{self._prefix}lock")[1]
        schema = None if self._features is None else arrow_schema(self._features)
        return Part(self._folder, f"{self._prefix}part-{index:05d}", schema, self._destination)

    def commit(self, num_parts: int | None = None) -> None:
        """Makes the dataset of all parts, and removes them. Their numbers may have gaps.

        Args:
            num_parts: How many there must be; None takes those that were begun.

        Raises:
            UsageError: If a part was begun and is not whole, or is of another dataset, or there are more or fewer.
            ShardkitError: What `shardkit convert` ends with; dataset and parts are then as they were.
        """
        self._check_open()
        if self._own is not None:
            self._own.close()
            self._own = None
        with storage.translate_os_errors(self._folder):
            marks = list(self._folder.glob(f"{self._prefix}part-*.done"))
            begun = list(self._folder.glob(f"{self._prefix}part-*.begun"))
            _check_marks(marks, begun, self._destination, num_parts)
            parts = sorted(self._folder.glob(f"{self._prefix}part-*.arrow"), key=_number_of)
            if not parts:
                step = "Write some, or make no dataset"
                if not self._is_shared:
                    step = f"{step}; parts of several writers take one spool, which each of them names"
                raise UsageError("there are no rows", state=_NOTHING, next_step=step)
            self._convert(parts)
        self._is_closed = True
        self._remove([*parts, *marks, *begun, *self._released()])

    def close(self) -> None:
        """Removes the rows that were written here and not committed, but for parts in a `spool`."""
        self._is_closed = True
        if self._own is not None:
            self._own.discard()
            self._own = None
        self._released()
        self._remove([] if self._is_shared else list(self._folder.glob(f"{self._prefix}*")))

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

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the writer is closed", next_step="Make another one for further rows")

    def _own_part(self) -> Part:
        self._check_open()
        if self._is_shared:
            raise UsageError("rows of a writer with a spool go to parts", next_step="Write to writer.part(0)")
        if self._gave_parts:
            raise UsageError(
                "rows were written to parts of the writer", next_step="Write all rows to parts, or all to the writer"
            )
        with self._mutex:
            if self._own is None:
                self._own = self._part(0)
            return self._own

    def _convert(self, parts: Sequence[Path]) -> None:
        """Converts links to the parts: their names and sizes name the dataset, and must tell other rows from these."""
        # Rows that are appended twice are there twice.
        version = f"v{newest_version(self._destination) + 1}-" if self._options.get("append") else ""
        made: list[Path] = []
        try:
            if len({pa.ipc.open_file(path).schema for path in parts}) > 1:
                made.append(self._folder / f"{self._prefix}united.arrow")
                unite_files(parts, made[0])
                parts = made[:1]
            named = [self._folder / f"rows-{version}{i:05d}-{_digest(path)}.arrow" for i, path in enumerate(parts)]
            for path, name in zip(parts, named, strict=True):
                made.append(name)
                _link(path, name)
            options = {**self._options, "format": ROWS_FORMAT}
            if self._features is not None:
                made.append(self._folder / f"{self._prefix}features.json")
                made[-1].write_bytes(msgspec.json.encode({"features": {f.name: _declared(f) for f in self._features}}))
                options["schema"] = made[-1]
            request = request_of(options, tuple(map(str, named)), self._destination)
            run_request(request, self._workers, can_go_on=False)
        finally:
            self._remove(made)

    def _released(self) -> list[Path]:
        if self._lock is None:
            return []
        self._lock.close()
        return [self._folder / f"{self._prefix}lock"]

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
            # The work folder, and that of the dataset if nothing else is there.
            self._folder.parent.rmdir()
            self._folder.parent.parent.rmdir()


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


def _remove_dead(folder: Path) -> None:
    """Removes the rows of writers whose processes were killed: their locks ended with them."""
    for path in folder.glob(f"{'[0-9a-f]' * 16}-lock"):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            if try_lock(file.fileno()):
                for left in folder.glob(f"{path.name.removesuffix('lock')}*"):
                    left.unlink(missing_ok=True)


def _check_marks(whole: Sequence[Path], begun: Iterable[Path], destination: str, num_parts: int | None) -> None:
    numbers = {_number_of(mark): mark for mark in whole}
    open_parts = {_number_of(Path(mark.name.split(".")[0])): mark for mark in begun}
    if unfinished := sorted(open_parts.keys() - numbers):
        raise UsageError(
            f"part {unfinished[0]:,} was begun and is not whole",
            state=_NOTHING,
            next_step=f"Write it again, or give it up by removing {open_parts[unfinished[0]]}",
        )
    if others := [number for number, mark in sorted(numbers.items()) if mark.read_text("utf-8") != destination]:
        of = numbers[others[0]].read_text("utf-8")
        raise UsageError(
            f"part {others[0]:,} was written for {storage.redact(of)}",
            state=_NOTHING,
            next_step="Give each dataset another spool",
        )
    if num_parts is not None and len(numbers) != num_parts:
        raise UsageError(
            f"{len(numbers):,} parts are whole, and not {num_parts:,}",
            state=_NOTHING,
            next_step="Write the others first",
        )


def _link(path: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    try:
        name.hardlink_to(path)
    except OSError:
        # Some file systems have no such links.
        shutil.copyfile(path, name)


def _number_of(part: Path) -> int:
    return int(part.stem.rpartition("-")[2])


def _digest(path: Path) -> str:
    # The names and sizes of inputs name a dataset; those of rows must tell other rows from these.
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
