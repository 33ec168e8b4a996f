"""The options that say how inputs are read. `convert` and `plan` have them all."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from shardkit.conversion.option_forms import Columns, Delimiter, Named, Option, Size
from shardkit.sources.formats import FORMATS
from shardkit.units import MiB

INPUTS = "How inputs are read"


class InputRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How inputs are read, as `Option` describes it. All but `schema_path` are fields of `SourceOptions` too."""

    format: Annotated[
        str | None,
        Option(
            "--format",
            f"Format of the inputs: {', '.join(FORMATS)}, or one that an installed package offers; found out from "
            "their content if not given.",
            INPUTS, "content", "source", form=Named("NAME"), is_common=True,
        ),
    ] = None  # fmt: skip
    schema_path: Annotated[
        str | None,
        Option(
            "--schema", "JSON or TOML file that declares or overrides features.",
            INPUTS, "content", "features", form=Named("FILE"), is_common=True,
        ),
    ] = None  # fmt: skip
    include: Annotated[
        tuple[str, ...],
        Option(
            "--include",
            "Of the files in folders and archives read only those with such a name, as '*.csv'; repeat for more.",
            INPUTS, "limit", "source", form=Named("GLOB"), is_common=True,
        ),
    ] = ()  # fmt: skip
    exclude: Annotated[
        tuple[str, ...],
        Option(
            "--exclude", "Leave out files with such a name; repeat for more.",
            INPUTS, "limit", "source", form=Named("GLOB"), is_common=True,
        ),
    ] = ()  # fmt: skip
    drop_columns: Annotated[
        tuple[str, ...],
        Option(
            "--drop-columns", "Columns of tables that are not read, such as those that no example can hold.",
            INPUTS, "content", "source", form=Columns(), is_common=True,
        ),
    ] = ()  # fmt: skip
    columns: Annotated[
        tuple[str, ...] | None,
        Option(
            "--columns", "Column names of CSV files without a header line.",
            INPUTS, "content", "source", form=Columns(is_none_if_empty=True), is_common=True,
        ),
    ] = None  # fmt: skip
    has_header: Annotated[
        bool,
        Option(
            "--header", "The first line of CSV files names the columns, though it looks like data.",
            INPUTS, "content", "source",
        ),
    ] = False  # fmt: skip
    delimiter: Annotated[
        str | None,
        Option(
            "--delimiter", "Field delimiter of CSV files; found out if not given.",
            INPUTS, "content", "source", form=Delimiter("CHAR"),
        ),
    ] = None  # fmt: skip
    null_values: Annotated[
        tuple[str, ...],
        Option(
            "--null-value", "Also null in CSV files, such as NA.",
            INPUTS, "content", "source", form=Named("TEXT"), is_common=True,
        ),
    ] = ()  # fmt: skip
    max_field_bytes: Annotated[
        int, Option("--max-field", "Refuse larger fields of CSV files.", INPUTS, "content", "source", form=Size())
    ] = 16 * MiB
    allows_duplicate_keys: Annotated[
        bool,
        Option(
            "--allow-duplicate-keys",
            "Take the last value of a key that stands twice in a JSON object, instead of refusing the row.",
            INPUTS, "content", "source",
        ),
    ] = False  # fmt: skip
    encoding: Annotated[
        str | None,
        Option(
            "--encoding", "Of text formats, such as latin-1 or utf-16; UTF-8 if not given.",
            INPUTS, "content", "source", form=Named("NAME"),
        ),
    ] = None  # fmt: skip
    text_record: Annotated[
        Literal["line", "paragraph", "file"],
        Option("--text-record", "What is one row of a text file.", INPUTS, "content", "source"),
    ] = "line"
    table: Annotated[
        str | None,
        Option(
            "--table", "Table of a database; of SQLite the only one there is if not given.",
            INPUTS, "content", "source", form=Named("NAME"), is_common=True,
        ),
    ] = None  # fmt: skip
    query: Annotated[
        str | None,
        Option(
            "--query",
            "Read what a SELECT gives instead of a table of a database, in the order in which it gives rows.",
            INPUTS, "content", "source", form=Named("SQL"),
        ),
    ] = None  # fmt: skip
    labels: Annotated[
        str | None,
        Option(
            "--labels",
            "Labels of images or audio files: CSV or JSON Lines by file name, COCO JSON, or a folder of Pascal "
            "VOC XML.",
            INPUTS, "limit", "source", form=Named("FILE"), is_common=True,
        ),
    ] = None  # fmt: skip
    audio: Annotated[
        Literal["bytes", "samples"],
        Option("--audio", "Keep audio files as they are, or decode them.", INPUTS, "content", "source"),
    ] = "bytes"
    audio_rate: Annotated[
        int | None,
        Option("--audio-rate", "Resample decoded audio.", INPUTS, "content", "source", form=Named("HZ"), minimum=1),
    ] = None
    max_pixels: Annotated[
        int, Option("--max-pixels", "Refuse larger images.", INPUTS, "content", "source", minimum=1)
    ] = 64_000_000
    max_record_bytes: Annotated[
        int, Option("--max-record-size", "Refuse larger rows.", INPUTS, "content", "source", form=Size())
    ] = 256 * MiB
    max_expansion: Annotated[
        int,
        Option(
            "--max-expansion", "Refuse compressed files that become more times as large.",
            INPUTS, "content", "source", minimum=1,
        ),
    ] = 200  # fmt: skip
