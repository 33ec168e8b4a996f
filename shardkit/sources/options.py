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
        f"Format of the inputs: {', '.join(FORMATS)}, or one that an installed package offers. Default: the one "
        "that their content shows.", INPUTS, "content", form=Named("NAME"), is_common=True,
    )] = None  # fmt: skip
    include: Annotated[tuple[str, ...], Option(
        "--include",
        "Read only files of this name in folders and archives, such as '*.csv'; repeat for more.",
        INPUTS, "limit", form=Named("GLOB"), is_common=True,
    )] = ()  # fmt: skip
    exclude: Annotated[tuple[str, ...], Option(
        "--exclude", "Leave out files of this name; repeat for more.",
        INPUTS, "limit", form=Named("GLOB"), is_common=True,
    )] = ()  # fmt: skip
    drop_columns: Annotated[tuple[str, ...], Option(
        "--drop-columns", "Do not read these columns of tables, such as those that no example can hold.",
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
        "--columns", "Name the columns of CSV files that have no header line.",
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
        "--delimiter", "Field delimiter of CSV files. Default: the one that fits the files.",
        INPUTS, "content", form=Delimiter("CHAR"),
    )] = None  # fmt: skip
    quote: Annotated[Literal["double", "none"], Option(
        "--quote", "A double quote encloses a field of CSV files; with none, quotes are text.", INPUTS, "content"
    )] = "double"  # fmt: skip
    skip_lines: Annotated[int, Option(
        "--skip-lines", "Skip this many lines at the start of each CSV file.", INPUTS, "content", minimum=0
    )] = 0  # fmt: skip
    comment: Annotated[str | None, Option(
        "--comment", "Skip lines of CSV files that begin with this, such as # or ##.",
        INPUTS, "content", form=Named("TEXT"),
    )] = None  # fmt: skip
    null_values: Annotated[tuple[str, ...], Option(
        "--null-value", "Read this text, such as NA, as null in CSV files.", INPUTS, "content",
        form=Named("TEXT"), is_common=True,
    )] = ()  # fmt: skip
    max_field_bytes: Annotated[
        int, Option("--max-field", "Refuse CSV fields that are larger.", INPUTS, "content", form=Size())
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
        "--encoding", "Encoding of text formats, such as latin-1 or utf-16. Default: UTF-8.",
        INPUTS, "content", form=Named("NAME"),
    )] = None  # fmt: skip
    text_record: Annotated[Literal["line", "paragraph", "file"], Option(
        "--text-record", "Make one row of this part of a text file.", INPUTS, "content"
    )] = "line"  # fmt: skip
    vector: Annotated[Literal["sparse", "dense"], Option(
        "--vector",
        "Store the vectors of libsvm files as indices and values, or whole; for whole ones the files are read twice.",
        INPUTS, "content",
    )] = "sparse"  # fmt: skip
    array_record: Annotated[Literal["row", "file"] | None, Option(
        "--array-record",
        "Make one row of each item along the first axis of .npy files, or of each file, whose folder may be its class.",
        INPUTS, "content", shown_default="row",
    )] = None  # fmt: skip
    tfrecord_as: Annotated[Literal["examples", "bytes"], Option(
        "--tfrecord-as",
        "Read TFRecords as tf.train.Examples, or keep each record as bytes in a column called record.",
        INPUTS, "content",
    )] = "examples"  # fmt: skip
    table: Annotated[str | None, Option(
        "--table", "Read this table of a database. Default: the only table of a SQLite file.",
        INPUTS, "content", form=Named("NAME"), is_common=True,
    )] = None  # fmt: skip
    query: Annotated[str | None, Option(
        "--query", "Read the rows of a SELECT, in its order, instead of a table of a database.",
        INPUTS, "content", form=Named("SQL"),
    )] = None  # fmt: skip
    labels: Annotated[str | None, Option(
        "--labels",
        "Labels of images, audio files or videos: CSV or JSON Lines by file name, COCO JSON, or a folder of Pascal "
        "VOC XML. Files of labels in the usual places are found without it.",
        INPUTS, "limit", form=Named("FILE", PATH), is_common=True,
    )] = None  # fmt: skip
    no_labels: Annotated[bool, Option(
        "--no-labels",
        "Take images, audio, videos and text files alone: no folder is a class, and no file beside them a label.",
        INPUTS, "content",
    )] = False  # fmt: skip
    class_folder: Annotated[int | None, Option(
        "--class-folder",
        "Take the folder of this level as the class of images, audio, videos, text files or arrays: 1 is the outermost "
        "below the input, folders of splits not counted. Default: the innermost level with several folders.",
        INPUTS, "content", form=Named("N"), minimum=1,
    )] = None  # fmt: skip
    audio: Annotated[Literal["bytes", "samples"], Option(
        "--audio", "Keep audio files as they are, or decode them: WAV, FLAC, Ogg, MP3, AIFF, AU, CAF, RF64 and W64.",
        INPUTS, "content",
    )] = "bytes"  # fmt: skip
    audio_rate: Annotated[int | None, Option(
        "--audio-rate", "Resample decoded audio to this rate.", INPUTS, "content", form=Named("HZ"), minimum=1
    )] = None  # fmt: skip
    video: Annotated[Literal["bytes", "frames", "clips"], Option(
        "--video", "Keep videos as they are, or make a row of each frame or of each clip of several frames.",
        INPUTS, "content",
    )] = "bytes"  # fmt: skip
    video_fps: Annotated[float | None, Option(
        "--video-fps", "Take this many frames a second of decoded videos. Default: all.",
        INPUTS, "content", form=Named("FPS"), minimum=0, excludes="minimum",
    )] = None  # fmt: skip
    clip_frames: Annotated[int | None, Option(
        "--clip-frames", "Number of frames of a clip.", INPUTS, "content", form=Named("N"), minimum=1, shown_default=16,
    )] = None  # fmt: skip
    clip_stride: Annotated[int | None, Option(
        "--clip-stride", "Begin a clip every N frames; clips overlap where N is below --clip-frames.",
        INPUTS, "content", form=Named("N"), minimum=1, shown_default="the length of a clip",
    )] = None  # fmt: skip
    max_pixels: Annotated[
        int, Option("--max-pixels", "Refuse images and frames that are larger.", INPUTS, "content", minimum=1)
    ] = 64_000_000
    max_record_bytes: Annotated[
        int, Option("--max-record-size", "Refuse rows that are larger.", INPUTS, "content", form=Size())
    ] = 256 * MiB
    max_expansion: Annotated[int, Option(
        "--max-expansion", "Refuse compressed files that grow by a larger factor.", INPUTS, "content", minimum=1,
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
