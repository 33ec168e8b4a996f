"""The labels that `--labels` names: a table, a COCO document, or a folder of Pascal VOC files."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from shardkit import file_types
from shardkit.errors import BadInputError, NoRowsError, UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, Source, SourceOptions, place, settle
from shardkit.sources.columnar.parquet import ParquetSource
from shardkit.sources.csv.source import CsvSource
from shardkit.sources.files.streams import read_head
from shardkit.sources.json.array_source import JsonArraySource
from shardkit.sources.json.lines_source import JsonLinesSource
from shardkit.sources.listing import list_inputs
from shardkit.sources.media.coco import is_coco, read_coco
from shardkit.sources.media.label_tables import LabelColumns, LabelTable, Matching, Positions, check_header, match_names
from shardkit.sources.media.voc import VocLabels, voc_files
from shardkit.storage import files as storage

_KEYS = ("filename", "file_name", "file", "image", "path")
_HEAD_BYTES = 65536


class FileLabels(NamedTuple):
    """The labels of the files of a conversion.

    Attributes:
        features: What they hold; nullable where a file has none.
        matching: Which label each file has.
        columns: The labels themselves.
        notes: What a user should know.
    """

    features: Features
    matching: Matching
    columns: LabelColumns
    notes: tuple[str, ...]

    def take(self, file_indices: Positions) -> dict[str, pa.Array]:
        """Returns the labels of some files by their positions in the list of files."""
        found = self.columns.take(self.matching.positions[file_indices])
        return {f.name: found[g.name] for f, g in zip(self.features, self.columns.features, strict=True)}


def label_files(labels: str) -> tuple[RawFile, ...]:
    """Returns the files that `--labels` names.

    Raises:
        UsageError: If nothing is there.
    """
    try:
        return list_inputs([labels]).files
    except UsageError as error:
        what = f"--labels {printable(storage.redact(labels))} cannot be read"
        raise UsageError(what, why=error.why or error.what, next_step=error.next_step) from error


def without_label_files(files: tuple[RawFile, ...], options: SourceOptions) -> tuple[RawFile, ...]:
    """Returns the input files without those that hold the labels, which often lie in the same folder."""
    if options.labels is None:
        return files
    own = {f.path for f in label_files(options.labels)}
    return tuple(f for f in files if f.path not in own or file_types.has_image_suffix(f.name))


def load_labels(
    files: tuple[RawFile, ...], options: SourceOptions, own: Sequence[str], kinds: str, known: Features | None = None
) -> FileLabels | None:
    """Returns the labels of files, None if none are asked for.

    Args:
        files: All input files.
        options: Say where the labels are.
        own: Names of the features that the files have without them.
        kinds: What the files are, such as `images`.
        known: The features of the plan, which spare reading all labels once more for their classes.

    Raises:
        UsageError: If labels and files do not go together, or the labels are of no kind that is read.
        BadInputError: If the labels are damaged, unless bad rows are tolerated: then that is a UsageError too.
    """
    if options.labels is None:
        return None
    found = label_files(options.labels)
    digest = xxhash.xxh3_64()
    for file in files:
        digest.update(file.name.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    vocabulary = next((f.vocabulary for f in known or () if f.name == "box_labels"), None)
    names = _Names(tuple(f.name for f in files), digest.intdigest())
    strict = msgspec.structs.replace(options, tolerates_bad_rows=False)
    with _about_labels(place(found[0]), tolerates_bad_rows=options.tolerates_bad_rows):
        return _load(found, strict, tuple(own), kinds, vocabulary, names)


class _Names:
    """Names that are compared by their digest: there may be a million."""

    def __init__(self, names: tuple[str, ...], digest: int) -> None:
        self.names = names
        self._key = (len(names), digest)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Names) and self._key == other._key


@functools.lru_cache(maxsize=1)
def _load(
    found: tuple[RawFile, ...],
    options: SourceOptions,
    own: tuple[str, ...],
    kinds: str,
    vocabulary: tuple[str, ...] | None,
    files: _Names,
) -> FileLabels:
    # Cached, because every split asks for it again.
    columns, where = _read(found, options, vocabulary), str(options.labels)
    if isinstance(columns, LabelTable):
        check_header(files.names, columns.key, where)
    matching = match_names(files.names, columns.names, where, kinds)
    has_gaps = bool((matching.positions < 0).any())
    features = tuple(_renamed(f, own, has_gaps) for f in columns.features)
    repeated = [f.name for f in features if [g.name for g in features].count(f.name) > 1]
    if repeated:
        raise UsageError(
            f"column {shown(repeated[0])} appears twice",
            where=where,
            next_step="Rename one of the columns in the labels",
        )
    renamed = [f.name for f, g in zip(features, columns.features, strict=True) if f.name != g.name]
    notes = [f"column {shown(n.partition('/')[2])} of the labels is called {shown(n)}" for n in renamed]
    return FileLabels(features, matching, columns, (*columns.notes, *notes, *matching.notes))


@contextlib.contextmanager
def _about_labels(where: str, *, tolerates_bad_rows: bool) -> Iterator[None]:
    try:
        yield
    except NoRowsError as error:
        raise UsageError("there are no labels", where=error.where or where, next_step="Correct the labels") from error
    except UsageError as error:
        if error.next_step and "--drop-columns" in error.next_step:
            error.next_step = "Leave it out of the labels"
        raise
    except BadInputError as error:
        # The options for bad rows and encodings hold for the inputs only.
        step = error.next_step or "Correct the labels"
        error.next_step = "Write the labels as UTF-8" if "--encoding" in step else step
        if not tolerates_bad_rows:
            raise
        # It is not the fault of any one input that could be left out.
        raise UsageError(error.what, where=error.where, why=error.why, next_step=error.next_step) from error


def _renamed(feature: Feature, own: tuple[str, ...], has_gaps: bool) -> Feature:
    # The files say some of it themselves, and may say something else.
    name = f"labels/{feature.name}" if feature.name in own else feature.name
    return msgspec.structs.replace(feature, name=name, nullable=feature.nullable or has_gaps)


def _read(found: tuple[RawFile, ...], options: SourceOptions, vocabulary: tuple[str, ...] | None) -> LabelColumns:
    if len(found) != 1 or found[0].name.lower().endswith(".xml"):
        return VocLabels(voc_files(found, str(options.labels)), vocabulary)
    (file,) = found
    head = read_head(file, _HEAD_BYTES)
    format_ = file_types.format_of(head[: file_types.HEAD_BYTES], file.name)
    if format_ == "jsonl" and is_coco(head):
        return read_coco(file)
    plain = msgspec.structs.replace(options, format=None, labels=None, columns=None, delimiter=None)
    source: Source
    if JsonArraySource().recognizes(head, file.name):
        source = JsonArraySource()
    elif format_ == "csv":
        source = CsvSource()
    elif format_ == "jsonl":
        source = JsonLinesSource()
    elif format_ == "parquet":
        source = ParquetSource()
    else:
        raise UsageError(
            "the labels are of no kind that is read",
            where=place(file),
            next_step="Name a CSV, JSON, Parquet or COCO file, or a folder of Pascal VOC files",
        )
    return _read_table(source, found, plain)


def _read_table(source: Source, found: tuple[RawFile, ...], options: SourceOptions) -> LabelTable:
    try:
        options = settle(source, found, options)
    except UsageError:
        # A first line that names an image is found when the labels are matched.
        options = msgspec.structs.replace(options, has_header=True)
    features = source.infer(found, options)
    batches = [
        part.batch for split in source.split(found, options) for part in source.read(split, found, features, options)
    ]
    if not any(batch.num_rows for batch in batches):
        raise BadInputError("there are no labels", where=place(found[0]))
    table = pa.Table.from_batches(batches)
    key = next((f for name in _KEYS for f in features if f.name.lower() == name), features[0])
    if not key.is_scalar or key.dtype not in ("string", "int64"):
        raise UsageError(
            f"column {shown(key.name)} of the labels holds no names of files",
            where=place(found[0]),
            why=f"it is {key.describe_type()}",
            next_step=f"Call the column that does so one of {', '.join(_KEYS)}",
        )
    names = _one_chunk(table.column(key.name)).cast(pa.string())
    if names.null_count:
        row = names.is_null().index(True).as_py() + 1
        raise UsageError(
            "a label has no name of a file",
            where=place(found[0], row=row),
            next_step="Fill it in, or take the row out of the labels",
        )
    rest = tuple(f for f in features if f is not key)
    columns = {f.name: _one_chunk(table.column(f.name)) for f in rest}
    unique = names.unique()
    if len(unique) == len(names):
        return LabelTable(names.to_pylist(), rest, columns, key=key.name)
    return _grouped(names, unique, rest, columns, found[0])._replace(key=key.name)


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
