"""What each worker reads of an epoch: lanes, blocks, shards. Arithmetic over the shard table, nothing is read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardkit.reading.bucket_order import BucketedOrder
from shardkit.reading.length_buckets import order_of
from shardkit.reading.order import EpochSequence, Int64s, OrderOptions, Worker, choose_num_lanes, lane_shares
from train.options.length_buckets import SplitBuckets
from train.options.step_plan import TrainPlan


class WorkerShare(NamedTuple):
    """What one worker reads of an epoch.

    Attributes:
        worker_index: 0-based.
        num_lanes: Blocks that it mixes at a time.
        num_blocks: Of which it reads anything; two workers may share one at the border.
    """

    worker_index: int
    num_lanes: int
    num_blocks: int
    num_shards: int
    num_examples: int
    num_step_examples: int


def worker_shares(
    blocks_each: Int64s, block_examples: Int64s, *, global_batch_size: int, num_workers: int, seed: int, epoch: int = 0
) -> tuple[WorkerShare, ...]:
    """Returns the share of each worker in an epoch."""
    num_lanes = choose_num_lanes(num_workers)
    options = OrderOptions(
        global_batch_size=global_batch_size, seed=seed, shuffle=True, remainder="drop", num_lanes=num_lanes
    )
    shards = np.repeat(np.arange(len(blocks_each)), blocks_each)
    sequence = EpochSequence(block_examples, options, epoch)
    num_steps = sequence.num_examples // global_batch_size
    of_lanes = lane_shares(global_batch_size, num_lanes)
    ends = np.cumsum(num_steps * of_lanes)
    found = []
    lanes_each = num_lanes // num_workers
    for index in range(num_workers):
        mine = slice(index * lanes_each, (index + 1) * lanes_each)
        start = int(ends[mine.start - 1]) if index else 0
        stop = int(ends[mine.stop - 1])
        first, last = np.searchsorted(sequence.ends, [start, stop - 1], side="right")
        blocks = sequence.blocks[first : last + 1] if stop > start else sequence.blocks[:0]
        found.append(
            WorkerShare(
                worker_index=index,
                num_lanes=int(np.count_nonzero(of_lanes[mine])),
                num_blocks=len(blocks),
                num_shards=len(np.unique(shards[blocks])),
                num_examples=stop - start,
                num_step_examples=int(of_lanes[mine].sum()),
            )
        )
    return tuple(found)


def bucketed_shares(
    blocks_each: Int64s, block_examples: Int64s, buckets: SplitBuckets, plan: TrainPlan, seed: int, epoch: int = 0
) -> tuple[WorkerShare, ...]:
    """Returns the share of each worker in an epoch of batches of similar length."""
    options = OrderOptions(
        global_batch_size=plan.global_batch_size,
        seed=seed,
        num_lanes=plan.num_lanes,
        buckets=order_of(buckets.request(plan.num_groups), plan.num_workers),
    )
    shards = np.repeat(np.arange(len(blocks_each)), blocks_each)
    num_rows = (plan.global_batch_size,) * len(buckets.boundaries)
    order = BucketedOrder(block_examples, buckets.bucket_of, num_rows, options, epoch)
    found = []
    for index in range(plan.num_workers):
        last_steps = order.last_steps(Worker(index=index, num_workers=plan.num_workers), turn=0)
        blocks = order.sequence.blocks[(last_steps >= 0).any(axis=1)]
        found.append(
            WorkerShare(
                worker_index=index,
                num_lanes=plan.num_lanes // plan.num_workers,
                num_blocks=len(blocks),
                num_shards=len(np.unique(shards[blocks])),
                num_examples=order.num_steps * plan.worker_batch_size,
                num_step_examples=plan.worker_batch_size,
            )
        )
    return tuple(found)
