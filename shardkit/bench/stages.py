"""Where the time of reading goes: a sample of blocks is read in one thread, by the reader's own functions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec

from shardkit.dataset.block_index import BlockRef, SplitBlocks
from shardkit.dataset.block_loader import Block, BlockLoader
from shardkit.dataset.block_reader import BlockReader, Framed
from shardkit.dataset.open import Dataset
from shardkit.features import Features
from shardkit.reading.batch import Assembler, Batch, BatchMaker
from shardkit.reading.epoch_plan import SplitPlan
from shardkit.reading.order import EpochOrder, OrderOptions, Worker

# The stages of a block, then those of a batch, in their order.
BLOCK_STAGES = ("read", "inflate", "scan")
BATCH_STAGES = ("order", "decode", "columns")


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of reading: microseconds of one thread an example, and its share of all stages."""

    name: str
    us_per_example: float
    share: float


class Stopwatch:
    """Adds up seconds by stage: CPU time of this thread, so that other work on the machine does not count.

    Of reading it is all time, because there a disk or a store is waited for.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*BLOCK_STAGES, *BATCH_STAGES), 0.0)
        self._num_cpu_s = 0.0

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Counts the time of the block; a stage inside of it is not counted twice."""
        inside = self._num_cpu_s
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            own_cpu_s = time.thread_time() - cpu - (self._num_cpu_s - inside)
            self._num_cpu_s += own_cpu_s
            self.seconds[stage] += time.perf_counter() - wall if stage == "read" else own_cpu_s


def measure_stages(
    dataset: Dataset,
    split: str,
    features: Features,
    *,
    batch_size: int,
    shuffle: bool,
    seconds: float,
) -> tuple[Stage, ...]:
    """Returns the stages that take time, in their order.

    The first batches of an epoch are sampled: of shuffled blocks, so from all over the split. Blocks are loaded
    when a batch needs them and given back as the reader does, because fresh memory costs as much as a copy.

    Args:
        batch_size: Examples of a batch, no more than there are.
        seconds: About the time it may take; one batch is read at least.
    """
    blocks = SplitBlocks(dataset, split)
    options = OrderOptions(global_batch_size=batch_size, shuffle=shuffle)
    watch = Stopwatch()
    stop = time.perf_counter() + seconds
    num_batches = 0
    with closing(_Loader(dataset, blocks, watch)) as loader:
        batches = _read_batches(loader, blocks, _Assembler(features, watch), options, watch)
        while not num_batches or time.perf_counter() < stop:
            next(batches)
            num_batches += 1
    num_examples = dict.fromkeys(BLOCK_STAGES, loader.num_loaded) | dict.fromkeys(
        BATCH_STAGES, num_batches * batch_size
    )
    found = {stage: value / num_examples[stage] for stage, value in watch.seconds.items() if value}
    total = sum(found.values())
    return tuple(Stage(name=name, us_per_example=value * 1e6, share=value / total) for name, value in found.items())


def _read_batches(
    loader: BlockLoader, blocks: SplitBlocks, assembler: Assembler, options: OrderOptions, watch: Stopwatch
) -> Iterator[None]:
    """Makes a batch each time it is asked for."""
    for epoch in itertools.count():
        held: dict[int, Block] = {}
        with watch.time("order"):
            plan = SplitPlan(loader, EpochOrder(blocks.num_examples, options, epoch), Worker())
        for step in range(plan.num_steps):
            with watch.time("order"):
                rows = plan.rows(step)
                places = {place for place, _, _ in rows}
                held = {place: held[place] if place in held else plan.load(place) for place in places}
            with watch.time("decode"):
                batch = assembler.assemble([(held[place], start, stop) for place, start, stop in rows])
            yield
            del batch


class _Loader(BlockLoader):
    """The reader's own, with a clock."""

    def __init__(self, dataset: Dataset, blocks: SplitBlocks, watch: Stopwatch) -> None:
        super().__init__(dataset, blocks)
        self.num_loaded = 0
        self._readers = _BlockReader(dataset, watch)
        self._watch = watch

    def load(self, index: int, order: Any) -> Block:
        with self._watch.time("scan"):
            block = super().load(index, order)
        self.num_loaded += len(block.starts)
        return block


class _BlockReader(BlockReader):
    def __init__(self, dataset: Dataset, watch: Stopwatch) -> None:
        super().__init__(dataset)
        self._watch = watch
        self._unpacking = "inflate" if dataset.manifest.compression == "gzip" else "read"

    def read(self, ref: BlockRef) -> Framed:
        with self.borrow() as reader:
            with self._watch.time("read"):
                (data,) = reader.read_stored([ref])
            with self._watch.time(self._unpacking):
                return reader.unpack(ref, data)


class _Assembler(Assembler):
    def __init__(self, features: Features, watch: Stopwatch) -> None:
        super().__init__(features, decodes_text=False)
        self._maker = _Maker(features, watch)


class _Maker(BatchMaker):
    def __init__(self, features: Features, watch: Stopwatch) -> None:
        super().__init__(features, decodes_text=False)
        self._watch = watch

    def make(self, columns: list[tuple[Any, ...]], num_rows: int) -> Batch:
        with self._watch.time("columns"):
            return super().make(columns, num_rows)
