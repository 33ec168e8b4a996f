"""Checks of a request before any work: options that exclude each other or have no meaning."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from shardkit.conversion.option_forms import BadLimit
from shardkit.conversion.request import ConvertRequest
from shardkit.dataset.manifest import manifest_path, shard_table_path
from shardkit.encoding.codec import DEFAULT_LEVEL, CompressionLevel
from shardkit.errors import UsageError
from shardkit.options import options_of
from shardkit.sources.file_globs import matches
from shardkit.sources.formats import LABEL_TABLE_OPTIONS, format_named, formats_with
from shardkit.sources.listing import escaped
from shardkit.sources.options import SourceOptions
from shardkit.storage import files as storage
from shardkit.storage.locations import names_path
from shardkit.units import KiB

_EXCLUSIVE = (
    ("has_header", "columns"),
    ("has_header", "no_header"),
    ("table", "query"),
    ("class_folder", "no_labels"),
    ("class_folder", "labels"),
)


def check_options(options: ConvertRequest) -> None:
    """Checks the options as far as that needs no look at the inputs. Raises UsageError if some exclude each other."""
    _check_assignment(options)
    if options.num_shards is not None and options.num_shards < 1:
        raise UsageError(
            f"--num-shards is {options.num_shards}",
            why="it must be at least 1",
            next_step="Give --num-shards 1 or more, or leave it out and give --shard-size",
        )
    if options.num_shards is None and (options.shard_bytes or 0) < KiB:
        raise UsageError(
            f"a shard size of {options.shard_bytes} bytes is too small",
            why="it must be at least 1 KiB",
            next_step="Give a larger --shard-size, such as 128MiB",
        )
    if options.tfds and options.compression != "none":
        raise UsageError(
            "TensorFlow Datasets reads uncompressed shards only", next_step="Add --compression none, or drop --tfds"
        )
    _check_bad_row_options(options)
    _check_fetch_options(options)


def check_source_options(options: SourceOptions) -> None:
    """Checks that options of reading have a meaning for the format. Raises UsageError if one has none."""
    given = {f.name: f for f in options_of(SourceOptions) if getattr(options, f.name) != f.default}
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise UsageError(
                f"--{given[one].key} and --{given[other].key} exclude each other", next_step="Drop one of them"
            )
    for field in given.values():
        # Without a format that names it, an option has a meaning for all.
        formats = formats_with(field.name)
        if field.name in LABEL_TABLE_OPTIONS and options.labels is None:
            formats = tuple(name for name in formats if not format_named(name).has_row_files)
        if formats and options.format not in formats:
            raise UsageError(
                f"--{field.key} has no meaning for {options.format} files",
                next_step=f"It is for {', '.join(formats)}; drop it, or say with --format what the files are",
            )


def choose_level(options: ConvertRequest) -> CompressionLevel | None:
    """Returns the level of compression, None where nothing is compressed.

    Raises:
        UsageError: If one was given for no compression.
    """
    if options.compression == "gzip":
        return options.compression_level or DEFAULT_LEVEL
    if options.compression_level is not None:
        raise UsageError(
            f"--compression-level {options.compression_level} has no meaning with --compression {options.compression}",
            next_step="Drop one of them",
        )
    return None


def _check_assignment(options: ConvertRequest) -> None:
    asked = (
        ("--group-by", bool(options.group_by)),
        ("--split-column", options.split_column is not None),
        ("--stratify", options.stratify is not None),
        ("--split-by", options.split_by is not None),
    )
    given = [option for option, is_given in asked if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", next_step="Keep one of them")
    dividing = [option for option, name in (("--stratify", options.stratify), ("--split-by", options.split_by)) if name]
    if dividing and len(options.splits) < 2:
        raise UsageError(
            f"{dividing[0]} has no meaning without two splits to divide rows over",
            next_step="Give two or more, such as --split train=0.8 --split test=0.2",
        )
    if options.limit is not None and options.sample is not None:
        raise UsageError("--limit and --sample exclude each other", next_step="Keep one of them")


def _check_bad_row_options(options: ConvertRequest) -> None:
    if options.max_bad is None:
        return
    BadLimit(options.max_bad)
    if options.on_bad_record == "fail":
        raise UsageError(
            "--max-bad has no meaning where the first bad row ends the conversion",
            next_step="Add --on-bad-record skip or --on-bad-record quarantine",
        )


def _check_fetch_options(options: ConvertRequest) -> None:
    if options.fetch_again and not options.append:
        raise UsageError("--fetch-again is for --append", next_step="Add --append, and leave out the inputs")
    if options.transforms.fetch is None:
        if options.transforms.fetch_private or options.transforms.fetch_disallowed:
            option = "--fetch-private" if options.transforms.fetch_private else "--fetch-disallowed"
            raise UsageError(f"{option} is for --fetch", next_step="Name the column of web addresses with --fetch")
        return
    for option in ("dedup", "sample", "stratify", "split_by"):
        if getattr(options, option) is not None:
            raise UsageError(
                f"--fetch and --{option.replace('_', '-')} exclude each other",
                why="all rows would be fetched twice, and a server may give something else the second time",
                next_step="Convert without it, then convert the dataset that you get with it",
            )


_DATA = ("train-00000-of-00001.tfrecord.gz", "train-00000-of-00001.tfrecord", "rejected-00000.jsonl.gz")
_NEXT_STEP = "Choose a destination outside of the input folders"


def refuse_other_texts(*folders: str) -> None:
    """Checks that the names of folders are UTF-8, as a plan and a manifest hold them as text.

    Raises:
        UsageError: If one is not.
    """
    for folder in folders:
        if (name := escaped(folder)) != folder:
            raise UsageError(
                "the name of a folder is not UTF-8",
                where=storage.redact(name),
                next_step="Rename it, or name another one",
            )


def refuse_own_output(
    patterns: Sequence[str], paths: Sequence[str], root: str, destination: str, options: SourceOptions
) -> None:
    """Checks that no input is in the destination, and that the inputs do not name files that are made there.

    Args:
        patterns: The inputs as the user names them.
        paths: Those of the files that they name now whose paths begin as the destination's.
        root: The folder that names of files are relative to.

    Raises:
        UsageError: If one does.
    """
    inside = [p for p in paths if p.startswith(f"{destination}/") and _is_chosen(p, root, options)]
    if inside:
        raise UsageError(
            "the destination lies among the inputs",
            where=storage.redact(inside[0]),
            why="the shards would be read as input",
            next_step=_NEXT_STEP,
        )
    if destination in paths:
        # A file is no folder, which is another error.
        return
    made = [p for p in _made_paths(_resolved(destination)) if _is_chosen(p, _resolved(root), options)]
    for pattern in patterns:
        if any(names_path(_resolved(storage.normalize(pattern)), path) for path in made):
            raise UsageError(
                "the destination lies inside of an input",
                where=storage.redact(destination),
                why=f"the next conversion of {storage.redact(pattern)} would read its shards as input",
                next_step=_NEXT_STEP,
            )


def _resolved(path: str) -> str:
    return os.path.realpath(path) if path and storage.is_local(path) else path


def _made_paths(destination: str) -> Iterator[str]:
    for name in (manifest_path(1), shard_table_path(1, "0" * 32), *(f"data/{'0' * 32}/{name}" for name in _DATA)):
        yield storage.join(destination, name)


def _is_chosen(path: str, root: str, options: SourceOptions) -> bool:
    name = path.removeprefix(root).lstrip("/") if root else path
    is_included = not options.include or any(matches(name, glob) for glob in options.include)
    return is_included and not any(matches(name, glob) for glob in options.exclude)
