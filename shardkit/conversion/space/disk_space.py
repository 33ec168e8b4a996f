"""Disk space that a conversion needs, estimated before any work and again when a disk is full.

All files of a conversion are there at its end: the spool, the digests of the first pass, quarantined rows, and the
shards. Files of an earlier attempt are among them and need no further room.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from shardkit.conversion.extract.extract import find_extracted
from shardkit.conversion.extract.runs import KEY_RANGE_BITS, RUN_BYTES, read_run_entries
from shardkit.conversion.extracted import run_names
from shardkit.conversion.plan import Plan
from shardkit.conversion.shards.layout import load_layout
from shardkit.conversion.space.size_sample import Sample, compressed_fractions, least_share, measure_sample
from shardkit.conversion.space.sizes import manifest_bytes, spool_bytes, table_bytes
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.encoding.codec import BLOCK_BYTES
from shardkit.errors import OutOfSpaceError
from shardkit.storage import files as storage
from shardkit.units import KiB, MiB, format_size

_DIGEST_ROW_BYTES = 24
# A class, a key, its place, where it goes; if no two rows are of one class.
_STRATUM_ROW_BYTES = 41
# A number and its copy in order.
_RANKED_ROW_BYTES = 24
_FIRST_PASS_SPLIT_BYTES = 64 * KiB
# A row of the shard table takes more bytes where there are few of them.
_SHARD_ROW_BYTES = 240
# With so much more room than input, nothing is measured.
_PLENTY = 100
_PLENTY_BYTES = 256 * MiB
# Estimates of uniform data were 0.91 to 1.05 of the real need. A conversion is refused if the room is too small for the
# least of that, or for the least that was measured. A note is given if the room may be too small.
_LEAST_SHARE = 0.95
_MOST_SHARE = 1.1
# Runs give a better estimate than a sample from this share of the inputs on.
_MIN_READ_SHARE = 0.05
_FEW_INODES = 16
_MANIFEST = "the manifest"


class Sizes(NamedTuple):
    """What a conversion will have written when it ends, in bytes.

    Attributes:
        spool: Runs.
        digests: Of the first pass.
        quarantine: Rows that do not fit, where they are kept.
        shards: As stored.
        least_share: What will be needed of it for certain, 0 where rows may yet be left out or transformed.
    """

    spool: int
    digests: int
    quarantine: int
    shards: int
    least_share: float


class Need(NamedTuple):
    """What a conversion still needs on one file system.

    Attributes:
        where: Folder on it.
        num_bytes: Still needed.
        num_least_bytes: Of those, needed for certain.
        num_free_bytes: There.
        parts: What for, in words, with bytes.
        is_rest: Whether some of it was there before.
        holds_spool: Whether another work folder would help.
    """

    where: str
    num_bytes: int
    num_least_bytes: int
    num_free_bytes: int
    parts: tuple[tuple[str, int], ...]
    is_rest: bool
    holds_spool: bool

    @property
    def fit(self) -> Literal["no", "perhaps", "yes"]:
        """Whether the need fits into the free space."""
        if self.num_free_bytes < self.num_least_bytes:
            return "no"
        return "perhaps" if self.num_free_bytes < self.num_bytes * _MOST_SHARE else "yes"

    def describe(self) -> str:
        """Returns the need and the free space in words."""
        parts = ", ".join(f"{format_size(n)} for {what}" for what, n in self.parts)
        if len(self.parts) > 1:
            parts = f"{format_size(self.num_bytes)} ({parts})"
        more = " more" if self.is_rest else ""
        return f"about {parts}{more} needed, {format_size(self.num_free_bytes)} free"


def check_space(plan: Plan) -> tuple[str, ...]:
    """Returns notes on the free space.

    Raises:
        OutOfSpaceError: If it is clearly too little.
    """
    if _is_plenty(plan):
        return ()
    sizes = estimate_sizes(plan)
    if sizes is None:
        return ()
    notes = []
    for need in space_needs(plan, sizes):
        if need.fit == "no":
            raise OutOfSpaceError(
                "no space left",
                where=need.where,
                why=need.describe(),
                state="Nothing was committed",
                next_step=_advice(plan, need),
            )
        if need.fit == "perhaps":
            notes.append(f"space may not suffice in {need.where}: {need.describe()}. {_advice(plan, need)}")
    return tuple(notes)


def explain_full_disk(plan: Plan, error: OutOfSpaceError) -> OutOfSpaceError:
    """Returns an error about a full disk with the need and the free space there, as far as they are known."""
    where = (error.where or plan.work_dir) if storage.is_local(error.where or plan.work_dir) else plan.work_dir
    folder = _existing(where)
    status = os.statvfs(folder)
    if status.f_files and status.f_favail < _FEW_INODES:
        error.why = "the file system takes no more files (it has no inodes left)"
        return error
    sizes = estimate_sizes(plan)
    needs = [] if sizes is None else [n for n in space_needs(plan, sizes) if _device(n.where) == _device(folder)]
    if needs and needs[0].num_bytes > needs[0].num_free_bytes:
        error.why = needs[0].describe()
        error.next_step = f"{_advice(plan, needs[0])}; then run the same command again"
    return error


def estimate_sizes(plan: Plan) -> Sizes | None:
    """Returns the estimated size of everything, None if there is no estimate."""
    num_input_bytes = sum(s.num_bytes for s in plan.input_splits)
    sample = _sample_of_spool(plan, num_input_bytes) or measure_sample(plan)
    if sample is None:
        return None
    # Only runs show the number of duplicates, and the rows after transformations.
    is_of_all_rows = _has_runs(plan) or (
        plan.transforms.options.changes_nothing and plan.recipe.dedup is None and plan.recipe.sample is None
    )
    num_rows, num_framed_bytes = sample.num_rows * num_input_bytes, sample.num_framed_bytes * num_input_bytes
    quarantined = sample.num_rejected_bytes * num_input_bytes if plan.recipe.on_bad_record == "quarantine" else 0.0
    return Sizes(
        spool=spool_bytes(
            num_runs=max(len(plan.input_splits), num_framed_bytes / RUN_BYTES),
            num_rows=num_rows,
            num_framed_bytes=num_framed_bytes,
            num_key_ranges=len(plan.recipe.splits) * ((1 << KEY_RANGE_BITS) if plan.recipe.shuffle else 1),
        ),
        digests=_first_pass_bytes(plan, num_rows),
        quarantine=int(quarantined),
        shards=int(num_framed_bytes * sample.compressed_fraction),
        least_share=min(_LEAST_SHARE, sample.least_share) if is_of_all_rows else 0.0,
    )


def space_needs(plan: Plan, sizes: Sizes) -> tuple[Need, ...]:
    """Returns the remaining need on each file system, where that is known."""
    spool, digests, rejected = (_held(plan.work_path(name)) for name in ("spool", "survey", "rejected"))
    num_read = len(list(plan.work_path("extract").glob("*.msgpack")))
    is_read = num_read > 0 and num_read == len(plan.input_splits)
    work = [
        ("the spool", spool if is_read else sizes.spool, spool),
        ("the first pass", digests if num_read else sizes.digests, digests),
        ("rejected rows", rejected if is_read else sizes.quarantine, rejected),
    ]
    work_root = str(plan.work_path().parent)
    destination = str(storage.local_path(plan.destination)) if storage.is_local(plan.destination) else None
    held = 0 if destination is None else _held(Path(destination, plan.data_path))
    is_written = is_read and _are_shards_written(plan)
    shards = ("shards", held if is_written else sizes.shards, held)
    manifest = (_MANIFEST, _manifest_bytes(plan, sizes), 0)
    if destination is not None and _device(destination) == _device(work_root):
        return (_need(work_root, [*work, shards, manifest], sizes, holds_spool=True),)
    # A shard is made in the work folder, then copied.
    if not is_written:
        work.append(("shards while they are made", min(sizes.shards - held, _shards_at_once(plan, sizes)), 0))
    needs = [_need(work_root, work, sizes, holds_spool=True)]
    if destination is not None:
        needs.append(_need(destination, [shards, manifest], sizes, holds_spool=False))
    return tuple(needs)


def _are_shards_written(plan: Plan) -> bool:
    try:
        num_shards = sum(split.num_shards for split in load_layout(plan).splits)
    except (OSError, *DECODE_ERRORS):
        return False
    return len(list(plan.work_path("shards").glob("*.msgpack"))) == num_shards


def _manifest_bytes(plan: Plan, sizes: Sizes) -> int:
    num_splits = len(plan.recipe.splits)
    num_shards = num_splits * (plan.recipe.num_shards or sizes.shards // (plan.recipe.shard_bytes or 1) + 1)
    document = manifest_bytes(num_files=len(plan.files), num_features=len(plan.features), num_splits=num_splits)
    return (
        document
        + table_bytes(num_shards=num_shards, num_blocks=sizes.spool // BLOCK_BYTES)
        + (num_shards * _SHARD_ROW_BYTES)
    )


def _first_pass_bytes(plan: Plan, num_rows: float) -> int:
    of_duplicates = _DIGEST_ROW_BYTES if plan.recipe.dedup is not None else 0
    of_strata = _STRATUM_ROW_BYTES if plan.recipe.stratify is not None else 0
    num_ranked = (plan.recipe.sample is not None) + (plan.recipe.split_by is not None)
    num_row_bytes = of_duplicates + of_strata + num_ranked * _RANKED_ROW_BYTES
    return int(num_rows * num_row_bytes) + (len(plan.input_splits) * _FIRST_PASS_SPLIT_BYTES if num_row_bytes else 0)


def _need(where: str, parts: Sequence[tuple[str, int, int]], sizes: Sizes, *, holds_spool: bool) -> Need:
    left = [(what, max(0, num_bytes - held)) for what, num_bytes, held in parts]
    is_rest = any(held for _, _, held in parts)
    # The manifest is next to nothing, and told generously.
    least = sum(max(0, int(n * sizes.least_share) - held) for what, n, held in parts if what != _MANIFEST)
    free = storage.free_bytes(where) or 0
    return Need(where, sum(n for _, n in left), least, free, tuple((w, n) for w, n in left if n), is_rest, holds_spool)


def _shards_at_once(plan: Plan, sizes: Sizes) -> int:
    num_workers = len(os.sched_getaffinity(0))
    if plan.recipe.num_shards is not None:
        return num_workers * sizes.shards // plan.recipe.num_shards
    return num_workers * (plan.recipe.shard_bytes or 0)


def _advice(plan: Plan, need: Need) -> str:
    if not need.holds_spool:
        return "Free some space, or choose another destination"
    if storage.is_local(plan.destination) and _device(plan.destination) == _device(plan.work_dir):
        return "Free some space, or put the spool on another disk with --work-dir"
    return "Free some space, or name another place with --work-dir"


def _is_plenty(plan: Plan) -> bool:
    wanted = _PLENTY * sum(s.num_bytes for s in plan.input_splits) + _PLENTY_BYTES
    places = [plan.work_dir, *([plan.destination] if storage.is_local(plan.destination) else [])]
    return all((storage.free_bytes(place) or 0) >= wanted for place in places)


def _sample_of_spool(plan: Plan, num_input_bytes: int) -> Sample | None:
    """Returns the sizes from an earlier attempt, None where it did not come far."""
    found = [(s, e) for s in plan.input_splits if (e := find_extracted(plan, s.index)) is not None]
    num_bytes = sum(s.num_bytes for s, _ in found)
    if num_bytes == 0 or num_bytes < num_input_bytes * _MIN_READ_SHARE:
        return None
    paths = [plan.work_path(name) for _, e in found for name in run_names(e)]
    num_rows = sum(sum(e.rows_by_file.values()) for _, e in found)
    framed = [sum(read_run_entries(str(plan.work_path(n))).num_bytes for n in run_names(e)) for _, e in found]
    rates = [n / s.num_bytes for n, (s, _) in zip(framed, found, strict=True) if s.num_bytes]
    compressed = compressed_fractions(plan, [_first_bytes(p, MiB) for p in paths[:: max(1, len(paths) // 3)]])
    return Sample(
        num_rows=num_rows / num_bytes,
        num_framed_bytes=sum(framed) / num_bytes,
        num_rejected_bytes=_held(plan.work_path("rejected")) / num_bytes,
        compressed_fraction=compressed.mean,
        least_share=least_share(rates, sum(framed) / num_bytes) * compressed.least_share,
    )


def _first_bytes(path: Path, num_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(num_bytes)


def _has_runs(plan: Plan) -> bool:
    return next(plan.work_path("extract").glob("*.msgpack"), None) is not None


def _held(folder: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if not entry.name.endswith(".tmp"))
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _existing(path: str) -> Path:
    folder = storage.local_path(path)
    while not folder.exists():
        folder = folder.parent
    return folder


def _device(path: str | Path) -> int:
    return _existing(str(path)).stat().st_dev
