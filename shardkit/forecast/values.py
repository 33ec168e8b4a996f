"""The input and the output of a forecast. All sizes are bytes."""

from __future__ import annotations

from typing import Literal

import msgspec

from shardkit.conversion.option_forms import SplitShare
from shardkit.encoding.codec import Compression
from shardkit.units import GiB, MiB

Store = Literal["local", "s3", "gs", "az"]
WorkPlace = Literal["default", "folder", "store"]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs, as far as sizes go.

    Attributes:
        num_bytes: Of all inputs, as stored.
        ratio: Framed bytes for a byte on disk, where shards are compressed.
        max_row_bytes: The largest row of the inputs; 0 where rows were read, which none can be that is too large.
        is_cut: Whether large files are cut into several input splits; compressed ones are not.
        num_input_splits: Where they are known; None computes them for files of equal size.
    """

    num_bytes: int
    num_files: int = 1
    num_rows: int
    num_framed_bytes: int
    ratio: float = 2.0
    max_record_bytes: int
    max_row_bytes: int = 0
    num_features: int = 20
    is_cut: bool = True
    num_input_splits: int | None = None
    shares: tuple[SplitShare, ...] = (SplitShare(name="train", fraction=1.0),)


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user can choose.

    Attributes:
        num_workers: Pieces of work at the same time.
        worker_memory_bytes: Of each worker; locally of the whole machine.
        disk_bytes: Free for the spool and the shards, where that is known: of a worker, locally of the machine.
        num_shards: Of each split, in place of that; None lets the size decide.
        work_place: Where intermediate files go: where the engine has them, in a folder that was named, or in a store,
            for workers that share no disk; then records go through the engine's shuffle.
        num_datasets: Into how many conversions the inputs are cut; each is forecast by itself.
        max_row_bytes: Of a row of the inputs; larger ones are refused.
    """

    engine: str = "local"
    num_workers: int = 2
    worker_memory_bytes: int = 4 * GiB
    disk_bytes: int | None = None
    shard_bytes: int = 128 * MiB
    num_shards: int | None = None
    compression: Compression = "gzip"
    shuffle: bool = True
    store: Store = "local"
    work_place: WorkPlace = "default"
    num_datasets: int = 1
    max_row_bytes: int = 256 * MiB


class SplitForecast(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset split.

    Attributes:
        max_group_bytes: Framed bytes of the largest group, records of average size assumed.
        num_units: Pieces of work of the writing step.
    """

    name: str
    num_examples: int
    num_framed_bytes: int
    num_bytes: int
    num_shards: int
    num_groups: int
    max_group_bytes: int
    num_units: int


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What one of the datasets will be, and what making it needs.

    Attributes:
        num_runs: Sorted pieces in the spool.
        num_segments: Parts of runs that groups need: runs times groups, but no more than there are rows.
        spool_bytes: Of the runs; where the engine carries the records, they are in a store until they are cut.
        shuffle_elements, shuffle_bytes: What the engine's shuffle carries.
        key_bytes: The most that it carries under one key.
        runner_bytes: Memory of the runner itself for that, where it is the process that was started.
        request_bytes: Of the pipeline as it is submitted.
        num_input_requests: Reads of the inputs from a store, at least.
        num_spool_requests: Reads of the spool, where it is in a store.
        shard_bytes: Of a shard on disk, on average.
        manifest_bytes: Of the JSON document, about.
        manifest_list_bytes: Of the list of input files in it.
        worker_bytes: Memory of one worker, locally of all: the most of what their steps hold.
        gather_bytes: Memory of the one worker that lays out, and that commits.
        disk_bytes: Space on a disk: locally for spool and shards, elsewhere for the shard that a worker makes.
    """

    splits: tuple[SplitForecast, ...]
    num_input_splits: int
    num_runs: int
    num_segments: int
    spool_bytes: int
    shuffle_elements: int
    shuffle_bytes: int
    key_bytes: int
    runner_bytes: int
    request_bytes: int
    num_input_requests: int
    num_spool_requests: int
    num_put_requests: int
    shard_bytes: int
    manifest_bytes: int
    manifest_list_bytes: int
    table_bytes: int
    worker_bytes: int
    gather_bytes: int
    disk_bytes: int

    @property
    def num_shards(self) -> int:
        """Shards of all splits."""
        return sum(s.num_shards for s in self.splits)

    @property
    def num_groups(self) -> int:
        """Groups of all splits."""
        return sum(s.num_groups for s in self.splits)

    @property
    def num_bytes(self) -> int:
        """Size of the shards."""
        return sum(s.num_bytes for s in self.splits)

    @property
    def max_group_bytes(self) -> int:
        """Framed bytes of the largest group."""
        return max(s.max_group_bytes for s in self.splits)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a setting comes up against.

    Attributes:
        is_fatal: Whether the conversion cannot work, or only not as it was asked for.
        needed, limit: The figure and what there may be of it, in words; no limit where it is not about a figure.
    """

    is_fatal: bool
    what: str
    needed: str
    limit: str
    source: str
    next_step: str
    setting: Setting
