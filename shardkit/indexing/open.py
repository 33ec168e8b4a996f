"""Reading TFRecord files of others without a manifest, and indexing them with one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardkit.conversion.plan import make_created
from shardkit.dataset.open import Dataset
from shardkit.dataset.shard_table import unstored_table
from shardkit.indexing.listing import IndexOptions, Listed, list_tfrecords, refuse_unsafe_names
from shardkit.indexing.scan_all import scan_all
from shardkit.indexing.split_names import DEFAULT_SPLIT, assign_splits, order_of_splits
from shardkit.indexing.write import (
    commit,
    find_indexed,
    is_unchanged,
    make_manifest,
    make_recipe,
    make_shards,
    refuse_unwritable,
)
from shardkit.reading.split import Split
from shardkit.units import format_number


class Indexed(NamedTuple):
    """What was made.

    Attributes:
        is_new: False if it was there already and says the same.
    """

    dataset: Dataset
    is_new: bool
    notes: tuple[str, ...]


def open_tfrecords(
    patterns: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    max_record_bytes: int,
    max_expansion: int,
    num_threads: int,
) -> Split:
    """Returns all examples as one split; see `shardkit.open_tfrecords`."""
    options = IndexOptions(max_record_bytes=max_record_bytes, max_expansion=max_expansion)
    named = [os.fspath(p) for p in ([patterns] if isinstance(patterns, (str, os.PathLike)) else patterns)]
    listed = list_tfrecords(named, options)
    found = scan_all(listed, options, None, num_threads=num_threads)
    shards = make_shards(found, {f.name: DEFAULT_SPLIT for f in listed.files}, [DEFAULT_SPLIT])
    manifest, _ = make_manifest(found, listed, shards, make_recipe(options), make_created(named), version=1)
    table = unstored_table(shards, listed.root)
    return Split(Dataset(listed.root, 0, manifest, table), DEFAULT_SPLIT)


def list_for_index(patterns: Sequence[str], options: IndexOptions) -> Listed:
    """Returns the files to index, where they can be; nothing is written.

    Raises:
        UsageError: As `list_tfrecords`, and if names or the folder cannot hold a manifest, or a split's glob fits none.
    """
    listed = list_tfrecords(patterns, options)
    refuse_unsafe_names(listed)
    assign_splits([f.name for f in listed.files], options.splits)
    return listed


def index_tfrecords(
    patterns: Sequence[str],
    listed: Listed,
    options: IndexOptions,
    *,
    num_threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Indexed:
    """Writes a manifest beside TFRecord files, unless there is one that says the same. The files are only read.

    Args:
        num_threads: Files that are read at the same time; see `scan_all`.
        progress: Called from several threads with the numbers of stored bytes just read.

    Raises:
        BadInputError: At the first record that is damaged or no Example; nothing is written then.
        UsageError: If there are SequenceExamples, features differ, or the folder may not be written to.
        ConflictError: If a conversion made the folder, or another process was faster.
        DamageError: If a conversion made the folder, and no version of it is whole.
        StorageError, OutOfSpaceError: If a store fails.
    """
    splits, unsplit = assign_splits([f.name for f in listed.files], options.splits)
    previous, damages = find_indexed(listed.root, listed)
    if previous is not None and is_unchanged(previous, listed, options, num_threads=num_threads, progress=progress):
        return Indexed(previous, False, listed.notes)
    refuse_unwritable(listed.root)
    found = scan_all(listed, options, splits, num_threads=num_threads, progress=progress)
    order = order_of_splits([splits[s.file.name] for s in found.files], options.splits)
    dataset, is_new = commit(found, listed, make_shards(found, splits, order), options, patterns, previous)
    return Indexed(dataset, is_new, (*damages, *found.notes, *_no_split_note(unsplit, len(order))))


def _no_split_note(unsplit: Sequence[str], num_splits: int) -> tuple[str, ...]:
    if not unsplit or num_splits == 1:
        return ()
    files = format_number(len(unsplit), "file")
    tell = "tells" if len(unsplit) == 1 else "tell"
    return (f"the names of {files} {tell} no split, such as {unsplit[0]}: counted as {DEFAULT_SPLIT}; see --split",)
