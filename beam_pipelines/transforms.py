"""Two PTransforms for pipelines of users: `WriteShards` ends one in a dataset, `ReadShards` begins one with its rows.

Each bundle writes a part of a `shardkit.Writer`; one last step commits those that bundles ended with.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from shardkit.conversion.inputs.database_rows import ROWS_FOLDER
from shardkit.conversion.memory.part import Part
from shardkit.conversion.memory.writer import Writer
from shardkit.conversion.plan import work_roots
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.split import Split
from shardkit.storage import files as storage

_READ_ROWS = 16_384
_AT_ONCE = 1024
_TYPES = {"string": str, "bytes": bytes, "bool": bool, "uint64": Any} | dict.fromkeys(
    ("float16", "float32", "float64"), float
)


class _Target(NamedTuple):
    """The dataset that is made, and the folder of its parts."""

    destination: str
    features: Features | None
    folder: Path
    workers: int | None
    options: dict[str, Any]

    def writer(self) -> Writer:
        return Writer(self.destination, self.features, spool=self.folder, workers=self.workers, **self.options)

    def part_file(self, index: int) -> Path:
        return self.folder / f"part-{index:05d}.arrow"


class WriteShards(beam.PTransform):
    """Makes a dataset of all rows of a bounded PCollection: dicts, Beam rows, or batches and tables of Arrow.

    Gives a PCollection of one element, the destination, when the dataset is committed. Rows come in no order, so two
    runs give the same rows in other shards.

    Args:
        features: Types of the columns, as `shardkit.features.make_feature` makes them; None infers them of all rows.
        spool: Folder of the rows until then, which all workers share; None takes one of this machine.
        workers: Pieces of work at the same time when the dataset is committed; None lets the rows decide.
        options: Of `shardkit convert`, as keywords.

    Raises:
        UsageError: If an option is wrong.
    """

    def __init__(
        self,
        destination: str,
        features: Features | None = None,
        *,
        spool: str | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        place = storage.normalize(destination)
        root = Path(spool) if spool else storage.local_path(work_roots(place, options.get("work_dir"))[0]) / ROWS_FOLDER
        # Each run has a new folder: parts of a failed run are no rows of the next.
        folder = root.absolute() / secrets.token_hex(8)
        self._target = _Target(place, features, folder, workers, options)
        self._target.writer()

    def expand(self, rows: beam.PCollection) -> beam.PCollection:
        """Adds the steps."""
        parts = (
            rows
            | "All together" >> beam.WindowInto(GlobalWindows())
            | "Write parts" >> beam.ParDo(_WritePart(self._target)).with_output_types(int)
        )
        # Without rows there would be no element to commit, and no error.
        start = rows.pipeline | "Once" >> beam.Create([0])
        commit = beam.ParDo(_CommitParts(self._target), beam.pvalue.AsList(parts))
        return start | "Commit" >> commit.with_output_types(str)


class ReadShards(beam.PTransform):
    """Gives the examples of a split as Beam rows with a schema, in no order; `row._asdict()` makes a dict of one.

    Args:
        dataset: Where it is; workers read it there.

    Raises:
        ShardkitError: If there is no such dataset or split.
    """

    def __init__(self, dataset: str, split: str = "train") -> None:
        super().__init__()
        self._split = Split(open_dataset(storage.normalize(dataset)), split)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        """Adds the steps."""
        schema = RowTypeConstraint.from_fields([(f.name, _type_of(f)) for f in self._split.features])
        return (
            begin
            | "Ranges" >> beam.Create(list(_ranges(self._split.block_num_examples.tolist())))
            | "Deal" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(_ReadRange(self._split)).with_output_types(schema)
        )


class _WritePart(beam.DoFn):
    def __init__(self, target: _Target) -> None:
        self._target = target
        self._part: Part | None = None

    def start_bundle(self) -> None:
        self._part = None

    def process(self, element: Any) -> None:
        if self._part is None:
            # A bundle that is done again writes another part, and the one before is never named.
            self._index = secrets.randbits(62)
            self._part = self._target.writer().part(self._index)
        if isinstance(element, pa.RecordBatch | pa.Table):
            self._part.write_batch(element)
        else:
            self._part.write(_plain(element))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._part is None:
            return
        self._part.close()
        self._part = None
        # Batches may be empty.
        if self._target.part_file(self._index).exists():
            yield WindowedValue(self._index, MIN_TIMESTAMP, [GlobalWindow()])


class _CommitParts(beam.DoFn):
    def __init__(self, target: _Target) -> None:
        self._target = target

    def process(self, element: int, indices: Sequence[int]) -> Iterator[str]:
        target = self._target
        named = {target.part_file(index) for index in indices}
        there = set(target.folder.glob("*"))
        is_done_before = bool(named) and not there and bool(list_versions(target.destination))
        if not is_done_before:
            if not named <= there:
                raise UsageError(
                    "rows that workers wrote are not here",
                    where=str(target.folder),
                    state="Nothing was committed",
                    next_step="Name a spool that all workers share",
                )
            for path in there - named:
                path.unlink()
            target.writer().commit()
        yield target.destination


class _ReadRange(beam.DoFn):
    def __init__(self, split: Split) -> None:
        self._split = split

    def process(self, element: tuple[int, int]) -> Iterator[beam.Row]:
        first, stop = element
        for start in range(first, stop, _AT_ONCE):
            yield from _rows(self._split.take(np.arange(start, min(start + _AT_ONCE, stop))))


def _ranges(block_num_examples: Iterable[int]) -> Iterator[tuple[int, int]]:
    start = stop = 0
    for number in block_num_examples:
        stop += number
        if stop - start >= _READ_ROWS:
            yield start, stop
            start = stop
    if stop > start:
        yield start, stop


def _plain(row: Any) -> Any:
    """Returns a Beam row, in which there may be others, as a dict."""
    if hasattr(row, "_asdict"):
        row = row._asdict()
    return {name: _plain(value) for name, value in row.items()} if isinstance(row, Mapping) else row


def _rows(batch: Batch) -> Iterator[beam.Row]:
    names = list(batch)
    for values in zip(*(_values(batch, name) for name in names), strict=True):
        yield beam.Row(**dict(zip(names, values, strict=True)))


def _values(batch: Batch, name: str) -> list[Any]:
    column = batch[name]
    if isinstance(column, Ragged):
        found = [column.row(row).tolist() for row in range(column.num_rows)]
    else:
        found = column.tolist()
    present = batch.present.get(name)
    return found if present is None else [v if there else None for v, there in zip(found, present, strict=True)]


def _type_of(feature: Feature) -> Any:
    value = Any if feature.is_json else _TYPES.get(feature.dtype, int if "int" in feature.dtype else Any)
    if len(feature.shape) == 1:
        value = Sequence[value]  # type: ignore[valid-type]
    elif feature.shape:
        value = Any
    return Optional[value] if feature.nullable and value is not Any else value  # noqa: UP045 - Beam knows this form
