"""What kinds of files the inputs are: counted before anything is decided, and what is decided by that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shardkit import file_types
from shardkit.errors import DamagedFileError, UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.formats import FORMATS, format_named
from shardkit.units import format_count, format_size

_SUMMARIES = frozenset({"_metadata", "_common_metadata"})
_CHECKSUM = re.compile(r"\.(?:md5|sha1|sha256|sha512)$|^(?:md5|sha1|sha256|sha512)sums?(?:\.txt)?$", re.IGNORECASE)
_BESIDE_DATA = re.compile(r"^[._]|^(?:thumbs\.db|desktop\.ini)$|\.(?:py|ipynb|sh)$", re.IGNORECASE)
_LISTED_FILES = 3
_EXAMPLE_WIDTH = 16
_TITLE_WIDTH = 22


class Recognized(NamedTuple):
    """What the first bytes of a file tell.

    Attributes:
        format: Name of the format that reads it, None if none does.
        kind: What it is, in words.
        fault: The name that its content contradicts, such as `is called .csv but is Parquet`.
        error: Why it cannot be read.
    """

    format: str | None
    kind: str
    fault: str | None = None
    error: DamagedFileError | UsageError | None = None

    def refusal(self, format: str) -> str | None:
        """Returns why a file is no file of a format; None if it may be one, damaged perhaps."""
        # Possible damage is left to reading, whose error says more.
        if isinstance(self.error, UsageError) and file_types.UNKNOWN not in self.error.what:
            return self.error.what
        return self.fault if self.format not in (None, format) else None


class Kind(NamedTuple):
    """The files of one kind.

    Attributes:
        title: What they are, in words.
        format: Name of the format that reads them, None if none does.
        num_files, num_bytes: How many, and their size as stored.
        example: The name of one.
    """

    title: str
    format: str | None
    num_files: int
    num_bytes: int
    example: str


def is_companion_file(name: str) -> bool:
    """Whether a file is called like something that systems and tools put beside data, or that accompanies it."""
    is_beside = _BESIDE_DATA.search(_base(name)) or _CHECKSUM.search(_base(name))
    return is_beside is not None or file_types.is_document_name(name)


def suffix_in(name: str) -> str:
    """Returns the extension of a file, with the one before it if the last names a compression; for grouping alone."""
    stem, _, suffix = name.rpartition(".")
    if not stem:
        return ""
    return f"{file_types.suffix_of(stem)}.{suffix}" if f".{suffix}" in file_types.COMPRESSED_SUFFIXES else suffix


def passed_over(files: Sequence[RawFile], recognized: Mapping[str, Recognized]) -> list[RawFile]:
    """Returns the files that are no data: called like what lies beside data, and of another kind than the data.

    None is passed over where all files are called so.

    Args:
        recognized: By name, of those that are not empty.
    """
    named_so = [file for file in files if is_companion_file(file.name)]
    if len(named_so) == len(files):
        return []
    names = {file.name for file in named_so}
    data = {one.format for name, one in recognized.items() if name not in names}
    return [file for file in named_so if _is_no_data(file.name, recognized.get(file.name), data)]


def documents_beside(files: Sequence[RawFile]) -> tuple[RawFile, ...]:
    """Returns the files that accompany data by their names alone; none where all files are called so."""
    named_so = tuple(file for file in files if file_types.is_document_name(file.name))
    return named_so if len(named_so) < len(files) else ()


def other_kinds(format: str, files: Sequence[RawFile], recognized: Mapping[str, Recognized]) -> list[RawFile]:
    """Returns the files that `--format` passes over: those that are called like none of the format.

    Files that are called alike stay together, so that a damaged one is found. None is passed over where no file is of
    the format by its content, as nearly any text can be read as lines or as CSV.

    Args:
        recognized: By name, of those that are not empty.
    """
    alike = {suffix_in(name) for name, one in recognized.items() if one.format == format}
    return [file for file in files if suffix_in(file.name) not in alike] if alike else []


def check_is_among(format: str, files: Sequence[RawFile], recognized: Mapping[str, Recognized]) -> None:
    """Checks that some file may be of a format, by its content or its name. Nearly any text may be of one of text.

    A file of no known kind may be a damaged one.

    Raises:
        UsageError: If all are whole files of other formats; with a table of them.
    """
    wanted = format_named(format)
    found = [recognized[file.name] for file in files]
    if wanted.content == "text" or not found or any(one.format in (None, format) or one.fault for one in found):
        return
    if not any(file_types.suffix_of(file.name) in wanted.suffixes for file in files):
        kinds = count_kinds(files, recognized)
        raise UsageError(
            f"none of the files is of the format {format}",
            where=printable(files[0].name) if len(files) == 1 else None,
            table=_table_of(kinds),
            next_step="Name the kind to convert with --format, or leave --format out",
        )


def count_kinds(files: Iterable[RawFile], recognized: Mapping[str, Recognized]) -> tuple[Kind, ...]:
    """Returns the kinds of the files, those of the most files first."""
    found: dict[str, list[RawFile]] = {}
    for file in files:
        if file.name in recognized:
            found.setdefault(recognized[file.name].kind, []).append(file)
    kinds = [
        Kind(title, recognized[alike[0].name].format, len(alike), sum(f.num_bytes for f in alike), alike[0].name)
        for title, alike in found.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.num_files))


def several_kinds(kinds: Sequence[Kind], advice: str | None = None) -> UsageError:
    """Returns the error about inputs of several kinds: a table of them, with the option that takes each.

    Args:
        kinds: Two or more.
        advice: The options that read some of the files as labels or splits of others, if there are any.
    """
    has_media = any(format_named(kind.format).has_row_files for kind in kinds)
    labels = ". A table or a folder of labels is named with --labels" if has_media and not advice else ""
    start = f"{advice}. Or name" if has_media and advice else "Name"
    return UsageError(
        "the inputs are of several kinds",
        table=_table_of(kinds),
        next_step=f"{start} the kind to convert with --format, which passes over the files of the others, or choose "
        f"files with --include GLOB or --exclude GLOB{labels}",
    )


def _table_of(kinds: Sequence[Kind]) -> tuple[str, ...]:
    """Returns the lines of a table of kinds, with the option that takes each."""
    rows = [("kind", "files", "size", "example", "taken by")]
    for kind in kinds:
        title, example = _shortened(kind.title, _TITLE_WIDTH), _shortened(printable(kind.example), _EXAMPLE_WIDTH)
        option = f"--format {kind.format}" if kind.format else "no option"
        rows.append((title, format_count(kind.num_files), format_size(kind.num_bytes), example, option))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(w) if i in (1, 2) else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return tuple(line.rstrip() for line in lines)


def note_on_passed_over(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns one note that counts the files that are not read, and names some; none if there are none."""
    if not files:
        return ()
    names = ", ".join(printable(file.name) for file in files[:_LISTED_FILES])
    more = f" and {format_count(len(files) - _LISTED_FILES)} more" if len(files) > _LISTED_FILES else ""
    subject = "1 file is" if len(files) == 1 else f"{format_count(len(files))} files are"
    return (f"{subject} passed over: {names}{more}",)


def formats_that_are_read() -> str:
    """Returns the titles of all formats, in words."""
    return ", ".join(format.title for format in FORMATS.values()) + ", and archives of these"


def _is_no_data(name: str, one: Recognized | None, data: set[str | None]) -> bool:
    if one is None:
        return True
    if file_types.is_document_name(name):
        return one.format is None or format_named(one.format).content == "text"
    base = _base(name)
    return one.format not in data or _CHECKSUM.search(base) is not None or base in _SUMMARIES or base.startswith("._")


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width // 2 - 1]}...{text[-(width - width // 2 - 2) :]}"
