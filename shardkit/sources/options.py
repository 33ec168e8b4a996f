"""How raw files are read, as a user asks for it: each option stated once. Part of the recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shardkit.options import PATH, Columns, Named, Option, Size
from shardkit.sources.formats import FORMATS
from shardkit.units import MiB

INPUTS = "How inputs are read"
MAX_FIELD_BYTES = 16 * MiB


class Delimiter(Named):
    """One character; a tab has names."""

    def parse(self, text: Any) -> Any:
        """Returns the character, None for an empty text."""
        return {"\\t": "\t", "tab": "\t"}.get(text, text) or None


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How raw files are to be understood, as each `Option` describes it.

    Attributes:
        class_level: Which folder of an image or a sound is its class: 0 is the outermost one that tells no split. A
            file that lies less deep has none.
        array_shape: Of each array that is a file, `(None,)` for lists of several lengths.
        vector_size: Values of a dense vector.
        first_index: Index of the first value of a dense vector.
        has_split_names: Whether the names of all files tell their split.
        split_folders: Folders that the globs of splits name, which are no classes.
        has_text_classes: Whether the folder of a text file is its class.
        leading_zeros: Columns of CSV in which 00123 is a number, because a user declared them as numbers.
        declared: Columns and types that a user declared, where the types of files do not go together.
        types_of_all_rows: Whether types are inferred from all rows, in place of the first ones; in no recipe.
        tolerates_bad_rows: Whether rows that do not fit are handed over as rejected instead of ending the conversion.
    """

    format: Annotated[str | None, Option(
        "--format",
        f"Format of the inputs: {', '.join(FORMATS)}, or one that an installed package offers; found out from "
        "their content if not given.", INPUTS, "content", form=Named("NAME"), is_common=True,
    )] = None  # fmt: skip
    include: Annotated[tuple[str, ...], Option(
        "--include",
        "Of the files in folders and archives read only those with such a name, as '*.csv'; repeat for more.",
        INPUTS, "limit", form=Named("GLOB"), is_common=True,
    )] = ()  # fmt: skip
    exclude: Annotated[tuple[str, ...], Option(
        "--exclude", "Leave out files with such a name; repeat for more.",
        INPUTS, "limit", form=Named("GLOB"), is_common=True,
    )] = ()  # fmt: skip
    drop_columns: Annotated[tuple[str, ...], Option(
        "--drop-columns", "Columns of tables that are not read, such as those that no example can hold.",
        INPUTS, "content", form=Columns(), is_common=True,
    )] = ()  # fmt: skip
    explode: Annotated[str | None, Option(
        "--explode", "Make a row of each item of a column of lists; a row without items stays, with null.",
        INPUTS, "content", form=Named("COLUMN"),
    )] = None  # fmt: skip
    union_by_name: Annotated[bool, Option(
        "--union-by-name", "Join tables whose columns differ: a row is null in a column that its file lacks.",
        INPUTS, "content",
    )] = False  # fmt: skip
    columns: Annotated[tuple[str, ...] | None, Option(
        "--columns", "Column names of CSV files without a header line.",
        INPUTS, "content", form=Columns(is_none_if_empty=True), is_common=True,
    )] = None  # fmt: skip
    has_header: Annotated[bool, Option(
        "--header", "The first line of CSV files names the columns, though it looks like data.", INPUTS, "content",
    )] = False  # fmt: skip
    no_header: Annotated[bool, Option(
        "--no-header", "The first line of CSV files is data; columns are called column_1, column_2 and so on.",
        INPUTS, "content",
    )] = False  # fmt: skip
    delimiter: Annotated[str | None, Option(
        "--delimiter", "Field delimiter of CSV files; found out if not given.",
        INPUTS, "content", form=Delimiter("CHAR"),
    )] = None  # fmt: skip
    quote: Annotated[Literal["double", "none"], Option(
        "--quote", "In CSV files a double quote encloses a field, or none: quotes are text.", INPUTS, "content"
    )] = "double"  # fmt: skip
    skip_lines: Annotated[int, Option(
        "--skip-lines", "Lines before the header of each CSV file.", INPUTS, "content", minimum=0
    )] = 0  # fmt: skip
    comment: Annotated[str | None, Option(
        "--comment", "Lines of CSV files that begin with this, such as # or ##, are no rows.",
        INPUTS, "content", form=Named("TEXT"),
    )] = None  # fmt: skip
    null_values: Annotated[tuple[str, ...], Option(
        "--null-value", "Also null in CSV files, such as NA.", INPUTS, "content", form=Named("TEXT"), is_common=True,
    )] = ()  # fmt: skip
    max_field_bytes: Annotated[
        int, Option("--max-field", "Refuse larger fields of CSV files.", INPUTS, "content", form=Size())
    ] = MAX_FIELD_BYTES
    allows_duplicate_keys: Annotated[bool, Option(
        "--allow-duplicate-keys",
        "Take the last value of a key that stands twice in a JSON object, instead of refusing the row.",
        INPUTS, "content",
    )] = False  # fmt: skip
    records: Annotated[str | None, Option(
        "--records",
        "Key of the array that holds the rows of a JSON document, such as data or response.items. A dot makes the "
        "document itself a row.",
        INPUTS, "content", form=Named("KEY"),
    )] = None  # fmt: skip
    encoding: Annotated[str | None, Option(
        "--encoding", "Of text formats, such as latin-1 or utf-16; UTF-8 if not given.",
        INPUTS, "content", form=Named("NAME"),
    )] = None  # fmt: skip
    text_record: Annotated[Literal["line", "paragraph", "file"], Option(
        "--text-record", "What is one row of a text file.", INPUTS, "content"
    )] = "line"  # fmt: skip
    vector: Annotated[Literal["sparse", "dense"], Option(
        "--vector",
        "How libsvm files give their vectors: as indices and values, or whole, for which they are read twice.",
        INPUTS, "content",
    )] = "sparse"  # fmt: skip
    array_record: Annotated[Literal["row", "file"] | None, Option(
        "--array-record",
        "What is one row of .npy files: a part of the first axis, or a whole file, whose folder may be its class.",
        INPUTS, "content", shown_default="row",
    )] = None  # fmt: skip
    tfrecord_as: Annotated[Literal["examples", "bytes"], Option(
        "--tfrecord-as",
        "Read TFRecords as tf.train.Examples, or keep each record as bytes in a column called record.",
        INPUTS, "content",
    )] = "examples"  # fmt: skip
    table: Annotated[str | None, Option(
        "--table", "Table of a database; of SQLite the only one there is if not given.",
        INPUTS, "content", form=Named("NAME"), is_common=True,
    )] = None  # fmt: skip
    query: Annotated[str | None, Option(
        "--query", "Read what a SELECT gives instead of a table of a database, in the order in which it gives rows.",
        INPUTS, "content", form=Named("SQL"),
    )] = None  # fmt: skip
    labels: Annotated[str | None, Option(
        "--labels",
        "Labels of images, audio files or videos: CSV or JSON Lines by file name, COCO JSON, or a folder of Pascal "
        "VOC XML. Those that lie beside the files as usual are found.",
        INPUTS, "limit", form=Named("FILE", PATH), is_common=True,
    )] = None  # fmt: skip
    no_labels: Annotated[bool, Option(
        "--no-labels",
        "Take images, audio, videos and text files alone: no folder is a class, and no file beside them a label.",
        INPUTS, "content",
    )] = False  # fmt: skip
    class_folder: Annotated[int | None, Option(
        "--class-folder",
        "Which folder of images, audio, videos, text files or arrays is their class: 1 is the outermost below the "
        "input, not counting that of a split. The innermost one that differs if not given.",
        INPUTS, "content", form=Named("N"), minimum=1,
    )] = None  # fmt: skip
    audio: Annotated[Literal["bytes", "samples"], Option(
        "--audio", "Keep audio files as they are, or decode them: WAV, FLAC, Ogg, MP3, AIFF, AU, CAF, RF64 and W64.",
        INPUTS, "content",
    )] = "bytes"  # fmt: skip
    audio_rate: Annotated[int | None, Option(
        "--audio-rate", "Resample decoded audio.", INPUTS, "content", form=Named("HZ"), minimum=1
    )] = None  # fmt: skip
    video: Annotated[Literal["bytes", "frames", "clips"], Option(
        "--video", "Keep videos as they are, or make a row of each frame or of each clip of several frames.",
        INPUTS, "content",
    )] = "bytes"  # fmt: skip
    video_fps: Annotated[float | None, Option(
        "--video-fps", "Take so many frames a second of decoded videos, in place of all.",
        INPUTS, "content", form=Named("FPS"), minimum=0, excludes="minimum",
    )] = None  # fmt: skip
    clip_frames: Annotated[int | None, Option(
        "--clip-frames", "Frames of a clip.", INPUTS, "content", form=Named("N"), minimum=1, shown_default=16,
    )] = None  # fmt: skip
    clip_stride: Annotated[int | None, Option(
        "--clip-stride", "A clip begins at every so many frames; fewer than its length make clips overlap.",
        INPUTS, "content", form=Named("N"), minimum=1, shown_default="the length of a clip",
    )] = None  # fmt: skip
    max_pixels: Annotated[
        int, Option("--max-pixels", "Refuse larger images and frames.", INPUTS, "content", minimum=1)
    ] = 64_000_000
    max_record_bytes: Annotated[
        int, Option("--max-record-size", "Refuse larger rows.", INPUTS, "content", form=Size())
    ] = 256 * MiB
    max_expansion: Annotated[int, Option(
        "--max-expansion", "Refuse compressed files that become more times as large.", INPUTS, "content", minimum=1,
    )] = 200  # fmt: skip
    class_level: int = 0
    array_shape: tuple[int | None, ...] = ()
    vector_size: int = 0
    first_index: int = 0
    has_split_names: bool = False
    split_folders: tuple[str, ...] = ()
    has_text_classes: bool = False
    leading_zeros: tuple[str, ...] = ()
    declared: tuple[tuple[str, str], ...] = ()
    types_of_all_rows: bool = False
    tolerates_bad_rows: bool = False
