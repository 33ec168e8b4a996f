"""NumPy's own files: an array in an .npy, whose first axis counts the rows, or columns in an .npz.

Arrays of an .npz that are named after splits, as `x_train` and `x_test` of the datasets of Keras, give a table a split.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, cast

import msgspec

from shardkit.errors import BadInputError, DamagedFileError, NoRowsError, UsageError
from shardkit.features import Features
from shardkit.file_types import COMPRESSED_PATTERN, suffix_of
from shardkit.messages import shown
from shardkit.sources.arrays.batches import ArrayRows, OpenArray, check_row_size, common_features, cut_rows
from shardkit.sources.arrays.columns import ArrayColumn, columns_of
from shardkit.sources.arrays.numpy_headers import MAGIC, read_layout
from shardkit.sources.arrays.numpy_zip import MemberStream, list_members, open_archive
from shardkit.sources.arrays.rows import ArrayLayout, GatheredRows, HeldRows, OrderedRows, RowReader
from shardkit.sources.base import (
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    SourceSettings,
    choose_split_bytes,
    place,
)
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.files.many_files import attempt, map_files
from shardkit.sources.files.streams import guard_unchanged, is_seekable, open_raw, open_stream, read_exactly
from shardkit.sources.folders.class_folders import describe_classes, find_class_level
from shardkit.sources.split_names import in_order
from shardkit.sources.split_words import split_in_name
from shardkit.storage import files as storage
from shardkit.units import GiB, format_count, format_size

_SUFFIX = ".npz"
_WORDS = re.compile(r"[^_\-. /]+")


_NAME = re.compile(rf"[^/]\.np[yz]({COMPRESSED_PATTERN})?$", re.IGNORECASE)
_ZIP = b"PK"
_MAX_HELD_BYTES = GiB
_NAMED_ARRAYS = 10


class _StoredArray(NamedTuple):
    name: str
    layout: ArrayLayout
    columns: tuple[ArrayColumn, ...]
    member: zipfile.ZipInfo | None = None


@dataclass(frozen=True)
class NumpySource(SourceSettings):
    """NumPy arrays."""

    format: str = "numpy"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file holds an array, or is called like one."""
        return head.startswith(MAGIC) or _NAME.search(name) is not None

    def settle(self, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
        """Returns the options as they are.

        Raises:
            UsageError: If several arrays are of one kind, and no option says what a row is.
        """
        arrays = [file for file in files if file.num_bytes and suffix_of(file.name) == ".npy"]
        if options.array_record is not None or len(arrays) < 2:
            return options
        found = map_files(lambda file: attempt(_list_arrays, file, files, options), sample_files(arrays))
        kinds = {
            (a.layout.dtype, a.layout.shape[1:]) for one in found if not isinstance(one, DamagedFileError) for a in one
        }
        if len(kinds) == 1:
            leveled = msgspec.structs.replace(options, class_level=find_class_level(files, options))
            classes = describe_classes(files, leveled)
            label = f" with its folder as label ({classes})" if classes else ""
            raise UsageError(
                f"{format_count(len(arrays))} .npy files hold arrays of one kind",
                why=f"a file may be a row{label}, or hold a row for each part of its first axis",
                next_step="Add --array-record file or --array-record row",
            )
        return options

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns a column for each array or field, exactly of its dtype.

        The array of a single .npy is called like the file, that of one among several `values`.

        Raises:
            UsageError: If files have different columns, arrays of one file different lengths, or values have no place
                in an example.
            BadInputError: If no file can be used, or a row is too large.
            DamagedFileError: If a file is damaged; where bad rows are tolerated, only if all are.
        """
        filled = [f for f in files if f.num_bytes]
        if not filled:
            raise NoRowsError(why="all input files are empty")
        listed = zip(filled, map_files(lambda f: attempt(_list_arrays, f, files, options), filled), strict=True)
        columns = (
            (f, a if isinstance(a, DamagedFileError) else [c for one in a for c in one.columns]) for f, a in listed
        )
        return common_features(columns, options)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: the headers say what the arrays are."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts stored arrays between rows; a file that is compressed or in an archive is one split."""
        filled = [(index, file) for index, file in enumerate(files) if file.num_bytes]
        listed = map_files(lambda f: attempt(_list_arrays, f, files, options), [f for _, f in filled])
        splits: list[InputSplit] = []
        for (index, file), arrays in zip(filled, listed, strict=True):
            whole = InputSplit(index=0, file_start=index, file_stop=index + 1, num_bytes=file.num_bytes)
            # Reading finds the damage again, and the options for bad input decide there.
            parts = [whole] if isinstance(arrays, DamagedFileError) else self._cut(whole, file, arrays)
            for part in parts:
                splits.append(msgspec.structs.replace(part, index=len(splits)))
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split."""
        file = files[split.file_start]
        with guard_unchanged(file), ExitStack() as stack:
            arrays = _list_arrays(file, files, options)
            readers = _open_readers(stack, file, arrays, split.start)
            opened = [OpenArray(a.columns, a.layout, rows) for a, rows in zip(arrays, readers, strict=True)]
            yield from ArrayRows(opened, features, split, file, options).read(self.batch_bytes)

    def _cut(self, whole: InputSplit, file: RawFile, arrays: tuple[_StoredArray, ...]) -> list[InputSplit]:
        layout = arrays[0].layout
        if not layout.num_rows:
            return []
        if arrays[0].member is not None or not _can_seek(file, arrays[0]):
            return [whole]
        wanted = self.split_bytes or choose_split_bytes(file.num_bytes)
        return cut_rows(whole, layout.num_rows, layout.row_bytes, wanted)


def _list_arrays(file: RawFile, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[_StoredArray, ...]:
    where = place(file)
    with open_stream(file) as stream:
        head = read_exactly(stream, len(_ZIP))
    if head == _ZIP:
        arrays = _list_archive(file, options)
    else:
        with open_stream(file) as stream:
            layout = read_layout(stream, where)
        is_alone = sum(f.num_bytes > 0 for f in files) == 1
        name = _stem(file.name) if is_alone else "values"
        arrays = (_StoredArray(name, layout, columns_of(name, layout.dtype, layout.shape[1:], where)),)
        if is_seekable(file) and file.num_bytes != layout.num_bytes:
            raise _wrong_size(layout, file.num_bytes, where)
    check_row_size(sum(a.layout.row_bytes for a in arrays), file, options.max_record_bytes)
    held = sum(a.layout.num_bytes for a in arrays if a.layout.is_fortran and not _can_seek(file, a))
    if held > _MAX_HELD_BYTES:
        raise UsageError(
            "the array is in Fortran order",
            where=where,
            why=f"so all its {format_size(held)} would have to be in memory at once",
            next_step="Save it in C order, with numpy.ascontiguousarray, or as a local .npy that is not compressed",
        )
    return arrays


def _list_archive(file: RawFile, options: SourceOptions) -> tuple[_StoredArray, ...]:
    where = place(file)
    if file.compression not in (None, "archive"):
        raise UsageError(f"an .npz inside {file.compression} is not read", where=where, next_step="Decompress it first")
    arrays = []
    with open_raw(file) as raw, open_archive(raw, file) as archive:
        for name, member in list_members(archive, file, options.max_expansion):
            stream = MemberStream(archive, member, file)
            layout = read_layout(stream, f"{where}, array {shown(name)}")
            columns = columns_of(name, layout.dtype, layout.shape[1:], where, names_fields=True)
            if layout.num_bytes != member.file_size:
                raise _wrong_size(layout, member.file_size, f"{where}, array {shown(name)}")
            arrays.append(_StoredArray(name, layout, columns, member))
    arrays = _own_arrays(arrays, file)
    if len({a.layout.num_rows for a in arrays}) > 1:
        lengths = [f"{shown(a.name)} has {a.layout.num_rows:,}" for a in arrays]
        more = f" and {len(lengths) - _NAMED_ARRAYS} more" if len(lengths) > _NAMED_ARRAYS else ""
        raise UsageError(
            "the arrays have different lengths",
            where=where,
            why=", ".join(lengths[:_NAMED_ARRAYS]) + more,
            next_step="Save the arrays of each length in a separate file: each array becomes a column",
        )
    names = [c.name for a in arrays for c in a.columns]
    if repeated := next((n for n in names if names.count(n) > 1), None):
        raise UsageError(
            f"column {shown(repeated)} appears {names.count(repeated)} times",
            where=where,
            next_step="Give each array another name when it is saved",
        )
    return tuple(arrays)


def _own_arrays(arrays: list[_StoredArray], file: RawFile) -> list[_StoredArray]:
    found = arrays_by_split({array.name: array.layout.shape for array in arrays})
    if not found:
        return arrays
    by_name = {array.name: array for array in arrays}
    own = [(column, by_name[name]) for column, name in found[split_of_part(file)].items()]
    return [
        array._replace(
            columns=columns_of(column, array.layout.dtype, array.layout.shape[1:], place(file), names_fields=True)
        )
        for column, array in own
    ]


def _open_readers(stack: ExitStack, file: RawFile, arrays: tuple[_StoredArray, ...], start: int) -> list[RowReader]:
    where = place(file)
    if arrays[0].member is not None:
        archive = stack.enter_context(open_archive(stack.enter_context(open_raw(file)), file))
        return [_member_reader(archive, a, file) for a in arrays]
    (array,) = arrays
    layout = array.layout
    if layout.is_fortran and _can_seek(file, array):
        return [GatheredRows(stack.enter_context(open_raw(file)), layout, start, where)]
    first_byte = layout.data_start + (0 if layout.is_fortran else start * layout.row_bytes)
    stream = stack.enter_context(open_stream(file, first_byte, is_read_through=True))
    return [HeldRows(stream, layout, where) if layout.is_fortran else OrderedRows(stream, layout, where)]


def _member_reader(archive: zipfile.ZipFile, array: _StoredArray, file: RawFile) -> RowReader:
    where = f"{place(file)}, array {shown(array.name)}"
    stream = MemberStream(archive, cast(zipfile.ZipInfo, array.member), file)
    read_exactly(stream, array.layout.data_start)
    return (
        HeldRows(stream, array.layout, where) if array.layout.is_fortran else OrderedRows(stream, array.layout, where)
    )


def _can_seek(file: RawFile, array: _StoredArray) -> bool:
    # Columns are far apart, which is many requests where each has its price.
    return array.member is None and is_seekable(file) and (storage.is_local(file.path) or not array.layout.is_fortran)


def _wrong_size(layout: ArrayLayout, num_bytes: int, where: str) -> DamagedFileError:
    is_short = num_bytes < layout.num_bytes
    return DamagedFileError(
        "the array is cut off" if is_short else "bytes follow the array",
        where=where,
        why=f"its header says {layout.num_bytes:,} bytes, it has {num_bytes:,}",
    )


def _stem(name: str) -> str:
    base = name.rpartition("/")[2]
    found = _NAME.search(base)
    return base[: found.start() + 1] if found else base


def parts_by_split(file: RawFile) -> tuple[RawFile, ...]:
    """Returns a part of an .npz for each split that the names of its arrays tell; see `arrays_by_split`.

    Args:
        file: Ends in `.npz`. Reading finds what is wrong with it.
    """
    try:
        with open_raw(file) as raw, open_archive(raw, file) as archive:
            members = list_members(archive, file, file.max_expansion)
            if any(split_in_name(name) is None for name, _ in members):
                return ()
            layouts = {name: read_layout(MemberStream(archive, member, file), file.name) for name, member in members}
    except (BadInputError, UsageError):
        return ()
    found = arrays_by_split({name: layout.shape for name, layout in layouts.items()})
    return tuple(msgspec.structs.replace(file, name=f"{split}{_SUFFIX}", split=split) for split in found)


def arrays_by_split(shapes: Mapping[str, Sequence[int]]) -> dict[str, dict[str, str]]:
    """Returns the arrays of each split by the names of their columns, which lack the word that tells the split.

    There are none unless the arrays of each split are a table, all with the same columns. Single values of one number
    of rows, such as `train_loss` and `val_loss`, are one table.

    Args:
        shapes: Of each array, by its name.
    """
    found: dict[str, dict[str, str]] = {}
    for name in shapes:
        named = split_in_name(name)
        if named is None or (column := _column(name)) in found.setdefault(named.split, {}):
            return {}
        found[named.split][column] = name
    lengths = [{shapes[name][0] for name in arrays.values()} for arrays in found.values()]
    is_one_table = len(set().union(*lengths)) < 2 and all(len(shape) == 1 for shape in shapes.values())
    columns = {frozenset(arrays) for arrays in found.values()}
    if len(found) < 2 or len(columns) > 1 or any(len(own) > 1 for own in lengths) or is_one_table:
        return {}
    return {split: found[split] for split in in_order(found)}


def split_of_part(file: RawFile) -> str:
    """Returns the split whose arrays a part is; options may put its rows into another one."""
    return file.name.rpartition("/")[2].removesuffix(_SUFFIX)


def _column(name: str) -> str:
    return "_".join(word for word in _WORDS.findall(name) if split_in_name(word) is None) or "values"
