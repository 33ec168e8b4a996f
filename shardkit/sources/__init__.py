"""Choosing the format of raw files, by their content."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardkit.errors import UsageError
from shardkit.sources import sniff
from shardkit.sources.base import RawFile, Source, SourceOptions
from shardkit.sources.csv_files import CsvSource
from shardkit.sources.image_files import ImageSource
from shardkit.sources.json_lines import JsonLinesSource
from shardkit.sources.listing import Listing, list_inputs
from shardkit.sources.parquet_files import ParquetSource
from shardkit.sources.sampling import sample_files
from shardkit.sources.streams import place, printable, read_head

__all__ = ["Listing", "choose_source", "list_inputs", "source_for"]

_SOURCES: dict[str, Callable[[], Source]] = {
    "csv": CsvSource,
    "tsv": lambda: CsvSource("tsv"),
    "jsonl": JsonLinesSource,
    "parquet": ParquetSource,
    "images": ImageSource,
}


def source_for(name: str) -> Source:
    """Returns the source of a format.

    Raises:
        UsageError: If there is no such format.
    """
    if name not in _SOURCES:
        raise UsageError(f"{name!r} is not a format", next_step=f"Known are {', '.join(_SOURCES)}")
    return _SOURCES[name]()


def choose_source(files: Sequence[RawFile], options: SourceOptions) -> Source:
    """Returns the source that the options name, or that the content of the files shows.

    Raises:
        UsageError: If the files are of several formats, or of none that is read.
    """
    if options.format is not None:
        return source_for(options.format)
    if options.columns is not None or options.delimiter is not None:
        return source_for("csv")
    first: tuple[RawFile, str] | None = None
    for file in sample_files([f for f in files if f.num_bytes] or list(files)):
        head = read_head(file, sniff.HEAD_BYTES)
        found = sniff.format_of(head, file.name)
        if found is None:
            raise UsageError(
                "the file is of no format that is read",
                where=place(file),
                why=f"it is {sniff.foreign_format(head) or 'unknown'}",
                next_step="Leave it out, or name its --format",
            )
        if first is None:
            first = (file, found)
        elif found != first[1]:
            raise UsageError(
                "the inputs are of several formats",
                why=f"{printable(first[0].name)} is {first[1]}, {printable(file.name)} is {found}",
                next_step="Convert them apart, or name the --format of all",
            )
    assert first is not None
    return source_for(first[1])
