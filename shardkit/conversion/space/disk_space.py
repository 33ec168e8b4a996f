"""Disk space that a conversion needs: an estimate before any work, and again when a disk is full.

All files of a conversion are there at its end: the spool, the digests of the first pass, and the shards. Files of an
earlier attempt are among them and need no further room.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from shardkit.conversion.extract.runs import KEY_RANGE_BITS, RUN_BYTES
from shardkit.conversion.plan import Plan
from shardkit.conversion.space.size_sample import measure_sample
from shardkit.conversion.space.sizes import manifest_bytes, spool_bytes, table_bytes
from shardkit.encoding.codec import BLOCK_BYTES
from shardkit.errors import OutOfSpaceError
from shardkit.storage import files as storage
from shardkit.units import MiB, format_size

_DIGEST_ROW_BYTES = 24
# A class, a key, its place, where it goes; if no two rows are of one class.
_STRATUM_ROW_BYTES = 41
# A number and its copy in order.
_RANKED_ROW_BYTES = 24
# With so much more room than input, nothing is measured.
_PLENTY = 100
_PLENTY_BYTES = 256 * MiB
# Estimates of uniform data were 0.91 to 1.05 of the real need, those of uneven data may be far off. A conversion is
# refused only where the room is less than half of the estimate. A note is given where it may be too small.
_LEAST_SHARE = 0.5
_MOST_SHARE = 1.1
_FEW_INODES = 16


class Sizes(NamedTuple):
    """What a conversion will have written when it ends, in bytes."""

    spool: int
    first_pass: int
    shards: int
    manifest: int


class Need(NamedTuple):
    """What a conversion still needs on one file system.

    Attributes:
        parts: What for, in words, with bytes.
        may_shrink: Whether rows may yet be left out or transformed, so that less may do.
    """

    where: str
    num_free_bytes: int
    parts: tuple[tuple[str, int], ...]
    is_rest: bool
    may_shrink: bool
    advice: str

    @property
    def num_bytes(self) -> int:
        """All parts together."""
        return sum(num_bytes for _, num_bytes in self.parts)

    @property
    def fit(self) -> Literal["no", "perhaps", "yes"]:
        """Whether the need fits into the free space."""
        is_small = self.num_free_bytes < self.num_bytes * _LEAST_SHARE
        if is_small and not self.is_rest and not self.may_shrink:
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
    """Returns notes on the free space. Raises OutOfSpaceError if it is clearly too little."""
    if _is_plenty(plan):
        return ()
    needs = space_needs(plan)
    for need in needs:
        if need.fit == "no":
            raise OutOfSpaceError(
                "no space left",
                where=need.where,
                why=need.describe(),
                state="Nothing was committed",
                next_step=need.advice,
            )
    return tuple(
        f"space may not suffice in {need.where}: {need.describe()}. {need.advice}"
        for need in needs
        if need.fit == "perhaps"
    )


def explain_full_disk(plan: Plan, error: OutOfSpaceError) -> OutOfSpaceError:
    """Returns an error about a full disk with the need and the free space there, as far as they are known."""
    where = (error.where or plan.work_dir) if storage.is_local(error.where or plan.work_dir) else plan.work_dir
    folder = _existing(where)
    status = os.statvfs(folder)
    if status.f_files and status.f_favail < _FEW_INODES:
        error.why = "the file system takes no more files (it has no inodes left)"
        return error
    need = next((n for n in space_needs(plan) if _device(n.where) == _device(folder)), None)
    if need is not None and need.num_bytes > need.num_free_bytes:
        error.why = need.describe()
        error.next_step = f"{need.advice}; then run the same command again"
    return error


def estimate_sizes(plan: Plan) -> Sizes | None:
    """Returns the estimated size of everything, None if there is no estimate."""
    sample, recipe = measure_sample(plan), plan.recipe
    if sample is None:
        return None
    num_input_bytes = sum(s.num_bytes for s in plan.input_splits)
    num_rows, num_framed_bytes = sample.num_rows * num_input_bytes, sample.num_framed_bytes * num_input_bytes
    num_splits = len(recipe.splits)
    spool = spool_bytes(
        num_runs=max(len(plan.input_splits), num_framed_bytes / RUN_BYTES),
        num_rows=num_rows,
        num_framed_bytes=num_framed_bytes,
        num_key_ranges=num_splits * ((1 << KEY_RANGE_BITS) if recipe.shuffle else 1),
    )
    shards = int(num_framed_bytes * sample.compressed_fraction)
    num_shards = num_splits * (recipe.num_shards or shards // (recipe.shard_bytes or 1) + 1)
    num_first_pass_row_bytes = (
        (recipe.dedup is not None) * _DIGEST_ROW_BYTES
        + (recipe.stratify is not None) * _STRATUM_ROW_BYTES
        + ((recipe.sample is not None) + (recipe.split_by is not None)) * _RANKED_ROW_BYTES
    )
    return Sizes(
        spool=spool,
        first_pass=int(num_rows * num_first_pass_row_bytes),
        shards=shards,
        manifest=manifest_bytes(num_files=len(plan.files), num_features=len(plan.features), num_splits=num_splits)
        + table_bytes(num_shards=num_shards, num_blocks=spool // BLOCK_BYTES),
    )


def space_needs(plan: Plan) -> tuple[Need, ...]:
    """Returns the remaining need on each file system, as far as it is known."""
    sizes = estimate_sizes(plan)
    if sizes is None:
        return ()
    spool, first_pass = _held(plan.work_path("spool")), _held(plan.work_path("survey"))
    is_read = len(list(plan.work_path("extract").glob("*.msgpack"))) == len(plan.input_splits)
    work = [] if is_read else [("the spool", sizes.spool - spool), ("the first pass", sizes.first_pass - first_pass)]
    work_root = str(plan.work_path().parent)
    recipe = plan.recipe
    may_shrink = not plan.transforms.options.changes_nothing or recipe.dedup is not None or recipe.sample is not None

    def need(where: str, parts: list[tuple[str, int]], is_rest: bool, advice: str) -> Need:
        left = tuple((what, num_bytes) for what, num_bytes in parts if num_bytes > 0)
        return Need(where, storage.free_bytes(where) or 0, left, is_rest, may_shrink, f"Free some space, or {advice}")

    is_begun = bool(spool or first_pass)
    if not storage.is_local(plan.destination):
        return (need(work_root, work, is_begun, "name another place with --work-dir"),)
    destination = str(storage.local_path(plan.destination))
    held = _held(Path(destination, plan.data_path))
    result = [("shards", sizes.shards - held), ("the manifest", sizes.manifest)]
    if _device(destination) == _device(work_root):
        advice = "put the spool on another disk with --work-dir"
        return (need(work_root, [*work, *result], is_begun or held > 0, advice),)
    return (
        need(work_root, work, is_begun, "name another place with --work-dir"),
        need(destination, result, held > 0, "choose another destination"),
    )


def _is_plenty(plan: Plan) -> bool:
    wanted = _PLENTY * sum(s.num_bytes for s in plan.input_splits) + _PLENTY_BYTES
    places = [plan.work_dir, *([plan.destination] if storage.is_local(plan.destination) else [])]
    return all((storage.free_bytes(place) or 0) >= wanted for place in places)


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
