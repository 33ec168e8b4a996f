"""Readers of labels: tables, COCO documents, folders of Pascal VOC, and what each layout has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit import file_types
from shardkit.errors import BadInputError, UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.messages import shown
from shardkit.sources.base import RawFile, RowBatch, Source, SourceOptions, place, settle
from shardkit.sources.columnar.parquet import ParquetSource
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.files.streams import read_head
from shardkit.sources.json.array_source import JsonArraySource
from shardkit.sources.json.lines_source import JsonLinesSource
from shardkit.sources.listing import list_inputs
from shardkit.sources.media.box_tables import OBJECTS, boxes_of, with_objects
from shardkit.sources.media.coco import is_coco, read_coco
from shardkit.sources.media.label_tables import (
    FILE_KEYS,
    LabelColumns,
    LabelTable,
    choose_key,
    is_name_of_file,
    without_blanks,
)
from shardkit.sources.media.layout_files import Layout, first_line_of
from shardkit.sources.media.published_sets import read_tiny_imagenet
from shardkit.sources.media.sidecars import (
    check_no_sentences,
    lines_of_transcripts,
    read_libritts,
    read_texts,
    read_transcripts,
    rows_of_words,
    text_of,
)
from shardkit.sources.media.voc import VocLabels, voc_files
from shardkit.sources.media.yolo import read_yolo

_FLEURS = ("id", "file_name", "raw_transcription", "transcription", "characters", "num_samples", "gender")
_LJSPEECH = ("id", "transcript", "normalized_transcript")
_HEAD_BYTES = 65536
_CELLS = re.compile(r"[,;\t|]")
_LISTED = 3
# As Flickr8k counts the captions of an image, behind an extension.
_NUMBER_OF_FILE = re.compile(r"(\.[A-Za-z0-9]{1,5})#[0-9]+$")
_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"\\]+)"\s*:')


class Labelled(NamedTuple):
    """What labels are for.

    Attributes:
        files: Names of the files that are a row each.
        vocabulary: Names of the classes of boxes, where they are known.
    """

    files: Sequence[str]
    options: SourceOptions
    vocabulary: tuple[str, ...] | None = None

    def with_options(self, **changed: Any) -> Labelled:
        """Returns the same with other options."""
        return self._replace(options=msgspec.structs.replace(self.options, **changed))


def read_labels(layout: Layout | None, found: tuple[RawFile, ...], labelled: Labelled) -> LabelColumns:
    """Returns the labels in some files.

    Args:
        layout: That they were found by; None if `--labels` names them.

    Raises:
        UsageError: If the files are of no kind that is read.
        BadInputError: If they are damaged, or hold no labels.
    """
    columns = _read_labels(layout, found, labelled)
    if isinstance(columns, LabelTable) and is_name_of_file(labelled.files, columns.key):
        # The first line is a row.
        columns = _read_labels(layout, found, labelled.with_options(has_header=False, no_header=True))
    return columns


def _read_labels(layout: Layout | None, found: tuple[RawFile, ...], labelled: Labelled) -> LabelColumns:
    plain = labelled.with_options(format=None, labels=None, columns=None, delimiter=None)
    if layout is not None:
        return READERS[layout.kind](layout, plain)
    if len(found) != 1 or found[0].name.lower().endswith(".xml"):
        return VocLabels(voc_files(found, str(labelled.options.labels)), labelled.vocabulary)
    (file,) = found
    head = read_head(file, _HEAD_BYTES)
    if file_types.format_of(head[: file_types.HEAD_BYTES], file.name) == "jsonl" and is_coco(head):
        return read_coco(file)
    if (lines := _lines_of_object(file, head, labelled.files)) is not None:
        return _read_copies(JsonLinesSource(), found, "labels.jsonl", [lines], plain)
    source = _source_of(head, file)
    if source.format == "csv" and (rows := rows_of_words(file, head)) is not None:
        check_no_sentences(file, rows)
        return _read_copies(source, found, "labels.tsv", [_with_tabs(rows)], _between_tabs(plain))
    if source.format != "jsonl" and (spoken := lines_of_transcripts(file, head, labelled.files)) is not None:
        return _read_copies(CsvSource(), found, "labels.tsv", [spoken], _between_tabs(plain))
    return _read_table(source, found, plain)


def _read_copies(
    source: Source, files: tuple[RawFile, ...], name: str, texts: Sequence[str], labelled: Labelled
) -> LabelTable:
    with TemporaryDirectory() as folder:
        copies = []
        for number, (file, text) in enumerate(zip(files, texts, strict=True)):
            table = Path(folder, str(number), name)
            table.parent.mkdir()
            table.write_text(text, encoding="utf-8")
            copies.append(msgspec.structs.replace(list_inputs([str(table)]).files[0], name=file.name))
        return _read_table(source, tuple(copies), labelled)


def _with_tabs(rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def _between_tabs(labelled: Labelled) -> Labelled:
    return labelled.with_options(delimiter="\t", quote="none")


def _lines_of_object(file: RawFile, head: bytes, files: Sequence[str]) -> str | None:
    """Returns JSON Lines of the names and labels in one object, as of `{"1.jpg": "cat"}`; None if a file is none."""
    first = _FIRST_KEY.match(head)
    if first is None or not is_name_of_file(files, first[1].decode("utf-8", "replace")):
        return None
    try:
        by_name = msgspec.json.decode(text_of(file), type=dict[str, Any])
    except msgspec.DecodeError:
        # Several objects, as in JSON Lines, or damage, which the reader of JSON names.
        return None
    rows = (
        {"file": name, **(value if isinstance(value, dict) else {"label": value})} for name, value in by_name.items()
    )
    return "".join(f"{msgspec.json.encode(row).decode()}\n" for row in rows)


def _source_of(head: bytes, file: RawFile) -> Source:
    format_ = file_types.format_of(head[: file_types.HEAD_BYTES], file.name)
    if JsonArraySource().recognizes(head, file.name):
        return JsonArraySource()
    if format_ == "csv":
        return CsvSource()
    if format_ == "jsonl":
        return JsonLinesSource()
    if format_ == "parquet":
        return ParquetSource()
    raise UsageError(
        "the labels are of no kind that is read",
        where=place(file),
        next_step="Name a CSV, JSON, Parquet or COCO file, or a folder of Pascal VOC files",
    )


def _read_tables(layout: Layout, labelled: Labelled) -> LabelTable:
    files = layout.labels
    source = _source_of(read_head(files[0], _HEAD_BYTES), files[0])
    return _read_table(source, files, labelled, layout.folders)


def _read_split_tables(layout: Layout, labelled: Labelled) -> LabelTable:
    """Returns the columns of tables of a split each, null where a table lacks one, with a note on these."""
    files, heads = layout.labels, [read_head(file, _HEAD_BYTES) for file in layout.labels]
    source = _source_of(heads[0], files[0])
    lines = [str(first_line_of(file), "utf-8-sig", "replace") for file in files]
    titles = [[cell.strip('" ') for cell in _CELLS.split(line)] for line in lines]
    is_row = any(is_name_of_file(labelled.files, cell) for cell in (*titles[0], *lines[0].split()[:1]))
    joined = labelled.with_options(union_by_name=True, has_header=not is_row, no_header=is_row)
    are_csv = source.format == "csv"
    rows = [rows_of_words(file, head) if are_csv else None for file, head in zip(files, heads, strict=True)]
    objects = [_lines_of_object(file, head, labelled.files) for file, head in zip(files, heads, strict=True)]
    if None not in objects:
        return _read_copies(JsonLinesSource(), files, "labels.jsonl", list(filter(None, objects)), joined)
    texts = [_with_tabs(found) for found in rows if found is not None]
    if len(texts) == len(files):
        return _read_copies(source, files, "labels.tsv", texts, _between_tabs(joined))
    table = _read_table(source, files, joined)
    notes = [
        f"{file.name} has no column {shown(feature.name)}, so its files have null there"
        for feature in table.features
        for file, title in zip(files, titles, strict=True)
        if are_csv and feature.name not in title and any(feature.name in other for other in titles)
    ]
    return table._replace(notes=(*table.notes, *notes))


def _read_folder_tables(layout: Layout, labelled: Labelled) -> LabelTable:
    """Returns the columns of the metadata of Hugging Face, with the boxes of its `objects`."""
    if not layout.labels[0].name.endswith(".jsonl") or b'"bbox"' not in read_head(layout.labels[0], _HEAD_BYTES):
        return _read_tables(layout, labelled)
    return with_objects(_read_tables(layout, labelled.with_options(drop_columns=(OBJECTS,))), layout.labels)


def _read_ljspeech(layout: Layout, labelled: Labelled) -> LabelTable:
    """Returns the transcripts of LJSpeech, whose table has bars between its columns, no header line and no quotes."""
    num_columns = 1 + read_head(layout.labels[0], _HEAD_BYTES).partition(b"\n")[0].count(b"|")
    plain = labelled.with_options(quote="none", delimiter="|", columns=_LJSPEECH[:num_columns])
    return _read_table(CsvSource(), layout.labels, plain)


def _read_fleurs(layout: Layout, labelled: Labelled) -> LabelTable:
    """Returns the columns of FLEURS, whose tables have no header line and no quotes."""
    plain = labelled.with_options(quote="none", delimiter="\t", columns=_FLEURS)
    return _read_table(CsvSource(), layout.labels, plain, layout.folders)


def _read_fields(layout: Layout, labelled: Labelled) -> LabelTable:
    """Returns the fields of JSON files beside the others, an object each."""
    files, options = layout.labels, labelled.options
    source = JsonArraySource()
    features = source.infer(files, options)
    batches, names = [], []
    for split in source.split(files, options):
        for part in source.read(split, files, features, options):
            batches.append(part.batch)
            names += [files[i].name.rpartition(".")[0] for i in _indices(part)]
    table = pa.Table.from_batches(batches)
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise BadInputError("a JSON file beside another holds more than one object", where=shown(f"{repeated}.json"))
    return LabelTable(names, features, {f.name: _one_chunk(table.column(f.name)) for f in features})


def _read_all_coco(layout: Layout) -> LabelTable:
    tables = [read_coco(file) for file in layout.labels]
    other = next((i for i, table in enumerate(tables) if table.features != tables[0].features), None)
    if other is not None:
        raise UsageError(
            "documents of COCO differ in their categories",
            where=f"{place(layout.labels[0])} and {place(layout.labels[other])}",
            next_step="Write the same categories into all, or leave one out with --exclude GLOB",
        )
    columns = {name: pa.concat_arrays([t.columns[name] for t in tables]) for name in tables[0].columns}
    folders = layout.folders or ("",) * len(tables)
    names = [_in_folder(folder, name) for folder, table in zip(folders, tables, strict=True) for name in table.names]
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return LabelTable(names, tables[0].features, columns, tuple(notes))


def _read_texts_apart(layout: Layout) -> LabelTable:
    """Returns the transcripts in texts whose outer folder is not that of the sounds."""
    table = read_texts(layout.labels, "transcript")
    names = zip(table.names, layout.folders, strict=True)
    return table._replace(names=[name.removeprefix(f"{folder}/") for name, folder in names])


def _in_folder(folder: str, name: str) -> str:
    """Returns where a file lies that a document names, with or without its folder."""
    parent, slash, last = folder.rpartition("/")
    return f"{parent}{slash}{name}" if not folder or name.startswith(f"{last}/") else f"{folder}/{name}"


READERS: Mapping[str, Callable[[Layout, Labelled], LabelColumns]] = {
    "folder table": _read_folder_tables,
    "table": _read_tables,
    "split tables": _read_split_tables,
    # Its quotes are text.
    "common voice": lambda layout, labelled: _read_tables(layout, labelled.with_options(quote="none")),
    "ljspeech": _read_ljspeech,
    "fleurs": _read_fleurs,
    "tiny imagenet": lambda layout, labelled: read_tiny_imagenet(layout, labelled.files),
    "celeba": lambda layout, labelled: _read_labels(None, layout.labels, labelled),
    "box table": lambda layout, labelled: boxes_of(_read_tables(layout, labelled), layout.labels[0]),
    "fields": _read_fields,
    "coco": lambda layout, labelled: _read_all_coco(layout),
    "voc": lambda layout, labelled: VocLabels(layout.labels, labelled.vocabulary),
    "yolo": lambda layout, labelled: read_yolo(layout.labels, layout.others),
    "captions": lambda layout, labelled: read_texts(layout.labels, "caption"),
    "spoken": lambda layout, labelled: read_texts(layout.labels, "transcript"),
    "spoken apart": lambda layout, labelled: _read_texts_apart(layout),
    "transcripts": lambda layout, labelled: read_transcripts(layout.labels),
    "transcript lists": lambda layout, labelled: read_transcripts(layout.labels, in_folder=False),
    "libritts": lambda layout, labelled: read_libritts(layout.labels),
}


def _indices(part: RowBatch) -> list[int]:
    indices: list[int] = np.broadcast_to(np.asarray(part.file_indices, np.int64), part.batch.num_rows).tolist()
    return indices


def _read_table(
    source: Source, found: tuple[RawFile, ...], labelled: Labelled, folders: Sequence[str] = ()
) -> LabelTable:
    try:
        options = settle(source, found, labelled.options)
    except UsageError:
        # A first line that names an image is found when the labels are matched.
        options = msgspec.structs.replace(labelled.options, has_header=True)
    features = source.infer(found, options)
    parts = [part for split in source.split(found, options) for part in source.read(split, found, features, options)]
    batches = [part.batch for part in parts]
    if not any(batch.num_rows for batch in batches):
        raise BadInputError("there are no labels", where=place(found[0]))
    table, features, trimmed = without_blanks(pa.Table.from_batches(batches), features)
    texts = {f.name: _as_names(_one_chunk(table.column(f.name))) for f in features if _may_name_files(f)}
    own_key = next((f.name for name in FILE_KEYS for f in features if f.name.lower() == name), features[0].name)
    chosen = choose_key(texts, own_key, labelled.files, place(found[0]))
    key = next(f for f in features if f.name == chosen)
    if key.name not in texts:
        raise UsageError(
            f"column {shown(key.name)} of the labels holds no names of files",
            where=place(found[0]),
            why=f"it is {key.describe_type()}",
            next_step=f"Call the column that does so one of {', '.join(FILE_KEYS)}",
        )
    names = texts[key.name]
    if names.null_count:
        row = names.is_null().index(True).as_py() + 1
        raise UsageError(
            "a label has no name of a file",
            where=place(found[0], row=row),
            next_step="Fill it in, or take the row out of the labels",
        )
    if any(folders):
        places = [folders[i] for part in parts for i in _indices(part)]
        paths = [f"{folder}/{name}" if folder else name for folder, name in zip(places, names.to_pylist(), strict=True)]
        names = pa.array(paths, pa.string())
    rest = tuple(f for f in features if f is not key)
    columns = {f.name: _one_chunk(table.column(f.name)) for f in rest}
    unique = names.unique()
    notes = (*trimmed, *([] if chosen == own_key else [f"column {shown(chosen)} of the labels names the files"]))
    own_name = _NUMBER_OF_FILE.sub(r"\1", key.name)
    if len(unique) == len(names):
        return LabelTable(names.to_pylist(), rest, columns, notes, key=own_name)
    grouped = _grouped(names, unique, rest, columns, found[0])
    return grouped._replace(key=own_name, notes=(*notes, *grouped.notes))


def _as_names(column: pa.Array) -> pa.Array:
    """Returns the names of files in a column of labels, `1.jpg` for the captions `1.jpg#0` and `1.jpg#1`."""
    return pc.replace_substring_regex(column.cast(pa.string()), _NUMBER_OF_FILE.pattern, r"\1")


def _may_name_files(feature: Feature) -> bool:
    return feature.is_scalar and feature.dtype in ("string", "int64")


def _grouped(
    names: pa.Array, unique: pa.Array, features: Features, columns: dict[str, pa.Array], file: RawFile
) -> LabelTable:
    # Several rows a file, such as one a box: every column becomes a list.
    groups = names.dictionary_encode().indices.to_numpy()
    order = np.argsort(groups, kind="stable")
    offsets = pa.array(np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=len(unique)))]), pa.int32())
    lists, found = {}, []
    for feature in features:
        if not feature.is_scalar:
            raise UsageError(
                f"column {shown(feature.name)} of the labels cannot be a list of lists",
                where=place(file),
                why="a file has several rows, so every column becomes a list",
                next_step="Leave the column out of the labels, or keep one row a file",
            )
        values = columns[feature.name].take(pa.array(order))
        if values.null_count:
            row = columns[feature.name].is_null().index(True).as_py() + 1
            raise UsageError(
                f"column {shown(feature.name)} of the labels is empty in a row",
                where=place(file, row=row),
                why="a file has several rows, so every column becomes a list, and lists hold no nulls",
                next_step="Fill it in, or leave the column out",
            )
        lists[feature.name] = pa.ListArray.from_arrays(offsets, values)
        found.append(make_feature(feature.name, feature.dtype, (None,), timezone=feature.timezone))
    note = f"{place(file)} has several rows for a file, so its columns become lists"
    return LabelTable(unique.to_pylist(), tuple(found), lists, (note,))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
