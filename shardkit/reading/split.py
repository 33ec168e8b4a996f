"""One split of a dataset: its examples by position, and its batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Unpack, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.dataset.block_index import SplitBlocks
from shardkit.dataset.block_loader import BlockLoader
from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.reading.batch import Assembler, Batch, Ragged
from shardkit.reading.batches import ReadingOptions
from shardkit.reading.bucket_plan import BucketPlans
from shardkit.reading.epoch_plan import EpochPlan, SplitPlan
from shardkit.reading.hooks import FilterFunction, MapFunction, MappedSource
from shardkit.reading.length_buckets import LengthBuckets, check_padded, checked, one_size, order_of
from shardkit.reading.lengths import (
    GivenLengths,
    SplitBuckets,
    assign_length_buckets,
    check_too_long,
    given_lengths,
    read_lengths,
)
from shardkit.reading.order import EpochOrder, OrderOptions, Remainder, Worker, check_options
from shardkit.reading.reader import BatchReader, Readable
from shardkit.reading.settings import BatchKeywords, BatchSettings, takes_settings
from shardkit.storage.locations import redact

_NUM_KEPT_BLOCKS = 16
_ROWS_AT_ONCE = 1024

Positions = Sequence[int] | npt.NDArray[np.integer[Any]] | slice


class Split(Sequence[dict[str, Any]]):
    """The examples of one split in their stored order."""

    def __init__(self, dataset: Dataset, name: str) -> None:
        self.name = name
        self.num_examples = dataset.manifest.split(name).num_examples
        self.features: Features = dataset.manifest.features
        self._dataset = dataset
        self._bucketed: dict[tuple[str, tuple[int, ...] | None], SplitBuckets] = {}
        self._lengths: dict[str, GivenLengths] = {}

    @property
    def dataset(self) -> Dataset:
        """Whose split it is."""
        return self._dataset

    @property
    def block_num_examples(self) -> npt.NDArray[np.int64]:
        """Examples of each block, in the stored order."""
        return self._blocks.num_examples

    @property
    def block_loader(self) -> BlockLoader:
        """What loads its blocks."""
        return self._loader

    def __len__(self) -> int:
        return self.num_examples

    @overload  # type: ignore[override]
    def __getitem__(self, position: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, position: Positions) -> Batch: ...
    def __getitem__(self, position: int | Positions) -> dict[str, Any] | Batch:
        """Returns one example, None where it lacks a feature, or a batch of several.

        Args:
            position: 0-based in the stored order, from the end if negative; or a list, an array or a slice of them.

        Raises:
            IndexError: If there is no such position.
        """
        if isinstance(position, slice):
            return self.take(np.arange(self.num_examples)[position])
        if isinstance(position, (int, np.integer)):
            batch = self.take([position])
            return {name: _value(batch, name, 0) for name in batch}
        return self.take(position)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the examples in their stored order; each is as its position gives it."""
        for start in range(0, self.num_examples, _ROWS_AT_ONCE):
            batch = self.take(np.arange(start, min(start + _ROWS_AT_ONCE, self.num_examples)))
            for row in range(min(_ROWS_AT_ONCE, self.num_examples - start)):
                yield {name: _value(batch, name, row) for name in batch}

    def scan(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Returns the examples in their stored order as a stream of Arrow, which is read as it is asked for.

        Args:
            columns: Names of features; None takes all. An array is a list of lists, a class is its number, `json` is
                its text.

        Raises:
            UsageError: If there is no such feature.
            DamageError: While it is read, if a shard is damaged.
        """
        from shardkit.reading.row_files import arrow_reader

        features = self._chosen(columns)
        batches = self.batches(
            global_batch_size=_ROWS_AT_ONCE,
            shuffle=False,
            remainder="pad",
            features=[f.name for f in features],
            decodes_text=False,
        )
        return arrow_reader(batches if self.num_examples else (), features)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the examples as a table in memory; see `scan`."""
        return self.scan(columns).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Returns the examples as a data frame of pandas; see `scan`."""
        return self.to_arrow(columns).to_pandas()

    def to_polars(self, columns: Sequence[str] | None = None) -> Any:
        """Returns the examples as a data frame of polars, which must be installed; see `scan`."""
        try:
            import polars
        except ImportError as error:
            raise UsageError("polars is not installed", next_step="Run: pip install polars") from error
        return polars.from_arrow(self.to_arrow(columns))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Exports `scan` to what takes a stream of Arrow: DuckDB, pandas, polars, `shardkit.convert`."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def take(self, positions: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Batch:
        """Returns the examples at some positions, in that order.

        Raises:
            IndexError: If there is no such position.
            TypeError: If one is no whole number.
        """
        given = np.asarray(positions).reshape(-1)
        if len(given):
            # Rounded, or taken for a number, a position would give another example.
            kind = given.dtype.kind
            if kind not in "iu" and (kind == "b" or not all(isinstance(p, int) for p in given.tolist())):
                raise TypeError(f"positions are whole numbers, not {given.dtype}; of a mask, give np.flatnonzero(mask)")
            if not -self.num_examples <= int(given.min()) <= int(given.max()) < self.num_examples:
                raise IndexError(f"split {self.name!r} has the positions 0 to {self.num_examples - 1}")
        wanted = given.astype(np.int64)
        wanted = np.where(wanted < 0, wanted + self.num_examples, wanted)
        blocks = np.searchsorted(self._blocks.ends, wanted, side="right")
        rows = wanted - (self._blocks.ends - self._blocks.num_examples)[blocks]
        # Each block is loaded once, in the order of the files, whatever the order of the positions is.
        loaded = {index: self._load(index) for index in np.unique(blocks).tolist()}
        pieces = [(loaded[b], row, row + 1) for b, row in zip(blocks.tolist(), rows.tolist(), strict=True)]
        return self._assembler.assemble(pieces)

    @takes_settings
    def batches(
        self,
        *,
        global_batch_size: int | None = None,
        buckets: LengthBuckets | None = None,
        remainder: Remainder = "drop",
        **settings: Unpack[BatchKeywords],
    ) -> BatchReader:
        """Returns a reader of this worker's batches, each of `global_batch_size // num_workers` rows.

        With `buckets`, batches are of examples of similar length; all workers have the same bucket at a step. Their
        rows differ from bucket to bucket unless `global_batch_size` is given, too. To know the lengths, the first such
        call reads the whole split once, unless `set_lengths` gave them. A byte an example is kept, and 4 more for
        the epoch that is read.

        Args:
            global_batch_size: Examples that all workers together take a step; or None, and the `tokens_per_batch` of
                `buckets` say how many.
            buckets: See `LengthBuckets`.
            remainder: `drop` leaves out what does not fill the last batch, `pad` fills it up and gives a mask.
            **settings: See `BatchSettings`.

        Raises:
            UsageError: If the numbers do not fit together, there is no such feature, or no batch is full; says what
                would fit.
        """
        given = BatchSettings(**settings)
        wanted = None if buckets is None else checked(buckets)
        bucket_order = None if wanted is None else order_of(wanted, max(1, given.worker.num_workers))
        order = given.order(one_size(global_batch_size, wanted), remainder, bucket_order)
        check_options(order, given.worker)
        given.check_numbers()
        rebuild = partial(
            self.batches, global_batch_size=global_batch_size, buckets=buckets, remainder=remainder, **settings
        )
        reader = BatchReader(self._readable(order, wanted, given), given, rebuild)
        is_too_small = self.num_examples < order.global_batch_size if wanted is None else not reader.num_steps
        if self.num_examples and remainder == "drop" and is_too_small:
            raise self._no_batch_is_full()
        return reader

    def _readable(self, order: OrderOptions, buckets: LengthBuckets | None, settings: BatchSettings) -> Readable:
        readable = Readable(
            plan_epoch=partial(self._plan, order, settings.worker),
            features=self._chosen(settings.features),
            dataset=self._dataset.manifest.shard_table.sha256,
            split=self.name,
            order=order,
            is_remote=self._loader.is_remote,
        )
        if buckets is None:
            return readable
        check_padded(buckets, readable.features)
        found = self._in_buckets(buckets, settings.num_threads)
        plans = BucketPlans(self._loader, self._blocks.num_examples, found, buckets, order, settings)
        return msgspec.structs.replace(readable, plan_epoch=plans.plan, order=plans.order, buckets=plans.sizes)

    def _no_batch_is_full(self) -> UsageError:
        return UsageError(
            f"no batch of split {self.name!r} is full",
            where=redact(self._dataset.url),
            why=f"it has {self.num_examples:,} examples, and what fills no batch is left out",
            next_step="Give a smaller batch, or remainder='pad'",
        )

    def _plan(self, order: OrderOptions, worker: Worker, epoch: int) -> EpochPlan:
        return SplitPlan(self._loader, EpochOrder(self._blocks.num_examples, order, epoch), worker)

    def _in_buckets(self, buckets: LengthBuckets, num_threads: int) -> SplitBuckets:
        key = (buckets.feature, buckets.boundaries)
        if key not in self._bucketed:
            feature = self._dataset.manifest.feature(buckets.feature)
            given = self._lengths.get(buckets.feature)
            if given is None:
                lengths = read_lengths(self._loader, self._blocks.num_examples, feature, num_threads)
                self._bucketed[key] = assign_length_buckets(lengths, buckets.boundaries)
            else:
                self._bucketed[key] = assign_length_buckets(given.lengths, buckets.boundaries, given.digest)
        check_too_long(self._bucketed[key], buckets)
        return self._bucketed[key]

    def set_lengths(self, feature: str, lengths: npt.NDArray[np.integer[Any]]) -> None:
        """Says what counts as the length of a feature for buckets, such as the words of a text instead of its bytes.

        Args:
            lengths: Of each example, in the stored order.

        Raises:
            UsageError: If there is no such feature, or they are not one whole number from 0 for each example.
        """
        self._lengths[self._dataset.manifest.feature(feature).name] = given_lengths(lengths, self.num_examples)
        self._bucketed = {key: found for key, found in self._bucketed.items() if key[0] != feature}

    @property
    def num_framed_bytes(self) -> int:
        """Bytes of all its framed records."""
        return self._dataset.manifest.split(self.name).num_uncompressed_bytes

    def keep_in_memory(self, num_threads: int = ReadingOptions().num_threads) -> None:
        """Reads the split once and keeps its records, `num_framed_bytes`; nothing is read or inflated after that.

        Raises:
            DamageError: If it cannot be read; names shard and block.
        """
        self._loader.keep_all(num_threads)

    def map(self, function: MapFunction) -> MappedSource:
        """Returns the split with a function on its batches, for adapters; see `BatchReader.map`."""
        return MappedSource(self).map(function)

    def filter(self, function: FilterFunction) -> MappedSource:
        """Returns the split with a condition on the rows of its batches, for adapters; see `BatchReader.filter`."""
        return MappedSource(self).filter(function)

    def __getstate__(self) -> dict[str, Any]:
        # Open files are left out: another process, such as a worker of a PyTorch `DataLoader`, opens its own.
        kept = ("name", "num_examples", "features", "_dataset", "_bucketed", "_lengths")
        return {name: value for name, value in vars(self).items() if name in kept}

    def _chosen(self, names: Sequence[str] | None) -> Features:
        if names is None:
            return self.features
        if not names:
            raise UsageError("no feature is chosen", next_step="Name at least one, or leave `features` out for all")
        return tuple(self._dataset.manifest.feature(name) for name in names)

    @cached_property
    def _blocks(self) -> SplitBlocks:
        return SplitBlocks(self._dataset, self.name)

    @cached_property
    def _loader(self) -> BlockLoader:
        return BlockLoader(self._dataset, self._blocks)

    @cached_property
    def _assembler(self) -> Assembler:
        return Assembler(self.features)

    @cached_property
    def _load(self) -> Any:
        return lru_cache(_NUM_KEPT_BLOCKS)(lambda index: self._loader.load(index, None))


def _value(batch: Batch, name: str, row: int) -> Any:
    if name in batch.present and not batch.present[name][row]:
        return None
    column = batch[name]
    return column.row(row) if isinstance(column, Ragged) else column[row]
