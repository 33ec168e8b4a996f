"""Which TFRecord files are indexed, below which folder, and how they are stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from shardkit.dataset.documents import check_relative_path
from shardkit.errors import BadInputError, UnsafeError, UsageError
from shardkit.file_types import compression_of, is_manifest_name
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.files.many_files import map_files
from shardkit.sources.files.streams import open_raw
from shardkit.sources.listing import expand_inputs
from shardkit.sources.tfrecord.blocks import Form, form_of, is_record_header, is_zlib_of_records, unzipped_head
from shardkit.storage import files as storage
from shardkit.units import format_number

Compression = Literal["gzip", "none"]

_HEAD_BYTES = 4096
_LISTED_NAMES = 5
_GZIP_WINDOW = 16 + 15
_TFRECORD_NAME = re.compile(r"tf[-_.]?rec|\.records?\b|-\d{4,}-of-\d{4,}$", re.IGNORECASE)
# Some readers keep an index beside each file.
_BESIDE_SUFFIXES = (".idx", ".index", ".tfindex", ".json", ".txt", ".md", ".pbtxt", ".csv", ".yaml", ".yml", ".sha256")
_CONVERT = "Convert them instead: shardkit convert FILES DESTINATION"


class IndexOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How files of others are taken.

    Attributes:
        splits: Split and glob over the names of the files, the first that fits counts; others go by their names.
        max_record_bytes: Larger records are refused.
        max_expansion: A gzip file may become so many times as large; up to 64 MiB are always allowed.
    """

    splits: tuple[tuple[str, str], ...] = ()
    max_record_bytes: int = 256 * 1024 * 1024
    max_expansion: int = 200


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The files that are indexed.

    Attributes:
        root: The folder that all are below.
        files: By name, which is relative to the root; none of them of 0 bytes.
        empty: Files of 0 bytes.
        notes: What the user should know, one sentence each.
    """

    root: str
    files: tuple[RawFile, ...]
    compression: Compression
    empty: tuple[RawFile, ...]
    notes: tuple[str, ...]


class _Inspected(NamedTuple):
    file: RawFile
    form: Form
    holds_records: bool


def list_tfrecords(patterns: Sequence[str], options: IndexOptions) -> Listed:
    """Returns the TFRecord files that files, folders and globs name.

    A file that holds no TFRecords is left out, unless it is named without a wildcard or called like one. Manifests are
    passed over.

    Raises:
        UsageError: If an input names nothing, no TFRecords are found, the files are below no common folder, or they are
            compressed in different ways or in one that no reader of blocks has.
        BadInputError, StorageError: If a file is gone or cannot be read.
    """
    expanded = expand_inputs(patterns, "tfrecord")
    root = _one_spelling(expanded.root)
    named = {_one_spelling(storage.normalize(p)) for p in patterns}
    listed = [
        RawFile(
            path=_one_spelling(info.path),
            name=_one_spelling(info.path).removeprefix(root).lstrip("/"),
            num_bytes=info.num_bytes,
            version=info.version,
            max_expansion=options.max_expansion,
        )
        for info in expanded.files
    ]
    listed = sorted((f for f in listed if not is_manifest_name(f.name)), key=lambda f: f.name)
    if not root:
        raise _no_common_folder(listed)
    _refuse_other_texts(listed)
    wanted, others, empty = [], [], []
    for inspected in map_files(_inspect, listed):
        if inspected.holds_records:
            wanted.append(inspected)
        elif inspected.file.path not in named and not is_called_tfrecord(inspected.file.name):
            others.append(inspected.file)
        elif inspected.file.num_bytes:
            wanted.append(inspected)
        else:
            empty.append(inspected.file)
    if not wanted:
        raise _nothing_found(root, [*others, *empty])
    return Listed(
        root=root,
        files=tuple(inspected.file for inspected in wanted),
        compression=_one_compression(wanted),
        empty=tuple(empty),
        notes=(*_left_out(others), *_named_twice(expanded.repeated, root)),
    )


def is_called_tfrecord(name: str) -> bool:
    """Whether a file is called like TFRecords, so that it holds damaged ones if it holds none."""
    file_name = name.rpartition("/")[2]
    return bool(_TFRECORD_NAME.search(file_name)) and not file_name.lower().endswith(_BESIDE_SUFFIXES)


def refuse_unsafe_names(listed: Listed) -> None:
    """Checks that a manifest may hold the names of the files.

    Raises:
        UsageError: If the root is the root of everything, or a name has characters that no stored path may have.
    """
    if listed.root == "/":
        raise _no_common_folder(listed.files)
    for file in listed.files:
        try:
            check_relative_path(file.name, "")
        except UnsafeError as error:
            raise UsageError(
                "a manifest cannot hold the name of a file",
                where=printable(file.name),
                why="the names of folders and files may have letters, digits, spaces inside and . _ = - ( ) only",
                next_step="Rename it, or read the files without a manifest: shardkit.open_tfrecords(...)",
            ) from error


def _one_spelling(path: str) -> str:
    # fsspec's store in memory lists `memory:///a` whatever it was asked for.
    return path.replace("memory:///", "memory://", 1)


def _inspect(file: RawFile) -> _Inspected:
    if not file.num_bytes:
        return _Inspected(file, "plain", False)
    with open_raw(file) as raw:
        head = raw.read(_HEAD_BYTES)
    file = msgspec.structs.replace(file, compression=compression_of(head))
    if is_record_header(head):
        return _Inspected(msgspec.structs.replace(file, compression=None), "plain", True)
    is_gzip_of_records = file.compression == "gzip" and is_record_header(unzipped_head(head, _GZIP_WINDOW))
    return _Inspected(file, form_of(file), is_gzip_of_records or is_zlib_of_records(head))


def _one_compression(inspected: Sequence[_Inspected]) -> Compression:
    for item in inspected:
        other = "zlib" if item.form == "zlib" else item.file.compression
        if other not in (None, "gzip"):
            raise UsageError(
                f"a file is compressed with {other}",
                where=printable(item.file.name),
                why="readers of single blocks know gzip and plain TFRecords",
                next_step=_CONVERT,
            )
    first = inspected[0]
    for item in inspected:
        if (item.form == "plain") != (first.form == "plain"):
            gzip, plain = (item, first) if first.form == "plain" else (first, item)
            raise UsageError(
                "the files are compressed in different ways",
                why=f"{printable(gzip.file.name)} is gzip and {printable(plain.file.name)} is not compressed",
                next_step=f"Name only those of one kind, or all with one. {_CONVERT}",
            )
    return "none" if first.form == "plain" else "gzip"


def _refuse_other_texts(files: Sequence[RawFile]) -> None:
    for file in files:
        if not file.name.isascii() and file.name.encode(errors="replace").decode() != file.name:
            name = file.name.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise UsageError("the file name is not UTF-8", where=name, next_step="Rename the file")


def _no_common_folder(files: Sequence[RawFile]) -> UsageError:
    return UsageError(
        "the files lie below no common folder",
        why=f"such as {printable(files[0].path)} and {printable(files[-1].path)}",
        next_step="Index them one by one; a dataset is a folder and what lies below it",
    )


def _nothing_found(root: str, others: Sequence[RawFile]) -> BadInputError | UsageError:
    why = f"none of {format_number(len(others), 'file')} begins like one"
    if others and not any(f.num_bytes for f in others):
        why = f"{printable(others[0].name)} is empty" if len(others) == 1 else f"all {len(others):,} files are empty"
    return UsageError(
        "there are no TFRecords",
        where=storage.redact(root),
        why=why if others else "there are no files besides manifests",
        next_step="Name TFRecord files, or turn files of another format into a dataset: shardkit convert",
    )


def _left_out(others: Sequence[RawFile]) -> tuple[str, ...]:
    if not others:
        return ()
    names = ", ".join(printable(f.name) for f in others[:_LISTED_NAMES])
    more = f" and {len(others) - _LISTED_NAMES:,} more" if len(others) > _LISTED_NAMES else ""
    what = "holds no TFRecords and is" if len(others) == 1 else "hold no TFRecords and are"
    return (f"{names}{more} {what} left out",)


def _named_twice(paths: Sequence[str], root: str) -> tuple[str, ...]:
    return tuple(f"{printable(p.removeprefix(root).lstrip('/'))} was named twice and counts once" for p in paths[:1])
