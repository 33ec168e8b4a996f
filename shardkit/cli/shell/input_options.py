"""How inputs are read: the options of `shardkit convert` that say so, for every command that reads inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.shell.option_types import SizeType, split_names
from shardkit.sources.formats import FORMATS

if TYPE_CHECKING:
    from shardkit.sources.base import SourceOptions

# Those that are of the same name in `SourceOptions`.
_SAME = (
    "include", "exclude", "null_values", "encoding", "text_record", "table", "query", "labels", "audio", "audio_rate",
    "max_pixels", "max_expansion",
)  # fmt: skip
_DELIMITERS = {"\\t": "\t", "tab": "\t"}


# Those of `shardkit convert` too, `--schema` among them.
READING_OPTIONS = (
    click.Option(
        ["--format", "format_name"],
        metavar="NAME",
        help=f"Format of the inputs: {', '.join(FORMATS)}, or one that an installed package offers; found out from "
        "their content if not given.",
    ),
    click.Option(
        ["--schema", "schema_path"], metavar="FILE", help="JSON or TOML file that declares or overrides features."
    ),
    click.Option(
        ["--include"],
        multiple=True,
        metavar="GLOB",
        help="Of the files in folders and archives read only those with such a name, as '*.csv'; repeat for more.",
    ),
    click.Option(
        ["--exclude"], multiple=True, metavar="GLOB", help="Leave out files with such a name; repeat for more."
    ),
    click.Option(
        ["--drop-columns"],
        metavar="A,B,...",
        help="Columns of tables that are not read, such as those that no example can hold.",
    ),
    click.Option(["--columns"], metavar="A,B,...", help="Column names of CSV files without a header line."),
    click.Option(
        ["--header"],
        is_flag=True,
        help="The first line of CSV files names the columns, though it looks like data.",
    ),
    click.Option(["--delimiter"], metavar="CHAR", help="Field delimiter of CSV files; found out if not given."),
    click.Option(
        ["--null-value", "null_values"], multiple=True, metavar="TEXT", help="Also null in CSV files, such as NA."
    ),
    click.Option(
        ["--max-field"], type=SizeType(), default="16MiB", show_default=True, help="Refuse larger fields of CSV files."
    ),
    click.Option(
        ["--allow-duplicate-keys"],
        is_flag=True,
        help="Take the last value of a key that stands twice in a JSON object, instead of refusing the row.",
    ),
    click.Option(
        ["--encoding"], metavar="NAME", help="Of text formats, such as latin-1 or utf-16; UTF-8 if not given."
    ),
    click.Option(
        ["--text-record"],
        type=click.Choice(["line", "paragraph", "file"]),
        default="line",
        show_default=True,
        help="What is one row of a text file.",
    ),
    click.Option(
        ["--table"], metavar="NAME", help="Table of a database; of SQLite the only one there is if not given."
    ),
    click.Option(
        ["--query"],
        metavar="SQL",
        help="Read what a SELECT gives instead of a table of a database, in the order in which it gives rows.",
    ),
    click.Option(
        ["--labels"],
        metavar="FILE",
        help="Labels of images or audio files: CSV or JSON Lines by file name, COCO JSON, or a folder of Pascal VOC "
        "XML.",
    ),
    click.Option(
        ["--audio"],
        type=click.Choice(["bytes", "samples"]),
        default="bytes",
        show_default=True,
        help="Keep audio files as they are, or decode them.",
    ),
    click.Option(["--audio-rate"], type=click.IntRange(min=1), metavar="HZ", help="Resample decoded audio."),
    click.Option(
        ["--max-pixels"],
        type=click.IntRange(min=1),
        default=64_000_000,
        show_default=True,
        help="Refuse larger images.",
    ),
    click.Option(
        ["--max-record-size"], type=SizeType(), default="256MiB", show_default=True, help="Refuse larger rows."
    ),
    click.Option(
        ["--max-expansion"],
        type=click.IntRange(min=1),
        default=200,
        show_default=True,
        help="Refuse compressed files that become more times as large.",
    ),
)

# For the help of a command, which shows them under this heading.
READING_HEADING = {"How inputs are read": tuple(max(option.opts, key=len) for option in READING_OPTIONS)}

WORK_DIR = click.Option(
    ["--work-dir"],
    metavar="FOLDER",
    help="Where intermediate files go; beside the data if not given. A folder in a store is for workers of --runner "
    "that share no disk.",
)


def source_options(typed: Mapping[str, Any]) -> SourceOptions:
    """Returns what the options say, but for the schema.

    Args:
        typed: Values of `READING_OPTIONS`, by parameter.
    """
    from shardkit.sources.base import SourceOptions

    delimiter = typed["delimiter"]
    return SourceOptions(
        format=typed["format_name"],
        drop_columns=split_names(typed["drop_columns"]) or (),
        columns=split_names(typed["columns"]) or None,
        delimiter=_DELIMITERS.get(delimiter, delimiter) if delimiter else None,
        has_header=typed["header"],
        max_field_bytes=typed["max_field"],
        allows_duplicate_keys=typed["allow_duplicate_keys"],
        max_record_bytes=typed["max_record_size"],
        **{name: typed[name] for name in _SAME},
    )
