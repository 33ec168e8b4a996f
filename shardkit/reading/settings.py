"""How a worker reads the batches of a split or a mixture: the keywords that both take, stated once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, TypeVar

import msgspec

from shardkit.reading.batches import ReadingOptions
from shardkit.reading.length_buckets import BucketOrder
from shardkit.reading.order import OrderOptions, Remainder, Worker, check_counts, check_turn, choose_num_lanes

Method = TypeVar("Method", bound=Callable[..., Any])


class BatchKeywords(TypedDict, total=False):
    """The attributes of `BatchSettings` as keywords of a function."""

    seed: int
    epoch: int
    num_epochs: int
    worker_index: int
    num_workers: int
    shuffle: bool
    num_lanes: int | None
    turn: int
    num_turns: int
    features: Sequence[str] | None
    num_threads: int
    num_ahead: int
    decodes_text: bool


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a worker reads the batches of a split or a mixture.

    Attributes:
        seed: Any integer.
        epoch: The first one; each has another order.
        num_epochs: How many are read.
        worker_index: Of this worker, from 0.
        num_workers: How many share the epoch. All have the same number of steps.
        shuffle: False gives the stored order; then every worker inflates every block. Of a mixture, it reads each
            source's lanes in its stored order, in every epoch.
        num_lanes: Blocks that a global batch is mixed from, of a mixture those of each source; a multiple of
            `num_workers`, times `num_turns`. Each costs the memory of one block's framed records, of a mixture of two,
            on one worker. None means 48 a turn, or the next multiple of `num_workers` (with `buckets`, of their
            `num_groups`).
        turn: Of this process among those that make one worker's batches in turn, from 0.
        num_turns: How many those are; this reader gives every `num_turns`-th batch.
        features: Names of those to decode; None means all. All sources of a mixture have them.
        num_threads: Threads that load and decode; 0 does it when a batch is asked for.
        num_ahead: Batches that are made before they are asked for.
        decodes_text: False gives text and decimals as the bytes that are stored.
    """

    seed: int = 0
    epoch: int = 0
    num_epochs: int = 1
    worker_index: int = 0
    num_workers: int = 1
    shuffle: bool = True
    num_lanes: int | None = None
    turn: int = 0
    num_turns: int = 1
    features: Sequence[str] | None = None
    num_threads: int = ReadingOptions().num_threads
    num_ahead: int = ReadingOptions().num_ahead
    decodes_text: bool = True

    @property
    def worker(self) -> Worker:
        return Worker(index=self.worker_index, num_workers=self.num_workers)

    @property
    def reading(self) -> ReadingOptions:
        return ReadingOptions(num_threads=self.num_threads, num_ahead=self.num_ahead, decodes_text=self.decodes_text)

    def order(
        self, global_batch_size: int, remainder: Remainder = "drop", buckets: BucketOrder | None = None
    ) -> OrderOptions:
        """Returns what decides the order, with the default of the lanes."""
        num_sharing = max(1, self.worker.num_workers) if buckets is None else buckets.num_groups
        num_lanes = choose_num_lanes(num_sharing, self.num_turns) if self.num_lanes is None else self.num_lanes
        return OrderOptions(
            global_batch_size=global_batch_size,
            seed=self.seed,
            shuffle=self.shuffle,
            remainder=remainder,
            num_lanes=num_lanes,
            num_turns=self.num_turns,
            buckets=buckets,
        )

    def check_numbers(self, **others: int) -> None:
        """Checks that there is such a turn, and that numbers that do not concern the order are whole and from 0 on.

        Raises:
            UsageError: If not.
        """
        check_turn(self.turn, self.num_turns)
        names = ("epoch", "num_epochs", "num_threads", "num_ahead")
        check_counts(**{name: getattr(self, name) for name in names}, **others)


def takes_settings(method: Method) -> Method:
    """Shows the attributes of `BatchSettings` among the keywords of a method, as `help()` and editors read them."""
    signature = inspect.signature(method)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    kinds = inspect.get_annotations(BatchSettings)
    shared = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=kinds[f.name])
        for f in msgspec.structs.fields(BatchSettings)
    ]
    vars(method)["__signature__"] = signature.replace(parameters=[*own, *shared])
    _, _, attributes = (inspect.getdoc(BatchSettings) or "").partition("Attributes:\n")
    text = inspect.getdoc(method) or ""
    method.__doc__ = text.replace("    **settings: See `BatchSettings`.", attributes)
    return method
