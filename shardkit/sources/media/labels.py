"""The labels of images and sounds: those that `--labels` names, and those that a layout has beside the files."""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from shardkit import file_types
from shardkit.errors import BadInputError, NoRowsError, UsageError
from shardkit.features import Feature, Features
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.file_globs import glob_options, globs_of
from shardkit.sources.folders.class_folders import list_counts
from shardkit.sources.inventory import note_on_passed_over
from shardkit.sources.listing import list_inputs
from shardkit.sources.media.label_readers import Labelled, read_labels
from shardkit.sources.media.label_tables import (
    DECLARED_SIZE,
    LabelColumns,
    LabelTable,
    Matching,
    Positions,
    match_names,
)
from shardkit.sources.media.layout_files import Layout, is_media_name
from shardkit.sources.media.layouts import find_layout, is_unread
from shardkit.sources.media.published_sets import celeba_splits
from shardkit.sources.media.yolo import yolo_splits
from shardkit.sources.naming_tables import naming_notes, tables_that_name
from shardkit.sources.split_lists import names_by_split
from shardkit.sources.split_names import folders_below_split, in_order, split_of, splits_in_names
from shardkit.sources.split_words import split_in_name
from shardkit.storage import files as storage
from shardkit.units import format_number

_CLASS_NAME = re.compile(r"label|class|categor|target", re.IGNORECASE)
_MAX_CLASSES = 1000
_MAX_BLANKS = 4
_LISTED_FOLDERS = 3
_ABOUT_WHOLE_FILES = ("folder table", "table", "split tables", "captions", "spoken", "spoken apart", "fields", "voc")
_TELL_SPLITS = ("table", "split tables", "common voice", "coco")
_NO_CLASSES = frozenset({"bbox", "caption", "transcript", "normalized_transcript", "sentence"})


class FileLabels(NamedTuple):
    """The labels of the files of a conversion.

    Attributes:
        features: What they hold; nullable where a file has none.
        is_relative: Whether `boxes` are parts of the width and height of their image.
    """

    features: Features
    matching: Matching
    columns: LabelColumns
    notes: tuple[str, ...]
    is_relative: bool = False

    def take(self, file_indices: Positions) -> dict[str, pa.Array]:
        """Returns the labels of some files by their positions in the list of files."""
        found = self.columns.take(self.matching.positions[file_indices])
        named = {f.name: found[g.name] for f, g in zip(self.features, self.columns.features, strict=True)}
        return named | {name: found[name] for name in DECLARED_SIZE if name in found}


class Beside(NamedTuple):
    """Labels that lie beside the files of a conversion.

    Attributes:
        labels: What `--labels` would name: the folder or archive of all. None where no labels are wanted.
        files: Those that are data, with their splits where the layout names them.
    """

    labels: str | None
    files: tuple[RawFile, ...]
    notes: tuple[str, ...]


def label_files(options: SourceOptions) -> tuple[RawFile, ...]:
    """Returns the files that hold the labels, and those that name classes and splits.

    Raises:
        UsageError: If nothing is there.
    """
    layout, files = _found(str(options.labels), options)
    if layout is None:
        return files
    return (*layout.labels, *layout.lists, *(f for f in layout.others if not is_media_name(f.name)))


def without_label_files(files: tuple[RawFile, ...], options: SourceOptions) -> tuple[RawFile, ...]:
    """Returns the input files without those that hold the labels, which often lie in the same folder."""
    if options.labels is None:
        return files
    layout, named = _found(options.labels, options)
    own = {_place_of(f) for f in (named if layout is None else (*layout.labels, *layout.lists, *layout.others))}
    masks = {_place_of(f) for f in layout.others} if layout is not None else set()
    return tuple(
        f
        for f in files
        if (place_of := _place_of(f)) not in own or (file_types.has_image_suffix(f.name) and place_of not in masks)
    )


def labels_beside(files: tuple[RawFile, ...], root: str, options: SourceOptions) -> Beside | None:
    """Returns the labels that a layout has beside the files, None if there are none.

    Args:
        root: The folder that their names are relative to.

    Raises:
        UsageError: If labels lie there in several forms, or do not go together with the files.
        BadInputError: If the labels are damaged.
    """
    takes_none = options.no_labels or options.class_folder is not None
    layout = find_layout(files, joins_forms=takes_none)
    if layout is None or not root:
        return None
    outer = {f.path for f in files if f.member is not None}
    labels = outer.pop() if len(outer) == 1 and all(f.member is not None for f in files) else root
    own = {f.name for f in (*layout.labels, *layout.lists, *layout.others)}
    data = tuple(f for f in files if f.name not in own)
    if takes_none:
        return Beside(None, data, (f"layout: {layout.title}, its {format_number(len(own), 'file')} left out",))
    notes = [f"layout: {layout.title}, {format_number(len(layout.labels), 'file')} of labels"]
    notes += _notes_on_unread(layout)
    media = [f for f in data if is_media_name(f.name)]
    notes += naming_notes(tables_that_name(media, [f for f in data if not is_media_name(f.name)]))
    if layout.kind in _ABOUT_WHOLE_FILES:
        notes += _folder_notes([f.name for f in media], layout.labels[0].name)
    named = _splits_of(layout, media, options)
    if not named and layout.lists:
        notes.append(f"{printable(layout.lists[0].name)} and the like tell one split alone, and divide nothing")
    if not named:
        return Beside(labels, data, tuple(notes))
    split = tuple(msgspec.structs.replace(f, split=named[f.name]) for f in media if f.name in named)
    if len(split) < len(media):
        lost = [f.name for f in media if f.name not in named]
        notes.append(f"{format_number(len(lost), 'file')} of no split left out: {', '.join(map(shown, lost[:3]))}")
    return Beside(labels, (*split, *(f for f in data if not is_media_name(f.name))), tuple(notes))


def _notes_on_unread(layout: Layout) -> Iterator[str]:
    for note in note_on_passed_over([f for f in layout.others if is_unread(layout, f)]):
        read = layout.labels[0].name.rpartition("/")[2].partition("_")[0]
        is_kind = layout.kind == "coco" and read == "instances"
        yield f"{note}; --exclude 'instances_*' reads them instead" if is_kind else note


def _folder_notes(names: Sequence[str], labels: str) -> Iterator[str]:
    folders = {name.rpartition("/")[0] for name in names}
    classes = sorted({found[-1] for folder in folders if (found := folders_below_split(f"{folder}/"))} - {""})
    if 1 < len(classes) <= _MAX_CLASSES:
        listed = ", ".join(map(printable, classes[:_LISTED_FOLDERS])) + (", ..." if classes[_LISTED_FOLDERS:] else "")
        suffixes = sorted({f".{name.rpartition('.')[2]}" for name in names})
        included = " ".join(f"--include {shlex.quote(f'*{suffix}')}" for suffix in suffixes)
        yield (
            f"the folders {listed} give no label beside {printable(labels)}; {printable(included)} takes them as "
            "classes, without these labels"
        )


def _splits_of(layout: Layout, media: Sequence[RawFile], options: SourceOptions) -> dict[str, str]:
    """Returns the split of each file that a list or a table names, where the names of the files do not tell them."""
    by_split: dict[str, list[str]] = {}
    if layout.kind == "celeba":
        by_split = celeba_splits(layout.lists)
    elif layout.lists:
        by_split = names_by_split(layout.lists)
    elif len(layout.labels) > 1 and layout.kind in _TELL_SPLITS and not splits_in_names(media):
        labelled = Labelled([file.name for file in media], options)
        for file in layout.labels:
            found_split = split_in_name(file.name)
            if found_split is None:
                return {}
            names = read_labels(layout.only(file), (file,), labelled).names
            by_split.setdefault(found_split.split, []).extend(names)
    if len(by_split) < 2:
        is_silent = layout.kind == "yolo" and not splits_in_names(media)
        by_split = yolo_splits(layout.others, media) if is_silent else {}
    found: dict[str, str] = {}
    files = [f.name for f in media]
    for split, names in by_split.items():
        matching = match_names(files, names, f"the files of {split}", "files")
        for index in np.flatnonzero(matching.positions >= 0).tolist():
            if found.setdefault(files[index], split) != split:
                raise UsageError(
                    f"{shown(files[index])} is in the splits {found[files[index]]} and {split}",
                    next_step="Leave it out of one of the lists or tables that name the files of the splits",
                )
    return found


def _found(labels: str, options: SourceOptions) -> tuple[Layout | None, tuple[RawFile, ...]]:
    version = 0
    with contextlib.suppress(OSError):
        version = Path(labels).stat().st_mtime_ns
    return _found_at(labels, options.include, options.exclude, version)


@functools.lru_cache(maxsize=1)
def _found_at(
    labels: str, include: tuple[str, ...], exclude: tuple[str, ...], version: int
) -> tuple[Layout | None, tuple[RawFile, ...]]:
    # Cached, because every input split asks for it.
    try:
        files = list_inputs([labels], SourceOptions(include=include, exclude=exclude)).files
    except UsageError:
        # The globs are for the inputs, which may lie elsewhere.
        try:
            files = list_inputs([labels]).files
        except UsageError as error:
            what = f"--labels {printable(storage.redact(labels))} cannot be read"
            raise UsageError(what, why=error.why or error.what, next_step=error.next_step) from error
    layout = find_layout(files) if len(files) > 1 else None
    if layout is None and len(files) > 1:
        files = tuple(f for f in files if not file_types.is_document_name(f.name)) or files
    return layout, files


def _place_of(file: RawFile) -> tuple[str, int]:
    return file.path, file.member.start if file.member is not None else -1


def load_labels(
    files: tuple[RawFile, ...], options: SourceOptions, own: Sequence[str], kinds: str, known: Features | None = None
) -> FileLabels | None:
    """Returns the labels of files, None if none are asked for.

    Args:
        own: Names of the features that the files have without them.
        known: The features of the plan, which spare reading all labels once more for their classes.

    Raises:
        UsageError: If labels and files do not go together, or the labels are of no kind that is read.
        BadInputError: If the labels are damaged, unless bad rows are tolerated: then that is a UsageError too.
    """
    if options.labels is None:
        return None
    layout, found = _found(options.labels, options)
    digest = xxhash.xxh3_64()
    for file in files:
        digest.update(file.name.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    vocabulary = next((f.vocabulary for f in known or () if f.name == "box_labels"), None)
    names = _Names(tuple(f.name for f in files), digest.intdigest())
    strict = msgspec.structs.replace(options, tolerates_bad_rows=False)
    where = place(found[0] if layout is None else layout.labels[0])
    with _about_labels(where, tolerates_bad_rows=options.tolerates_bad_rows):
        return _load(layout, found, strict, tuple(own), kinds, vocabulary, names)


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
    layout: Layout | None,
    found: tuple[RawFile, ...],
    options: SourceOptions,
    own: tuple[str, ...],
    kinds: str,
    vocabulary: tuple[str, ...] | None,
    files: _Names,
) -> FileLabels:
    # Cached, because every split asks for it again.
    labelled, where = Labelled(files.names, options, vocabulary), str(options.labels)
    columns = read_labels(layout, found, labelled)
    if not columns.features:
        raise UsageError(
            "the labels hold names of files and nothing else",
            where=where,
            next_step="Name a file that has a label behind each name; a list of files is for --split NAME=@FILE",
        )
    matching = match_names(files.names, columns.names, where, kinds)
    found_values = columns.take(matching.positions[matching.positions >= 0])
    if all(map(_is_blank, found_values.values())):
        raise UsageError(
            "the labels are empty for all files", where=where, next_step="Fill them in, or leave --labels out"
        )
    has_gaps = bool((matching.positions < 0).any())
    features = tuple(_renamed(f, own, has_gaps) for f in columns.features)
    repeated = [name for name, count in Counter(f.name for f in features).items() if count > 1]
    if repeated:
        raise UsageError(
            f"column {shown(repeated[0])} appears twice",
            where=where,
            next_step="Rename one of the columns in the labels",
        )
    renamed = [f.name for f, g in zip(features, columns.features, strict=True) if f.name != g.name]
    notes = [f"column {shown(n.partition('/')[2])} of the labels is called {shown(n)}" for n in renamed]
    is_relative = isinstance(columns, LabelTable) and columns.is_relative
    notes += [*matching.notes, *(_folder_notes(files.names, where) if layout is None else ())]
    classes = _class_notes(features, columns, found_values)
    return FileLabels(features, matching, columns, (*columns.notes, *notes, *classes), is_relative)


def unlabelled_notes(files: Sequence[RawFile], positions: Positions, kinds: str) -> Iterator[str]:
    """Yields a note where no file of some splits has a label: folders give none either where labels are named.

    Args:
        files: A row each.
        positions: Of the label of each, -1 where it has none.
        kinds: What they are, such as `images`.
    """
    if (positions >= 0).all():
        return
    counts = Counter(split_of(file) or "" for file in files)
    labelled = {split_of(file) or "" for file, position in zip(files, positions.tolist(), strict=True) if position >= 0}
    silent = [split for split in in_order(counts.keys()) if split not in labelled]
    if silent and "" not in counts:
        kept = [file for file in files if split_of(file) in labelled]
        lost = [file for file in files if split_of(file) not in labelled]
        listed = " and ".join(
            f"{counts[split]:,} {kinds if counts[split] > 1 else kinds.removesuffix('s')} of {split}"
            for split in silent
        )
        are_in_folders = len({tuple(folders_below_split(file.name)[-1:]) for file in lost}) > 1
        why = ", since folders are no classes beside a file of labels" if are_in_folders else ""
        # Not --include, since the labels may lie among the files.
        yield f"{listed} have no label{why}; {glob_options('--exclude', globs_of(lost, kept))} takes the others alone"


def _is_blank(values: pa.Array) -> bool:
    texts = values.drop_null()
    return not len(texts) or (pa.types.is_string(texts.type) and not any(text.strip() for text in texts.to_pylist()))


def _class_notes(features: Features, columns: LabelColumns, found: dict[str, pa.Array]) -> Iterator[str]:
    """Yields the classes of each column that holds some, with their counts: words or whole numbers that repeat.

    A column that is called so or is the only one holds them too where none repeats, unless these are sentences.
    """
    for feature, own in zip(features, columns.features, strict=True):
        is_named = feature.vocabulary is not None or _CLASS_NAME.search(own.name) is not None
        is_class = feature.dtype == "string" or is_named or len(features) == 1
        if not is_class or own.name in _NO_CLASSES or feature.dtype not in ("string", "int64", "int32", "bool"):
            continue
        values = found[own.name].drop_null()
        values = values if feature.is_scalar else values.flatten()
        counts = values.value_counts()
        names = [feature.vocabulary[v] if feature.vocabulary and isinstance(v, int) else str(v)
                 for v in counts.field("values").to_pylist()]  # fmt: skip
        are_short = (is_named or len(features) == 1) and all(name.count(" ") < _MAX_BLANKS for name in names)
        if 0 < len(counts) <= (_MAX_CLASSES if are_short else min(_MAX_CLASSES, len(values) // 2)):
            yield (
                f"classes in {shown(feature.name)}: "
                f"{list_counts(dict(zip(names, counts.field('counts').to_pylist(), strict=True)))}"
            )


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
