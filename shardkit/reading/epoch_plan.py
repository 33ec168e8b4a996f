"""What one worker reads in an epoch: which rows of which blocks make which batch, and how a block is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from shardkit.dataset.block_loader import Block, BlockLoader, Fetched
from shardkit.reading.batch import Batch
from shardkit.reading.order import EpochOrder, Rows, Worker


class EpochPlan(Protocol):
    """One worker's batches of one epoch; for any number of threads.

    A place stands for a block, or for a part of one, wherever it is: any hashable value.
    """

    @property
    def num_steps(self) -> int:
        """Batches of the epoch; the same for every worker."""

    def num_rows(self, step: int) -> int:
        """Returns the rows of the batch at a step; one with fewer examples is filled up."""

    def is_filled_up(self, step: int) -> bool:
        """Returns whether the global batch has fewer examples than rows: then all workers have a mask, full or not."""

    def rows(self, step: int) -> list[Rows]:
        """Returns where the rows of a batch are, in its order."""

    def load(self, place: Any) -> Block:
        """Returns the block at a place, its rows in the epoch's order.

        Raises:
            DamageError: If it is not what the index states; names shard and block.
        """

    def num_bytes(self, place: Any) -> int:
        """Returns about how many bytes that is in memory."""

    def finish(self, step: int, batch: Batch) -> Batch:
        """Returns the batch of a step as it is given to the functions on batches."""


@runtime_checkable
class RunsPlan(EpochPlan, Protocol):
    """A plan that can load several blocks with one request to a store."""

    def runs(self, places: list[Any]) -> list[list[Any]]:
        """Returns places, in their order, in groups that are loaded together."""

    def fetch_run(self, run: list[Any]) -> Iterator[Fetched]:
        """Yields the stored blocks at the places of a group that `runs` made, or at the last ones of it.

        Raises:
            DamageError, StorageError: In the place of a block that cannot be fetched.
        """


class SplitPlan:
    """The plan of one split in the order of `EpochOrder`; see `EpochPlan`."""

    def __init__(self, loader: BlockLoader, order: EpochOrder, worker: Worker) -> None:
        self._loader = loader
        self._order = order
        self._worker = worker

    @property
    def num_steps(self) -> int:
        return self._order.num_steps

    def num_rows(self, step: int) -> int:
        return self._order.global_batch_size // self._worker.num_workers

    def is_filled_up(self, step: int) -> bool:
        return self._order.is_filled_up(step)

    def rows(self, step: int) -> list[Rows]:
        return self._order.rows(step, self._worker)

    def load(self, place: int) -> Block:
        return self._loader.load(int(self._order.blocks[place]), self._order.block_order(place))

    def runs(self, places: list[int]) -> list[list[int]]:
        rest = iter(places)
        runs = self._loader.runs(int(self._order.blocks[place]) for place in places)
        return [list(islice(rest, num_blocks)) for num_blocks in runs]

    def fetch_run(self, run: list[int]) -> Iterator[Fetched]:
        return self._loader.fetch_run([(int(self._order.blocks[p]), self._order.block_order(p)) for p in run])

    def num_bytes(self, place: int) -> int:
        return self._loader.num_bytes(int(self._order.blocks[place]))

    def finish(self, step: int, batch: Batch) -> Batch:
        return batch
