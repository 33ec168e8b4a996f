"""Which source reads a set of files, by what is in them.

A source is imported when it is asked for: all of them together would take longer than converting a small file.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from typing import cast

from shardkit.errors import DamagedFileError, NoRowsError, UsageError
from shardkit.sources import sniff
from shardkit.sources.base import RawFile, RecognizingSource, Source, SourceOptions
from shardkit.sources.offered import OfferedSource
from shardkit.sources.sampling import sample_files
from shardkit.sources.streams import place, printable, read_head

ENTRY_POINTS = "shardkit.sources"

_CLASSES = {
    "csv": "csv_files.CsvSource",
    "tsv": "csv_files.CsvSource",
    "jsonl": "json_lines.JsonLinesSource",
    "json": "json_array.JsonArraySource",
    "parquet": "parquet_files.ParquetSource",
    "arrow": "arrow_files.ArrowSource",
    "orc": "orc_files.OrcSource",
    "avro": "avro_files.AvroSource",
    "text": "text_files.TextSource",
    "images": "image_files.ImageSource",
    "audio": "audio_files.AudioSource",
    "webdataset": "webdataset_files.WebDatasetSource",
    "numpy": "numpy_files.NumpySource",
    "idx": "idx_files.IdxSource",
    "sqlite": "sqlite_files.SqliteSource",
    "tfrecord": "tfrecord_files.TfrecordSource",
}
# Asked in this order whether a file is theirs; what nobody takes is told apart by `sniff`.
_RECOGNIZING_BINARY = ("sqlite", "arrow", "orc", "avro", "tfrecord", "webdataset", "idx", "numpy", "audio")
_RECOGNIZING_TEXT = ("json", "text")
_CONTROLS = bytes((*range(9), *range(14, 32)))
_GLANCE_BYTES = 512
_TEXT_SUFFIXES = frozenset({".csv", ".tsv", ".json", ".jsonl", ".ndjson"})
_BINARY_SUFFIXES = frozenset({".parquet", ".arrow", ".feather", ".orc", ".avro", ".tfrecord", ".npy", ".npz"})
_TITLES = {
    "parquet": "Parquet",
    "arrow": "Arrow",
    "orc": "ORC",
    "avro": "Avro",
    "tfrecord": "TFRecord",
    "sqlite": "SQLite",
    "webdataset": "a tar archive",
    "numpy": "NumPy",
    "idx": "IDX",
}
_SNIFFED_FILES = 64


def source_for(format: str) -> Source:
    """Returns the source of a format: one of shardkit's own, or one that an installed package offers.

    Raises:
        UsageError: If there is none.
    """
    if format in _CLASSES:
        return _own(format)
    offered = _offered().get(format)
    if offered is None:
        known = ", ".join((*_CLASSES, *_offered()))
        raise UsageError(f"there is no format {format!r}", next_step=f"Known are {known}")
    return offered


@functools.cache
def _own(format: str) -> Source:
    module, _, name = _CLASSES[format].partition(".")
    return cast(Source, getattr(importlib.import_module(f"shardkit.sources.{module}"), name)(format=format))


@functools.cache
def _offered() -> dict[str, RecognizingSource]:
    """Returns the sources of other packages, by format: their entry points in the group `shardkit.sources`."""
    found: dict[str, RecognizingSource] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            source = entry.load()()
            format_name = source.format
        except Exception as error:
            raise UsageError(
                f"the source {entry.name!r} of an installed package cannot be loaded",
                where=entry.value,
                why=f"{type(error).__name__}: {error}",
                next_step="Repair or uninstall that package",
            ) from error
        if format_name in _CLASSES or format_name in found:
            raise UsageError(
                f"an installed package offers the format {format_name!r}, which is there already",
                where=entry.value,
                next_step="Uninstall that package, or give its format another name",
            )
        found[format_name] = OfferedSource(source, format_name, entry.value)
    return found


def choose_source(files: tuple[RawFile, ...], options: SourceOptions) -> Source:
    """Returns the source that reads the files: the one that is asked for, or what their content says.

    Column names, a header and a delimiter ask for CSV.

    Raises:
        UsageError: If files are of different formats, or of none that is read.
        BadInputError: If there is nothing to read.
    """
    if options.format is not None:
        return source_for(options.format)
    if options.columns is not None or options.delimiter is not None or options.has_header:
        return source_for("csv")
    if options.text_record != "line":
        return source_for("text")
    filled = [f for f in files if f.num_bytes]
    if not filled:
        raise NoRowsError(why="all input files are empty")
    looked = _worth_a_look(filled)
    found = [_format_of(file, options) for file in looked]
    known = [(file, format) for file, format in zip(looked, found, strict=True) if format is not None]
    if not known:
        raise _unread(filled[0], sniff.UNKNOWN)
    first, first_format = known[0]
    for file, other in known[1:]:
        if other != first_format:
            raise UsageError(
                "the inputs are of different formats",
                why=f"{printable(first.name)} is {first_format}, {printable(file.name)} is {other}",
                next_step="Choose some with --include GLOB or --exclude GLOB, or say which it is with --format",
            )
    return source_for(first_format)


def _worth_a_look(files: list[RawFile]) -> list[RawFile]:
    # Files that are called alike are of one kind; a sample of each kind is opened, which spares a million requests.
    by_suffix: dict[str, list[RawFile]] = {}
    for file in files:
        by_suffix.setdefault(file.name.rpartition(".")[2] if "." in file.name else "", []).append(file)
    chosen = {f.name for group in by_suffix.values() for f in sample_files(group, _SNIFFED_FILES)}
    return [f for f in files if f.name in chosen]


def _format_of(file: RawFile, options: SourceOptions) -> str | None:
    # None for what may be a damaged file of the others' format, where bad rows are tolerated: reading tells.
    try:
        head = read_head(file, sniff.HEAD_BYTES)
    except DamagedFileError:
        if not options.tolerates_bad_rows:
            raise
        return None
    for format in _RECOGNIZING_BINARY if _has_controls(head) else _RECOGNIZING_TEXT:
        if cast(RecognizingSource, _own(format)).recognizes(head, file.name):
            return format
    for source in _offered().values():
        if source.recognizes(head, file.name):
            return source.format
    found = sniff.format_of(head, file.name)
    if found is None:
        kind = sniff.foreign_format(head) or sniff.UNKNOWN
        if kind != sniff.UNKNOWN or not options.tolerates_bad_rows:
            raise _unread(file, kind)
    return found


def naming_fault(head: bytes, name: str, compression: str | None) -> str | None:
    """Returns what a file is in spite of its name, such as `is called .csv but is Parquet`; None if they agree.

    Args:
        head: The first bytes as stored.
        name: Of the file.
        compression: What the bytes are compressed with.
    """
    suffix = sniff.suffix_of(name)
    if suffix in sniff.COMPRESSED_SUFFIXES:
        return None if compression else f"is called {suffix} but is not compressed"
    if compression is not None:
        return f"is called {suffix} but is compressed with {compression}" if suffix in _TEXT_SUFFIXES else None
    if suffix in _TEXT_SUFFIXES and _has_controls(head):
        found = _binary_format(head, name)
        return f"is called {suffix} but is {found}" if found else None
    if suffix in _BINARY_SUFFIXES and not _has_controls(head):
        return f"is called {suffix} but is text"
    return None


def _binary_format(head: bytes, name: str) -> str | None:
    # Named as a kind of file; images and what nobody reads have errors of their own.
    for format in ("parquet",) if sniff.format_of(head, name) == "parquet" else _RECOGNIZING_BINARY:
        if format == "parquet" or cast(RecognizingSource, _own(format)).recognizes(head, name):
            return _TITLES.get(format, format)
    return None


def _has_controls(head: bytes) -> bool:
    return len(head[:_GLANCE_BYTES].translate(None, _CONTROLS)) < len(head[:_GLANCE_BYTES])


def _unread(file: RawFile, kind: str) -> UsageError:
    return UsageError(
        f"the file is {kind}, which is not read",
        where=place(file),
        next_step="Convert it to CSV, JSON Lines or Parquet first, or leave it out with --exclude GLOB",
    )
