"""What one worker reads in an epoch of batches of similar length; see `EpochPlan`.

The rows of a block go into batches at quite different times. A block is inflated once, and its rows are kept apart by
bucket, each with a copy of its records, so that one row that waits for a batch of a rare bucket keeps no whole block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cached_property, partial

import msgspec
import numpy as np
import numpy.typing as npt

from shardkit.dataset.block_loader import Block, BlockLoader
from shardkit.encoding.kernel import Int64s, gather
from shardkit.reading.batch import Batch, Column, Ragged
from shardkit.reading.bucket_order import BucketedOrder, Part
from shardkit.reading.length_buckets import LengthBuckets, bucket_num_rows, length_name, num_batches, order_of
from shardkit.reading.lengths import SplitBuckets
from shardkit.reading.order import OrderOptions, Rows
from shardkit.reading.settings import BatchSettings

Parts = dict[int, Block]

_USED_UP: Future[Parts] = Future()
_USED_UP.set_result({})


class BucketPlan:
    """The plan of one split in the order of `BucketedOrder`; see `EpochPlan`.

    Steps are asked for in ascending order: what those from the first one on need is kept until the last one has it.
    """

    def __init__(
        self,
        loader: BlockLoader,
        make_order: Callable[[], BucketedOrder],
        num_steps: int,
        boundaries: tuple[int, ...],
        padded: frozenset[str],
        settings: BatchSettings,
    ) -> None:
        self._loader = loader
        self.num_steps = num_steps
        self._make_order = make_order
        self._boundaries = boundaries
        self._padded = padded
        self._worker, self._turn = settings.worker, settings.turn
        self._first_step: int | None = None
        self._begun: set[int] = set()
        self._lock = threading.Lock()
        self._parts: dict[int, Future[Parts]] = {}

    @cached_property
    def _order(self) -> BucketedOrder:
        return self._make_order()

    @cached_property
    def _last_steps(self) -> npt.NDArray[np.int32]:
        return self._order.last_steps(self._worker, self._turn)

    def num_rows(self, step: int) -> int:
        return self._order.num_rows(step) // self._worker.num_workers

    def is_filled_up(self, step: int) -> bool:
        return self._order.is_filled_up(step)

    def finish(self, step: int, batch: Batch) -> Batch:
        pad_to = self._boundaries[self._order.buckets[step]]
        return Batch(dict(_dense(batch, self._padded, pad_to)), batch.present, batch.mask, pad_to)

    def rows(self, step: int) -> list[Rows]:
        if self._first_step is None:
            self._first_step = step
        return self._order.rows(step, self._worker, self._last_steps)

    def num_bytes(self, place: Part) -> int:
        # The first part of a block that is asked for loads the other parts, too.
        if place.place in self._begun:
            return 0
        self._begun.add(place.place)
        return self._loader.num_bytes(int(self._order.sequence.blocks[place.place]))

    def load(self, place: Part) -> Block:
        with self._lock:
            loading = self._parts.get(place.place)
            is_first = loading is None
            if loading is None:
                loading = self._parts[place.place] = Future()
        if is_first:
            self._load_into(loading, place.place)
        parts = loading.result()
        with self._lock:
            block = parts.pop(place.bucket, None) if place.is_last else parts.get(place.bucket)
            if not parts:
                self._parts[place.place] = _USED_UP
        # The thread with the last rows of a part may be ahead of the thread with the rows before.
        return self._split(place.place, [place.bucket])[place.bucket] if block is None else block

    def _load_into(self, loading: Future[Parts], place: int) -> None:
        needed = np.flatnonzero(self._last_steps[place] >= (self._first_step or 0))
        try:
            loading.set_result(self._split(place, needed.tolist()))
        except BaseException as error:
            loading.set_exception(error)
            raise

    def _split(self, place: int, buckets: list[int]) -> Parts:
        """Returns the rows of a block by bucket."""
        sequence = self._order.sequence
        block = self._loader.load(int(sequence.blocks[place]), sequence.block_order(place))
        rows_of = self._order.part_rows(place)
        return {bucket: _take(block, rows_of[bucket]) for bucket in buckets}


class BucketPlans:
    """Makes one worker's plans of epochs in batches of similar length.

    Raises:
        UsageError: If a batch has no room for one row of each group.
    """

    def __init__(
        self,
        loader: BlockLoader,
        num_examples: Int64s,
        found: SplitBuckets,
        request: LengthBuckets,
        order: OrderOptions,
        settings: BatchSettings,
    ) -> None:
        buckets = msgspec.structs.replace(
            order_of(request, settings.worker.num_workers),
            boundaries=found.boundaries,
            lengths_digest=found.lengths_digest,
        )
        num_rows = (order.global_batch_size,) * len(found.boundaries)
        if buckets.tokens_per_batch is not None:
            num_rows = bucket_num_rows(found.boundaries, buckets.tokens_per_batch, buckets.num_groups)
        self.order = msgspec.structs.replace(order, buckets=buckets)
        self.sizes = found.sizes(num_rows)
        self._loader = loader
        self._num_examples = num_examples
        self._bucket_of = found.bucket_of
        self._padded = frozenset(request.padded)
        self._settings = settings

    def plan(self, epoch: int) -> BucketPlan:
        """Returns the plan of an epoch; it is worked out when its first step is asked for."""
        sizes = self.sizes
        return BucketPlan(
            self._loader,
            partial(BucketedOrder, self._num_examples, self._bucket_of, sizes.num_rows, self.order, epoch),
            num_batches(
                sizes.num_examples,
                sizes.num_rows,
                pads=self.order.remainder == "pad",
                always_up=self.order.global_batch_size > 0,
            ),
            sizes.boundaries,
            self._padded,
            self._settings,
        )


def _dense(batch: Batch, padded: frozenset[str], pad_to: int) -> Iterator[tuple[str, Column]]:
    for name, column in batch.items():
        if isinstance(column, Ragged) and name in padded:
            yield name, column.to_dense(pad_to)
            yield length_name(name), column.row_lengths()
        else:
            yield name, column


def _take(block: Block, rows: Int64s) -> Block:
    """Returns some rows of a block with a copy of their records."""
    if len(rows) == len(block.starts):
        return block
    lengths = block.lengths[rows]
    records = gather(block.frames, block.starts[rows], lengths)
    return Block(records, np.cumsum(lengths) - lengths, lengths, block.where, block.stored_rows[rows])
