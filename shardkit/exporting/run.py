"""Writes the files of an export, several at a time. Each appears whole, and those that are there are kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardkit.dataset.card import put_card
from shardkit.errors import ConflictError, ShardkitError, UsageError, missing_extra
from shardkit.exporting.base import Rows, WrittenFile
from shardkit.exporting.options import ExportRequest, format_named
from shardkit.exporting.plan import ExportPlan, FilePlan, decode_plan, encode_plan, files_of, plan_export
from shardkit.features import Features
from shardkit.reading.batch import Assembler
from shardkit.reading.row_files import record_batch
from shardkit.reading.split import Split
from shardkit.reading.splits import Splits
from shardkit.runtime.threads import current_stop_event, worker_threads
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link
from shardkit.storage.temporary_files import temporary_beside

PLAN_NAME = "export.json"

_GO_ON = "Run the same command again: it goes on where it stopped"

Progress = Callable[[int], None]


class Exported(NamedTuple):
    """What an export has written.

    Attributes:
        files: By split, in the order of their rows.
        num_kept: Files that were there already.
    """

    plan: ExportPlan
    files: dict[str, list[WrittenFile]]
    num_kept: int


class Export:
    """An export that is planned and has its folder.

    Args:
        overwrite: Whether an export of something else that is there is removed.

    Raises:
        UsageError: If the format cannot hold a column, or there is none of a name.
        ConflictError: If the folder holds something else.
    """

    def __init__(self, dataset: Splits, target: str, request: ExportRequest, *, overwrite: bool = False) -> None:
        self.plan = plan_export(dataset.manifest, dataset.dataset.version, request)
        self._dataset = dataset
        self._format = format_named(request.format)
        if self._format.extra is not None and find_spec(self._format.extra[1]) is None:
            raise missing_extra(*self._format.extra)
        self.target = storage.normalize(target)
        claim(self.target, self.plan, overwrite=overwrite)
        self._files = files_of(self.plan)
        found = sizes_below(self.target)
        self.todo = [file for file in self._files if file.path not in found]

    @property
    def num_bytes(self) -> int:
        """Uncompressed bytes of the records that are read, about."""
        splits = {s.name: s for s in self._dataset.manifest.splits}
        shares = ((splits[f.split], f.stop - f.start) for f in self.todo)
        return sum(s.num_uncompressed_bytes * rows // max(1, s.num_examples) for s, rows in shares)

    def write(self, *, num_threads: int = 1, progress: Progress | None = None) -> Exported:
        """Writes the files.

        Args:
            progress: Called from several threads with numbers of uncompressed bytes just read.

        Raises:
            DamageError, StorageError, OutOfSpaceError: If rows cannot be read, or files not written.
            UsageError: If a value does not fit the format after all.
        """
        write = partial(self._write_file, progress=progress or (lambda _: None))
        try:
            with worker_threads(min(num_threads, max(1, len(self.todo))), "export") as threads:
                for future in as_completed([threads.submit(write, file) for file in self.todo]):
                    future.result()
            files = self._index()
            patterns = {s.name: f"{s.name}-*.{self._format.suffix}" for s in self.plan.splits}
            put_card(self.target, patterns, is_table=self.plan.format in ("parquet", "arrow", "csv", "jsonl"))
        except ShardkitError as error:
            raise error.with_state("Files that are there are whole", _GO_ON) from error
        except KeyboardInterrupt as error:
            error.add_note(f"Files that are there are whole. {_GO_ON}")
            raise
        return Exported(self.plan, files, len(self._files) - len(self.todo))

    def _write_file(self, file: FilePlan, progress: Progress) -> None:
        features = self.plan.features
        batches = _read(self._dataset[file.split], features, file, progress)
        target = storage.join(self.target, file.path)
        with storage.translate_os_errors(target), scratch_file(target) as path:
            try:
                self._format.write(path, Rows(features, file.start, file.stop - file.start, batches))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise UsageError(
                    f"a value does not fit {self._format.title}",
                    where=f"split {file.split}, rows {file.start:,} to {file.stop:,}",
                    why=str(error),
                    next_step="Leave its column out with --columns, or export to another format",
                ) from error
            with path.open("rb") as written:
                os.fsync(written.fileno())
            storage.put_file(path, target)

    def _index(self) -> dict[str, list[WrittenFile]]:
        sizes = sizes_below(self.target)
        files: dict[str, list[WrittenFile]] = {split.name: [] for split in self.plan.splits}
        for file in self._files:
            files[file.split].append(WrittenFile(file.path, file.stop - file.start, sizes[file.path]))
        for split, written in files.items():
            if (name := self._format.index_name(split)) is not None:
                content = self._format.index(self.plan.features, written)
                storage.commit_exclusive(storage.join(self.target, name), content)
        return files


def _read(split: Split, features: Features, file: FilePlan, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file, a block of the dataset at a time."""
    assembler = Assembler(features, decodes_text=False)
    ends, stop_event = np.cumsum(split.block_num_examples), current_stop_event()
    row = file.start
    for index in range(int(np.searchsorted(ends, row, side="right")), len(ends)):
        if row >= file.stop:
            return
        stop_event.check()
        first, stop = int(ends[index] - split.block_num_examples[index]), min(file.stop, int(ends[index]))
        block = split.block_loader.load(index, None)
        yield record_batch(assembler.assemble([(block, row - first, stop - first)]), features)
        progress(len(block.frames) * (stop - row) // len(block.starts))
        row = stop


def claim(target: str, plan: ExportPlan, *, overwrite: bool) -> None:
    """Makes a folder that of a plan, and removes the export of another plan from it if that is wanted.

    Raises:
        ConflictError: If it holds something else.
        UnsafeError: If the folder of a split is a link.
    """
    where, place = storage.redact(target), storage.join(target, PLAN_NAME)
    names = [name for name in storage.list_names(target) if not name.startswith(".")]
    held = decode_plan(storage.read_bytes(place), where) if PLAN_NAME in names else None
    if held is None and names:
        raise ConflictError(
            "there is something already that is no export",
            where=where,
            why=f"it holds {names[0]!r}",
            state="It is untouched",
            next_step="Name another folder",
        )
    if held is not None and held != plan and not overwrite:
        raise ConflictError(
            "there is another export already",
            where=where,
            why=_difference(held, plan),
            state="It is untouched",
            next_step="Name another folder, or replace it with --overwrite",
        )
    for split in (*(held.splits if held else ()), *plan.splits):
        refuse_link(target, split.name)
    if held is not None and held != plan:
        _remove(target, held)
    if held != plan:
        storage.make_folder(target)
        storage.commit_exclusive(place, encode_plan(plan))
    for folder in (target, *(storage.join(target, split.name) for split in plan.splits)):
        storage.remove_dead_temporaries(folder)


def _difference(held: ExportPlan, plan: ExportPlan) -> str:
    if held.format != plan.format:
        return f"it is {format_named(held.format).title}, not {format_named(plan.format).title}"
    if (held.dataset, held.version) != (plan.dataset, plan.version):
        if held.dataset == plan.dataset or held.version == plan.version:
            return "it is of another dataset"
        return f"it is of version {held.version}, not {plan.version}; files of several versions do not go together"
    if held.features != plan.features:
        return "it has other columns"
    return "it has other splits, or files of other sizes"


def _remove(target: str, plan: ExportPlan) -> None:
    """Removes the files of an export, and what makes the folder its own at last: cut off, it can be done again."""
    indexes = [format_named(plan.format).index_name(split.name) for split in plan.splits]
    for name in (*filter(None, indexes), *(file.path for file in files_of(plan)), PLAN_NAME):
        storage.delete_file(storage.join(target, name))


def sizes_below(target: str) -> dict[str, int]:
    """Returns the sizes of the files below a folder, by path relative to it."""
    prefix = f"{target.rstrip('/')}/"
    return {found.path.removeprefix(prefix): found.num_bytes for found in storage.list_files(target)}


@contextmanager
def scratch_file(target: str) -> Iterator[Path]:
    """Yields the path of a new local file, beside a local target, which is removed at the end."""
    if storage.is_local(target):
        place = storage.local_path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(place) as (path, _):
            yield path
        return
    with tempfile.TemporaryDirectory(prefix="shardkit-export-") as folder:
        yield Path(folder) / "file"
