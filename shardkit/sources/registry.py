"""Which source reads a set of files, by their content.

A source is imported when it is asked for: all of them together would take longer than converting a small file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from importlib.metadata import entry_points
from typing import NamedTuple, cast

import msgspec

from shardkit import file_types
from shardkit.errors import DamagedFileError, NoRowsError, UsageError
from shardkit.sources.base import RawFile, RecognizingSource, Source, SourceOptions, place
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.exploded import exploded
from shardkit.sources.files.streams import read_head
from shardkit.sources.files.unpacked import check_no_packed, packed_beside, packed_error
from shardkit.sources.folders.class_documents import are_class_documents
from shardkit.sources.folders.paired_files import option_without_masks
from shardkit.sources.foreign_files import way_to_read
from shardkit.sources.formats import FORMATS, LABEL_TABLE_OPTIONS, Format, format_named
from shardkit.sources.inventory import (
    Kind,
    Recognized,
    check_is_among,
    count_kinds,
    documents_beside,
    formats_that_are_read,
    is_companion_file,
    other_kinds,
    passed_over,
    several_kinds,
    suffix_in,
)
from shardkit.sources.naming_tables import advice_on_rows
from shardkit.sources.plugins import PluginSource
from shardkit.sources.text_heads import check_is_decompressed
from shardkit.units import format_count

ENTRY_POINTS = "shardkit.sources"
_CONTROLS = bytes((*range(9), *range(14, 32)))
_GLANCE_BYTES = 512
_CONTENTS = ("binary", "text")
_SNIFFED_FILES = 64
_DEFAULTS = SourceOptions()
_ASK_FOR_CSV = ("columns", "delimiter", "has_header", "no_header", "quote", "skip_lines")


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


def source_of(options: SourceOptions) -> Source:
    """Returns the source of options whose format is known; with `explode` its rows are items of lists.

    Raises:
        UsageError: If there is none.
    """
    return exploded(source_for(options.format or ""), options)


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
        refused: Files that it should not be given, each with the reason; only where bad rows are tolerated.
        passed_over: Files that are no data, or of another kind than the wanted format.
    """

    source: Source
    refused: tuple[tuple[RawFile, str], ...] = ()
    passed_over: tuple[RawFile, ...] = ()
    kinds: tuple[Kind, ...] = ()


def choose_source(files: tuple[RawFile, ...], options: SourceOptions) -> Source:
    """Returns the source that reads the files; see `choose`."""
    return choose(files, options).source


def choose(files: tuple[RawFile, ...], options: SourceOptions) -> Choice:
    """Returns the source that reads the files: the wanted one, or the one for their content.

    Column names, a header and a delimiter ask for CSV. Where bad rows are tolerated, files that are of no format that
    is read, or something else than they are called, are refused as long as there are others.

    Raises:
        UsageError: If files are of different kinds, or of none that is read; or if one is beside a compressed one
            that it may have been unpacked from.
        BadInputError: If there is nothing to read.
        DamagedFileError: If a compressed file is damaged; where bad rows are tolerated, only if nothing else is left.
    """
    packed = packed_beside(files)
    try:
        choice = _choose(files, options)
    except (DamagedFileError, UsageError) as error:
        if packed:
            raise packed_error(packed[0], error) from None
        raise
    if packed:
        passed = {file.name for file in choice.passed_over}
        check_no_packed([file for file in files if file.name not in passed])
    return choice


def _choose(files: tuple[RawFile, ...], options: SourceOptions) -> Choice:
    if any(file.shard is not None for file in files):
        return Choice(source_for("dataset"), passed_over=_beside_datasets(files, options))
    if options.array_record == "file":
        options = msgspec.structs.replace(options, format="numpy-files")
    if options.format is None:
        asked = [name for name in _ASK_FOR_CSV if options.labels is None or name not in LABEL_TABLE_OPTIONS]
        if any(getattr(options, name) != getattr(_DEFAULTS, name) for name in asked):
            return Choice(source_for("csv"), passed_over=documents_beside(files))
        if options.records is not None:
            return Choice(source_for("json"), passed_over=documents_beside(files))
        if options.text_record != "line":
            return Choice(source_for("text"), passed_over=documents_beside(files))
    filled = [f for f in files if f.num_bytes]
    if not filled and options.format is None:
        raise NoRowsError(why="all input files are empty")
    recognized = _recognize_all(filled, options)
    passed = passed_over(files, recognized)
    out = {file.name for file in passed}
    data = [file for file in filled if file.name not in out]
    if options.format is not None:
        source = source_for(options.format)
        known_as = format_named(options.format).known_as or options.format
        check_is_among(known_as, data, recognized)
        passed += other_kinds(known_as, [file for file in files if file.name not in out], recognized)
        out = {file.name for file in passed}
        return Choice(source, (), tuple(passed), count_kinds((f for f in data if f.name not in out), recognized))
    if options.labels is not None and len(labelled := {f for f in map(_row_format, recognized.values()) if f}) == 1:
        passed += other_kinds(labelled.pop(), data, recognized)
        out = {file.name for file in passed}
        data = [file for file in data if file.name not in out]
    kinds = count_kinds(data, recognized)
    if _hold_class_documents(data, recognized, options):
        return Choice(source_for("text"), (), tuple(passed), kinds)
    format = _format_of_all(data, recognized, kinds, options)
    if format in ("text", "csv"):
        _check_no_tables(data, format)
    return Choice(source_for(format), _refused(data, recognized, format, options), tuple(passed), kinds)


def _beside_datasets(files: tuple[RawFile, ...], options: SourceOptions) -> tuple[RawFile, ...]:
    others = tuple(file for file in files if file.shard is None)
    filled = next((file for file in others if file.num_bytes and not is_companion_file(file.name)), None)
    if filled is not None and options.format is None:
        raise UsageError(
            "the inputs are datasets of shardkit and other files",
            where=place(filled),
            next_step="Convert the files alone first, leave them out with --exclude GLOB, or add --format dataset",
        )
    return others


def _row_format(one: Recognized) -> str | None:
    # Labels are of images, sounds and arrays.
    return one.format if format_named(one.format).has_row_files else None


def _hold_class_documents(files: list[RawFile], recognized: dict[str, Recognized], options: SourceOptions) -> bool:
    # A short text may look like a table. A few other files are refused, or more that are text, called otherwise.
    texts = [file for file in files if recognized[file.name].format in ("text", "csv", "tsv")]
    suffixes = {suffix_in(file.name) for file in texts}
    beside = [f for f in files if suffix_in(f.name) not in suffixes and _is_text(recognized[f.name])]
    are_most = len(texts) + len(beside) >= 0.9 * len(files) and len(texts) > len(beside)
    return are_most and not options.no_labels and are_class_documents(files)


def _is_text(one: Recognized) -> bool:
    return one.format is not None and format_named(one.format).content == "text"


def _check_no_tables(files: list[RawFile], format: str) -> None:
    # It needs NumPy, which other formats may do without here.
    from shardkit.sources.text.table_signs import check_no_odd_columns, check_no_tokens

    for file in sample_files(files):
        # The source names damaged files, unless bad rows are tolerated.
        with contextlib.suppress(DamagedFileError):
            check_no_tokens(file, format)
            if format == "text":
                check_no_odd_columns(file)


def _format_of_all(
    files: list[RawFile], recognized: dict[str, Recognized], kinds: tuple[Kind, ...], options: SourceOptions
) -> str:
    known = [recognized[file.name] for file in files if recognized[file.name].format is not None]
    if not known and len(kinds) == 1:
        raise _error_of_all(files, recognized)
    if options.tolerates_bad_rows and known:
        # Files whose content fits their name show the format of the others.
        known = [one for one in known if one.fault is None] or known
        if len({one.format for one in known}) == 1:
            return known[0].format or ""
    if len(kinds) > 1:
        raise several_kinds(kinds, _advice_on_rows(files, recognized))
    return known[0].format or ""


def _error_of_all(files: list[RawFile], recognized: dict[str, Recognized]) -> DamagedFileError | UsageError:
    # The largest file holds the data; a small one may describe them, as batches.meta of CIFAR.
    failed = [file for file in files if recognized[file.name].error is not None]
    error = recognized[max(failed, key=lambda file: file.num_bytes).name].error
    assert error is not None
    if len(files) > 1 and isinstance(error, UsageError) and error.why is None:
        why = f"it is the largest of {format_count(len(files))} such files"
        return UsageError(error.what, where=error.where, why=why, next_step=error.next_step)
    return error


def _advice_on_rows(files: list[RawFile], recognized: dict[str, Recognized]) -> str | None:
    by_format: dict[str | None, list[RawFile]] = {}
    for file in files:
        by_format.setdefault(_row_format(recognized[file.name]), []).append(file)
    others = by_format.pop(None, [])
    found = ((str(format), advice_on_rows(rows, others, str(format))) for format, rows in by_format.items())
    format, advice = next(((format, advice) for format, advice in found if advice), ("", None))
    if advice is None or not advice.startswith("--labels"):
        return advice
    masks = option_without_masks(by_format[format])
    return f"{f'--format {format} ' if len(by_format) > 1 else ''}{advice.replace(' joins ', f'{masks} joins ', 1)}"


def _refused(
    files: list[RawFile], recognized: dict[str, Recognized], format: str, options: SourceOptions
) -> tuple[tuple[RawFile, str], ...]:
    # Files that are a row each are refused when they are read, as rows.
    if not options.tolerates_bad_rows or format_named(format).has_row_files:
        return ()
    found = [(file, recognized[file.name].refusal(format)) for file in files]
    return tuple((file, reason) for file, reason in found if reason)


def _recognize_all(files: list[RawFile], options: SourceOptions) -> dict[str, Recognized]:
    # Files that are called alike are of one kind; a sample of each kind is opened, which spares a million requests. All
    # are opened where the sample is of several kinds.
    by_suffix: dict[str, list[RawFile]] = {}
    for file in files:
        by_suffix.setdefault(suffix_in(file.name), []).append(file)
    recognized: dict[str, Recognized] = {}
    for alike in by_suffix.values():
        found = {file.name: _recognize(file, options) for file in sample_files(alike, _SNIFFED_FILES)}
        usual = next(iter(found.values()))
        is_uniform = all((one.kind, one.fault) == (usual.kind, usual.fault) for one in found.values())
        for file in alike:
            recognized[file.name] = found.get(file.name) or (usual if is_uniform else _recognize(file, options))
    return recognized


def _recognize(file: RawFile, options: SourceOptions) -> Recognized:
    try:
        head = read_head(file, file_types.HEAD_BYTES)
    except DamagedFileError as error:
        if not options.tolerates_bad_rows and options.format is None:
            raise
        return Recognized(None, "damaged", error=error)
    fault = naming_fault(head, file.name, None) if file.compression in (None, "archive") else None
    try:
        found = _format_of(head, file)
    except UsageError as error:
        return Recognized(None, _foreign_kind(head, file.name), fault, error)
    return Recognized(found, format_named(found).title, fault)


def _format_of(head: bytes, file: RawFile) -> str:
    if not _has_controls(head) and file_types.foreign_text(head, file.name) is not None:
        raise _unread(file, _foreign_kind(head, file.name))
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
        raise _unread(file, _foreign_kind(head, file.name))
    return found


def _foreign_kind(head: bytes, name: str) -> str:
    is_binary = _has_controls(head)
    text = None if is_binary else file_types.foreign_text(head, name)
    return text or file_types.foreign_format(head, name) or file_types.UNKNOWN


def naming_fault(head: bytes, name: str, compression: str | None) -> str | None:
    """Returns how a file contradicts its name, such as `is called .csv but is Parquet`; None if they agree.

    Args:
        head: The first bytes as stored.
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
    is_foreign = file_types.foreign_format(head, name) is not None
    contents = ("text",) if not _has_controls(head) else ("binary",) if is_foreign else _CONTENTS
    for content in contents:
        for format in FORMATS.values():
            if not format.is_asked or format.content != content:
                continue
            if cast(RecognizingSource, _own(format.name)).recognizes(head, name):
                return format
    return None


def _has_controls(head: bytes) -> bool:
    # The header of a NIST SPHERE is text, which its sound may lie far behind.
    is_sphere = head.startswith(b"NIST_1A\n")
    return is_sphere or len(head[:_GLANCE_BYTES].translate(None, _CONTROLS)) < len(head[:_GLANCE_BYTES])


def _unread(file: RawFile, kind: str) -> UsageError:
    is_image, is_audio = kind.endswith(" image"), kind.endswith(" audio file")
    lines = ", or read its lines with --format text" if kind.endswith(" text") else ""
    target = "PNG or JPEG" if is_image else "WAV or FLAC" if is_audio else "CSV, JSON Lines or Parquet"
    first = "Unpack the archive around it" if file.member and "archive" in kind else f"Convert it to {target} first"
    way = None if file.member else way_to_read(kind, file.path)
    return UsageError(
        f"the file is {kind}, which is not read",
        where=place(file),
        next_step=f"{way or first}, or leave it out with --exclude GLOB{lines}. Read are {formats_that_are_read()}",
    )
