"""Which source reads a set of files, by their content.

A source is imported when it is asked for: all of them together would take longer than converting a small file.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from typing import NamedTuple, cast

from shardkit import file_types
from shardkit.errors import DamagedFileError, NoRowsError, UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile, RecognizingSource, Source, SourceOptions, place
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.files.streams import read_head
from shardkit.sources.formats import FORMATS, Format, format_named
from shardkit.sources.plugins import PluginSource
from shardkit.sources.text_heads import check_is_decompressed

ENTRY_POINTS = "shardkit.sources"
_CONTROLS = bytes((*range(9), *range(14, 32)))
_GLANCE_BYTES = 512
_CONTENTS = ("binary", "text")
_SNIFFED_FILES = 64


def source_for(format: str) -> Source:
    """Returns the source of a format: one of shardkit's own, or one that an installed package offers.

    Raises:
        UsageError: If there is none.
    """
    if format in FORMATS:
        return _own(format)
    plugin = _plugins().get(format)
    if plugin is None:
        known = ", ".join((*FORMATS, *_plugins()))
        raise UsageError(f"there is no format {format!r}", next_step=f"Known are {known}")
    return plugin


@functools.cache
def _own(format: str) -> Source:
    module, _, name = FORMATS[format].source.rpartition(".")
    return cast(Source, getattr(importlib.import_module(module), name)(format=format))


@functools.cache
def _plugins() -> dict[str, RecognizingSource]:
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
        if format_name in FORMATS or format_name in found:
            raise UsageError(
                f"an installed package offers the format {format_name!r}, which is there already",
                where=entry.value,
                next_step="Uninstall that package, or give its format another name",
            )
        found[format_name] = PluginSource(source, format_name, entry.value)
    return found


class Choice(NamedTuple):
    """Which source reads some files.

    Attributes:
        source: The one that does.
        refused: Files that it should not be given, each with the reason; only where bad rows are tolerated.
    """

    source: Source
    refused: tuple[tuple[RawFile, str], ...] = ()


def choose_source(files: tuple[RawFile, ...], options: SourceOptions) -> Source:
    """Returns the source that reads the files; see `choose`."""
    return choose(files, options).source


def choose(files: tuple[RawFile, ...], options: SourceOptions) -> Choice:
    """Returns the source that reads the files: the wanted one, or the one for their content.

    Column names, a header and a delimiter ask for CSV. Where bad rows are tolerated, files that are of no format that
    is read, or something else than they are called, are refused as long as there are others.

    Raises:
        UsageError: If files are of different formats, or of none that is read.
        BadInputError: If there is nothing to read.
        DamagedFileError: If a compressed file is damaged; where bad rows are tolerated, only if nothing else is left.
    """
    if options.format is not None:
        return Choice(source_for(options.format))
    if options.columns is not None or options.delimiter is not None or options.has_header or options.no_header:
        return Choice(source_for("csv"))
    if options.text_record != "line":
        return Choice(source_for("text"))
    filled = [f for f in files if f.num_bytes]
    if not filled:
        raise NoRowsError(why="all input files are empty")
    looked = [(file, _kind_of(file, options)) for file in _worth_a_look(filled)]
    known = [(file, kind) for file, kind in looked if kind.format is not None]
    if not known:
        raise next(kind.error for _, kind in looked if kind.error is not None)
    if options.tolerates_bad_rows:
        # Files whose content fits their name show the format of the others.
        known = [(file, kind) for file, kind in known if kind.fault is None] or known
    first, first_format = known[0][0], known[0][1].format or ""
    for file, kind in known[1:]:
        if kind.format != first_format:
            raise UsageError(
                "the inputs are of different formats",
                why=f"{printable(first.name)} is {first_format}, {printable(file.name)} is {kind.format}",
                next_step="Choose some with --include GLOB or --exclude GLOB, or say which it is with --format",
            )
    return Choice(source_for(first_format), _refused(filled, looked, first_format, options))


def _refused(
    files: list[RawFile], looked: list[tuple[RawFile, _Kind]], format: str, options: SourceOptions
) -> tuple[tuple[RawFile, str], ...]:
    # Files that are a row each are refused when they are read, as rows.
    odd = {_suffix_in(file) for file, kind in looked if kind.refusal(format)}
    if not odd or format_named(format).has_row_files:
        return ()
    kinds = {file.name: kind for file, kind in looked}
    alike = [file for file in files if _suffix_in(file) in odd]
    found = [(file, (kinds.get(file.name) or _kind_of(file, options)).refusal(format)) for file in alike]
    return tuple((file, reason) for file, reason in found if reason)


def _worth_a_look(files: list[RawFile]) -> list[RawFile]:
    # Files that are called alike are of one kind; a sample of each kind is opened, which spares a million requests.
    by_suffix: dict[str, list[RawFile]] = {}
    for file in files:
        by_suffix.setdefault(_suffix_in(file), []).append(file)
    chosen = {f.name for group in by_suffix.values() for f in sample_files(group, _SNIFFED_FILES)}
    return [f for f in files if f.name in chosen]


def _suffix_in(file: RawFile) -> str:
    return file.name.rpartition(".")[2] if "." in file.name else ""


class _Kind(NamedTuple):
    # The format of a file, the name that it contradicts, or why it cannot be read.
    format: str | None
    fault: str | None = None
    error: DamagedFileError | UsageError | None = None

    def refusal(self, format: str) -> str | None:
        # Possible damage is left to reading, whose error says more.
        if isinstance(self.error, UsageError) and file_types.UNKNOWN not in self.error.what:
            return self.error.what
        return self.fault if self.format not in (None, format) else None


def _kind_of(file: RawFile, options: SourceOptions) -> _Kind:
    try:
        head = read_head(file, file_types.HEAD_BYTES)
        found = _format_of(head, file)
    except (DamagedFileError, UsageError) as error:
        if not options.tolerates_bad_rows:
            raise
        return _Kind(None, error=error)
    return _Kind(found, naming_fault(head, file.name, None) if file.compression in (None, "archive") else None)


def _format_of(head: bytes, file: RawFile) -> str:
    own = _recognized(head, file.name)
    if own is not None and own.name != "text":
        return own.name
    # Nearly any text may be lines of text; a format of another package knows better.
    for source in _plugins().values():
        if source.recognizes(head, file.name):
            return source.format
    if own is not None:
        return own.name
    found = file_types.format_of(head, file.name)
    if found is None:
        check_is_decompressed(head, file)
        raise _unread(file, file_types.foreign_format(head) or file_types.UNKNOWN)
    return found


def naming_fault(head: bytes, name: str, compression: str | None) -> str | None:
    """Returns how a file contradicts its name, such as `is called .csv but is Parquet`; None if they agree.

    Args:
        head: The first bytes as stored.
        name: Of the file.
        compression: What the bytes are compressed with.
    """
    suffix = file_types.suffix_of(name)
    if suffix in file_types.COMPRESSED_SUFFIXES:
        return None if compression else f"is called {suffix} but is not compressed"
    promised = next((format.content for format in FORMATS.values() if suffix in format.suffixes), None)
    if compression is not None:
        return f"is called {suffix} but is compressed with {compression}" if promised == "text" else None
    if promised == "text" and _has_controls(head):
        found = FORMATS["parquet"] if file_types.format_of(head, name) == "parquet" else _recognized(head, name)
        return f"is called {suffix} but is {found.title}" if found else None
    if promised == "binary" and not _has_controls(head):
        return f"is called {suffix} but is text"
    return None


def _recognized(head: bytes, name: str) -> Format | None:
    # A control character or two, such as a colour of a terminal, is still text.
    contents = ("text",) if not _has_controls(head) else ("binary",) if file_types.foreign_format(head) else _CONTENTS
    for content in contents:
        for format in FORMATS.values():
            if not format.is_asked or format.content != content:
                continue
            if cast(RecognizingSource, _own(format.name)).recognizes(head, name):
                return format
    return None


def _has_controls(head: bytes) -> bool:
    return len(head[:_GLANCE_BYTES].translate(None, _CONTROLS)) < len(head[:_GLANCE_BYTES])


def _unread(file: RawFile, kind: str) -> UsageError:
    return UsageError(
        f"the file is {kind}, which is not read",
        where=place(file),
        next_step="Convert it to CSV, JSON Lines or Parquet first, or leave it out with --exclude GLOB",
    )
