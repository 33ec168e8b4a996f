"""The formats that shardkit reads, one entry each.

The entry of a format decides which source reads it, how its files are recognized, what the help says and which options
have a meaning. This module loads no source and no library, because the help needs it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

_TABLE_OPTIONS = ("drop_columns", "columns", "delimiter", "has_header", "no_header", "null_values", "leading_zeros")
_CSV_OPTIONS = (*_TABLE_OPTIONS, "union_by_name", "quote", "skip_lines", "comment", "max_field_bytes", "encoding")
LABEL_TABLE_OPTIONS = ("quote", "has_header", "no_header")
"""Options for a table of labels, where files have some."""

_LABEL_OPTIONS = ("labels", "no_labels", "class_folder", *LABEL_TABLE_OPTIONS)
_JSON_OPTIONS = ("drop_columns", "union_by_name", "allows_duplicate_keys", "encoding", "records")


class Format(NamedTuple):
    """One format.

    Attributes:
        kind: The row of the README's table that lists it.
        source: Module and name of the class that reads it. The class takes the name of the format.
        content: Whether its files are `text` or `binary`, that is with control bytes at the start.
        is_asked: Whether the class has `recognizes`, which says if a file is of the format. For files
            that no class recognizes `file_types.format_of` decides.
        suffixes: Extensions that promise this format. A file that is called so and holds something else is named.
        options: Fields of `SourceOptions` that have a meaning for it, of those that have none for some format.
        extra: Extra of the package that it needs.
        has_row_files: Whether each file is a row.
        may_lack_columns: Whether a row, and with it a file, may lack a column.
        known_as: The format by which its files are known, where that is another one.
        split_unit: What the start of an input split counts.
    """

    name: str
    title: str
    kind: str
    source: str
    content: Literal["text", "binary"]
    is_asked: bool = True
    suffixes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    extra: str | None = None
    has_row_files: bool = False
    may_lack_columns: bool = False
    known_as: str | None = None
    split_unit: str = "byte"


# Sources are asked in this order whether a file is of their format.
_ALL = (
    Format(
        "csv",
        "CSV",
        "tables",
        "shardkit.sources.csv.source.CsvSource",
        content="text",
        is_asked=False,
        suffixes=(".csv",),
        options=_CSV_OPTIONS,
    ),
    Format(
        "tsv",
        "TSV",
        "tables",
        "shardkit.sources.csv.source.CsvSource",
        content="text",
        is_asked=False,
        suffixes=(".tsv",),
        options=_CSV_OPTIONS,
    ),
    Format(
        "jsonl",
        "JSON Lines",
        "tables",
        "shardkit.sources.json.lines_source.JsonLinesSource",
        content="text",
        is_asked=False,
        suffixes=(".jsonl", ".ndjson"),
        options=_JSON_OPTIONS,
        may_lack_columns=True,
    ),
    Format(
        "json",
        "JSON",
        "tables",
        "shardkit.sources.json.array_source.JsonArraySource",
        content="text",
        suffixes=(".json",),
        options=_JSON_OPTIONS,
        may_lack_columns=True,
    ),
    Format(
        "parquet",
        "Parquet",
        "tables",
        "shardkit.sources.columnar.parquet.ParquetSource",
        content="binary",
        is_asked=False,
        suffixes=(".parquet",),
        options=("drop_columns", "union_by_name"),
        split_unit="row group",
    ),
    Format(
        "arrow",
        "Arrow",
        "tables",
        "shardkit.sources.columnar.arrow_ipc.ArrowSource",
        content="binary",
        suffixes=(".arrow", ".feather"),
        options=("drop_columns", "union_by_name"),
        split_unit="record batch",
    ),
    Format(
        "orc",
        "ORC",
        "tables",
        "shardkit.sources.columnar.orc.OrcSource",
        content="binary",
        suffixes=(".orc",),
        options=("drop_columns", "union_by_name"),
        split_unit="stripe",
    ),
    Format(
        "avro",
        "Avro",
        "tables",
        "shardkit.sources.avro.source.AvroSource",
        content="binary",
        suffixes=(".avro",),
        options=("drop_columns", "union_by_name"),
    ),
    Format(
        "libsvm",
        "libsvm",
        "tables",
        "shardkit.sources.text.libsvm.LibsvmSource",
        content="text",
        suffixes=(".libsvm", ".svmlight"),
        options=("vector", "comment", "encoding"),
    ),
    Format(
        "text",
        "text",
        "text",
        "shardkit.sources.text.source.TextSource",
        content="text",
        options=("text_record", "encoding", "no_labels", "class_folder"),
    ),
    Format(
        "sqlite",
        "SQLite",
        "databases",
        "shardkit.sources.sqlite.source.SqliteSource",
        content="binary",
        options=("drop_columns", "table", "query"),
    ),
    Format(
        "tfrecord",
        "TFRecord",
        "records",
        "shardkit.sources.tfrecord.source.TfrecordSource",
        content="binary",
        suffixes=(".tfrecord",),
        options=("tfrecord_as",),
        may_lack_columns=True,
    ),
    Format(
        "dataset",
        "a dataset of shardkit",
        "records",
        "shardkit.sources.dataset.source.DatasetSource",
        content="binary",
        is_asked=False,
        options=("drop_columns", "union_by_name"),
        split_unit="block",
    ),
    Format(
        "webdataset",
        "a tar archive",
        "records",
        "shardkit.sources.webdataset.source.WebDatasetSource",
        content="binary",
        may_lack_columns=True,
    ),
    Format("idx", "IDX", "arrays", "shardkit.sources.arrays.idx_source.IdxSource", content="binary"),
    Format(
        "numpy",
        "NumPy",
        "arrays",
        "shardkit.sources.arrays.numpy_source.NumpySource",
        content="binary",
        suffixes=(".npy", ".npz"),
        options=("array_record",),
    ),
    Format(
        "numpy-files",
        "NumPy files as rows",
        "arrays",
        "shardkit.sources.media.array_source.ArraySource",
        content="binary",
        is_asked=False,
        options=("array_record", *_LABEL_OPTIONS),
        has_row_files=True,
        known_as="numpy",
    ),
    Format(
        "images",
        "images",
        "images",
        "shardkit.sources.media.image_source.ImageSource",
        content="binary",
        is_asked=False,
        options=_LABEL_OPTIONS,
        has_row_files=True,
    ),
    Format(
        "audio",
        "audio",
        "audio",
        "shardkit.sources.media.audio_source.AudioSource",
        content="binary",
        suffixes=(
            ".wav",
            ".flac",
            ".ogg",
            ".mp3",
            ".aiff",
            ".aif",
            ".aifc",
            ".au",
            ".caf",
            ".rf64",
            ".w64",
            ".sph",
            ".nist",
            ".svx",
        ),
        options=(*_LABEL_OPTIONS, "audio", "audio_rate"),
        extra="audio",
        has_row_files=True,
    ),
    Format(
        "video",
        "video",
        "video",
        "shardkit.sources.media.video_source.VideoSource",
        content="binary",
        suffixes=(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"),
        options=(*_LABEL_OPTIONS, "video", "video_fps", "clip_frames", "clip_stride"),
        extra="video",
        has_row_files=True,
    ),
)
FORMATS = {format.name: format for format in _ALL}
STREAM_SUFFIXES = (*FORMATS["audio"].suffixes, *FORMATS["video"].suffixes)
"""Extensions of sounds and videos."""


def format_named(name: str | None) -> Format:
    """Returns the entry of a format; one of another package has the defaults, and no option."""
    return FORMATS.get(name or "") or Format(name=name or "", title=name or "", kind="", source="", content="text")


def formats_with(option: str) -> tuple[str, ...]:
    """Returns the names of the formats for which an option has a meaning.

    Args:
        option: A field of `SourceOptions`.
    """
    return tuple(name for name, format in FORMATS.items() if option in format.options)
