"""What one worker reads in an epoch: which rows of which blocks make which batch, and how a block is loaded."""

from __future__ import annotations

from typing import Any, Protocol

from shardkit.reading.blocks import Block, BlockLoader
from shardkit.reading.order import EpochOrder, Rows, Worker


class EpochPlan(Protocol):
    """One worker's batches of one epoch; for any number of threads.

    A place stands for a block, or for a part of one, wherever it lies: any hashable value.
    """

    @property
    def num_steps(self) -> int:
        """Batches of the epoch; the same for every worker."""

    def num_rows(self, step: int) -> int:
        """Returns the rows of the batch at a step; one with fewer examples is filled up."""

    def rows(self, step: int) -> list[Rows]:
        """Returns where the rows of a batch lie, in its order."""

    def load(self, place: Any) -> Block:
        """Returns what lies at a place, its rows in the epoch's order.

        Raises:
            DamageError: If it is not what the index states; names shard and block.
        """

    def num_bytes(self, place: Any) -> int:
        """Returns about how many bytes that is in memory."""


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

    def rows(self, step: int) -> list[Rows]:
        return self._order.rows(step, self._worker)

    def load(self, place: int) -> Block:
        return self._loader.load(int(self._order.blocks[place]), self._order.block_order(place))

    def num_bytes(self, place: int) -> int:
        return self._loader.num_bytes(int(self._order.blocks[place]))
