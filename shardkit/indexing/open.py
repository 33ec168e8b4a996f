"""Reads TFRecord files of others without a manifest, or indexes them with one. Their names tell their splits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shardkit.conversion.option_forms import SplitShare, parse_shares
from shardkit.conversion.plan import make_created
from shardkit.dataset.open import Dataset
from shardkit.dataset.shard_table import unstored_table
from shardkit.errors import UsageError
from shardkit.indexing.listing import IndexOptions, Listed, list_tfrecords, refuse_unsafe_names
from shardkit.indexing.scan_all import scan_all
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
from shardkit.sources.file_globs import matches
from shardkit.units import format_number

DEFAULT_SPLIT = "train"
_WORDS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "valid",
    "val": "val",
    "dev": "dev",
    "eval": "eval",
    "test": "test",
    "testing": "test",
}
_ORDER = ("train", "validation", "valid", "val", "dev", "eval", "test")
_TFDS = re.compile(r".+-([A-Za-z][A-Za-z0-9_]{0,63})\.tfrecord(?:\.gz)?-\d+-of-\d+", re.ASCII)
_FOLDER = re.compile(r"(?:split[-_])?([a-z]+)", re.IGNORECASE | re.ASCII)
# The text after the first match says how a file is stored, or which part it is.
_STEM_END = re.compile(r"\.|[-_]\d+(?:[-_]of[-_]\d+)?(?:\.|$)", re.ASCII)
_SEPARATOR = re.compile(r"[-_. ]+")


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


def split_of_name(name: str) -> str | None:
    """Returns the split that a file's name tells, None if it tells none.

    The first of these counts: `NAME-SPLIT.tfrecord-00000-of-00005` of TensorFlow Datasets; a file that is called like a
    split, or begins or ends with its name (`train-00000-of-01024`, `mnist_test.tfrecord`); the nearest folder that is
    called like a split (`validation/`, `Split-eval/`).

    Args:
        name: Path relative to the root of the dataset, with `/`.
    """
    *folders, file_name = name.split("/")
    if match := _TFDS.fullmatch(file_name):
        return _WORDS.get(match.group(1).lower(), match.group(1))
    tokens = _SEPARATOR.split(_stem(file_name).lower())
    for token in (tokens[-1], tokens[0]):
        if token in _WORDS:
            return _WORDS[token]
    for folder in reversed(folders):
        folder_match = _FOLDER.fullmatch(folder)
        if folder_match and folder_match.group(1).lower() in _WORDS:
            return _WORDS[folder_match.group(1).lower()]
    return None


def assign_splits(names: Sequence[str], globs: Sequence[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Returns the split of every file by name, and the files that went to `train` because nothing tells their split.

    Args:
        names: Of the files, relative to the root.
        globs: Split and glob over the names; the first that fits counts. What none fits goes by its name.

    Raises:
        UsageError: If a split cannot have that name, or a glob fits no file.
    """
    # Called for its check of the names only.
    parse_shares([SplitShare(name=split) for split in dict.fromkeys(split for split, _ in globs)], (DEFAULT_SPLIT,))
    chosen: dict[str, str] = {}
    unsplit: list[str] = []
    for name in names:
        split = next((s for s, glob in globs if matches(name, glob)), None) or split_of_name(name)
        if split is None:
            unsplit.append(name)
        chosen[name] = split or DEFAULT_SPLIT
    for split, glob in globs:
        if not any(matches(name, glob) for name in names):
            raise UsageError(
                f"--split {split}={glob} fits no file",
                why=f"the files are called like {names[0]}",
                next_step="Write the glob as the files are called, or as their paths below the folder, in quotes",
            )
    return chosen, unsplit


def order_of_splits(splits: Sequence[str], globs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the names of splits once each: those asked for first, then train, validation, test, and others."""
    asked = [split for split, _ in globs]
    rest = sorted(set(splits), key=lambda s: (_ORDER.index(s) if s in _ORDER else len(_ORDER), s))
    return [s for s in dict.fromkeys((*asked, *rest)) if s in set(splits)]


def _stem(file_name: str) -> str:
    end = _STEM_END.search(file_name, 1)
    return file_name[: end.start()] if end else file_name
