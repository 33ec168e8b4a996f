"""Which source reads a set of files, by what is in them."""

from __future__ import annotations

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import sniff
from shardkit.sources.base import RawFile, RecognizingSource, Source, SourceOptions
from shardkit.sources.csv_files import CsvSource
from shardkit.sources.image_files import ImageSource
from shardkit.sources.json_lines import JsonLinesSource
from shardkit.sources.parquet_files import ParquetSource
from shardkit.sources.sampling import sample_files
from shardkit.sources.streams import place, printable, read_head

# Asked in this order whether a file is theirs; what nobody takes is told apart by `sniff`.
_RECOGNIZING: tuple[RecognizingSource, ...] = ()
_ALL: tuple[Source, ...] = (
    CsvSource(),
    CsvSource(format="tsv"),
    JsonLinesSource(),
    ParquetSource(),
    ImageSource(),
    *_RECOGNIZING,
)
_SOURCES = {source.format: source for source in _ALL}
_SNIFFED_FILES = 64


def source_for(format: str) -> Source:
    """Returns the source of a format.

    Raises:
        UsageError: If there is none.
    """
    source = _SOURCES.get(format)
    if source is None:
        raise UsageError(f"there is no format {format!r}", next_step=f"Known are {', '.join(_SOURCES)}")
    return source


def choose_source(files: tuple[RawFile, ...], options: SourceOptions) -> Source:
    """Returns the source that reads the files: the one that is asked for, or what their content says.

    Column names and a delimiter ask for CSV.

    Raises:
        UsageError: If files are of different formats, or of none that is read.
        BadInputError: If there is nothing to read.
    """
    if options.format is not None:
        return source_for(options.format)
    if options.columns is not None or options.delimiter is not None:
        return source_for("csv")
    filled = [f for f in files if f.num_bytes]
    if not filled:
        raise BadInputError("there are no rows", why="all input files are empty")
    first = filled[0]
    first_format = _format_of(first)
    for file in _worth_a_look(filled)[1:]:
        other = _format_of(file)
        if other != first_format:
            raise UsageError(
                "the inputs are of different formats",
                why=f"{printable(first.name)} is {first_format}, {printable(file.name)} is {other}",
                next_step="Convert them one by one, or say which it is with --format",
            )
    return source_for(first_format)


def _worth_a_look(files: list[RawFile]) -> list[RawFile]:
    # Files that are called alike are of one kind; a sample of each kind is opened, which spares a million requests.
    by_suffix: dict[str, list[RawFile]] = {}
    for file in files:
        by_suffix.setdefault(file.name.rpartition(".")[2] if "." in file.name else "", []).append(file)
    chosen = {f.path for group in by_suffix.values() for f in sample_files(group, _SNIFFED_FILES)}
    return [f for f in files if f.path in chosen]


def _format_of(file: RawFile) -> str:
    head = read_head(file, sniff.HEAD_BYTES)
    for source in _RECOGNIZING:
        if source.recognizes(head, file.name):
            return source.format
    found = sniff.format_of(head, file.name)
    if found is None:
        raise UsageError(
            f"the file is {sniff.foreign_format(head)}, which is not read",
            where=place(file),
            next_step="Convert it to CSV, JSON Lines or Parquet first, or leave it out",
        )
    return found
