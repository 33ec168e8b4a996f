"""IDX, the format of the MNIST family: files of images and files of labels, which are one table where their names pair.

Source: http://yann.lecun.com/exdb/mnist/ (the IDX file format)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import msgspec
import numpy as np

from shardkit.errors import DamagedFileError, NoRowsError, UsageError
from shardkit.features import Features
from shardkit.file_types import COMPRESSED_PATTERN
from shardkit.messages import printable
from shardkit.sources.arrays.batches import ArrayRows, OpenArray, check_row_size, common_features, cut_rows
from shardkit.sources.arrays.columns import ArrayColumn, columns_of
from shardkit.sources.arrays.rows import ArrayLayout, OrderedRows, checked
from shardkit.sources.base import (
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    SourceSettings,
    choose_split_bytes,
    place,
)
from shardkit.sources.file_globs import glob_in_shell
from shardkit.sources.files.many_files import attempt
from shardkit.sources.files.streams import guard_unchanged, is_seekable, open_stream, read_exactly
from shardkit.sources.split_names import split_of
from shardkit.sources.split_words import words_beside_split

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAGIC_TYPES = tuple(bytes([code]) for code in _DTYPES)
_MAX_AXES = 8
_NAME = re.compile(rf"[-._]idx[1-9](-ubyte)?({COMPRESSED_PATTERN})?$", re.IGNORECASE)
_ROLE = re.compile(r"images|labels", re.IGNORECASE)
_LISTED = 8
_AXES = re.compile(r"idx[1-9]", re.IGNORECASE)


class _Table(NamedTuple):
    """Files that are one table: one alone, or images and labels.

    Attributes:
        indices: Of the files, in the order of the columns.
    """

    indices: tuple[int, ...]
    names: tuple[str, ...]


class _Member(NamedTuple):
    file: RawFile
    layout: ArrayLayout
    columns: tuple[ArrayColumn, ...]


@dataclass(frozen=True)
class IdxSource(SourceSettings):
    """The MNIST family."""

    format: str = "idx"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file begins as IDX does, or is called so."""
        is_magic = head[:2] == b"\0\0" and head[2:3] in _MAGIC_TYPES and len(head) >= 4 and 1 <= head[3] <= _MAX_AXES
        return is_magic or _NAME.search(name) is not None

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns `image` and `label` for files that are paired, `values` for others.

        Raises:
            UsageError: If files have different columns, or values that no example can hold, or the images and labels
                of several data sets are beside each other.
            BadInputError: If paired files count different rows, no file can be used, or a row is too large.
            DamagedFileError: If a file is damaged; where bad rows are tolerated, only if all are.
        """
        tables = _tables_of(files)
        if not tables:
            raise NoRowsError(why="all input files are empty")
        _check_one_family(tables, files)
        found = ((files[table.indices[0]], attempt(_members_of, table, files, options)) for table in tables)
        listed = (
            (f, m if isinstance(m, DamagedFileError) else [c for one in m for c in one.columns]) for f, m in found
        )
        return common_features(listed, options)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns which files were paired."""
        return tuple(
            f"{printable(files[t.indices[0]].name)} and {printable(files[t.indices[1]].name)} are read as one table"
            for t in _tables_of(files)
            if len(t.indices) > 1
        )

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts stored files between rows; a table of compressed ones is one split."""
        splits: list[InputSplit] = []
        for table in _tables_of(files):
            chosen = [files[i] for i in table.indices]
            whole = InputSplit(
                index=0,
                file_start=min(table.indices),
                file_stop=max(table.indices) + 1,
                num_bytes=sum(f.num_bytes for f in chosen),
            )
            members = attempt(_members_of, table, files, options)
            # Reading finds the damage again, and the options for bad input decide there.
            parts = [whole] if isinstance(members, DamagedFileError) else self._cut(whole, members)
            splits += [msgspec.structs.replace(p, index=len(splits) + n) for n, p in enumerate(parts)]
        return splits

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split, counted in the file of the images.

        Raises:
            DamagedFileError: If a file is longer or shorter than its header says.
        """
        table = next(t for t in _tables_of(files) if min(t.indices) == split.file_start)
        with ExitStack() as stack:
            for index in table.indices:
                stack.enter_context(guard_unchanged(files[index]))
            members = _members_of(table, files, options)
            arrays = [OpenArray(m.columns, m.layout, _open_rows(stack, m, split.start)) for m in members]
            yield from ArrayRows(arrays, features, split, members[0].file, options).read(self.batch_bytes)

    def _cut(self, whole: InputSplit, members: tuple[_Member, ...]) -> list[InputSplit]:
        num_rows = members[0].layout.num_rows
        if not num_rows:
            return []
        if not all(is_seekable(m.file) for m in members):
            return [whole]
        row_bytes = sum(m.layout.row_bytes for m in members)
        return cut_rows(whole, num_rows, row_bytes, self.split_bytes or choose_split_bytes(members[0].file.num_bytes))


def read_layout(file: RawFile) -> ArrayLayout:
    """Returns the layout of the array in a file.

    Raises:
        DamagedFileError: If the header is damaged, or the file is not as long as it says.
    """
    with open_stream(file) as stream:
        magic = read_exactly(stream, 4)
        is_magic = len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in _DTYPES and 1 <= magic[3] <= _MAX_AXES
        sizes = read_exactly(stream, 4 * magic[3]) if is_magic else b""
    if not is_magic:
        raise DamagedFileError("the file is no IDX file", where=place(file), why=f"it begins with {magic!r}")
    if len(sizes) < 4 * magic[3]:
        raise DamagedFileError("the IDX file is cut off", where=place(file), why="it ends in the header")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    layout = checked(ArrayLayout(np.dtype(_DTYPES[magic[2]]), shape, False, 4 + len(sizes)), place(file))
    if is_seekable(file) and file.num_bytes != layout.num_bytes:
        what = "is cut off" if file.num_bytes < layout.num_bytes else "is longer than its header says"
        why = f"expected {layout.num_bytes:,} bytes for the shape {list(shape)}, got {file.num_bytes:,}"
        raise DamagedFileError(f"the IDX file {what}", where=place(file), why=why)
    return layout


def _tables_of(files: tuple[RawFile, ...]) -> list[_Table]:
    # In the order of their first files.
    pairs: dict[str, dict[str, list[int]]] = {}
    filled = [index for index, file in enumerate(files) if file.num_bytes]
    for index in filled:
        if found := _role_of(files[index].name):
            pairs.setdefault(found[0], {}).setdefault(found[1], []).append(index)
    tables: list[_Table] = []
    paired: set[int] = set()
    for roles in pairs.values():
        images, labels = roles.get("images", []), roles.get("labels", [])
        if len(images) == len(labels) == 1:
            tables.append(_Table((images[0], labels[0]), ("image", "label")))
            paired.update((images[0], labels[0]))
    tables += [_Table((index,), ("values",)) for index in filled if index not in paired]
    return sorted(tables, key=lambda t: min(t.indices))


def _check_one_family(tables: list[_Table], files: tuple[RawFile, ...]) -> None:
    """Checks that the pairs of one split are called alike but for numbers, as parts of one data set are."""
    pairs = [files[table.indices[0]] for table in tables if len(table.indices) > 1]
    by_split: dict[str | None, dict[tuple[str, ...], RawFile]] = {}
    for file in pairs:
        by_split.setdefault(split_of(file), {}).setdefault(_family_of(file), file)
    several = max(by_split.values(), key=len, default={})
    if len(several) > 1:
        globs = [f"--include {glob_in_shell(_glob_of(family, pairs))}" for family in sorted(several)]
        raise UsageError(
            "images and labels of several data sets lie beside each other",
            why=f"such as {' and '.join(printable(file.name) for file in list(several.values())[:2])}",
            next_step=f"Take one of them, with {' or '.join(globs[:_LISTED])}",
        )


def _family_of(file: RawFile) -> tuple[str, ...]:
    return tuple(word.lower() for word in words_beside_split(_before_role(file.name)))


def _before_role(name: str) -> str:
    return _ROLE.split(name)[0]


def _glob_of(family: tuple[str, ...], pairs: list[RawFile]) -> str:
    names = [file.name for file in pairs if _family_of(file) == family]
    begins = [_before_role(name) for name in names]
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(min(begins), max(begins), strict=False))
    shared = re.sub(r"[^\W_]+$", "", "".join(letter for letter, _ in alike))
    # Where no beginning tells them, as of train-letters and train-digits, their words do.
    is_own = shared and not any(file.name.startswith(shared) for file in pairs if file.name not in names)
    return f"{shared}*" if is_own else f"*{'*'.join(words_beside_split(begins[0]))}*"


def _role_of(name: str) -> tuple[str, str] | None:
    # The name without its role, the number of axes and the compression, which pairs share; and the role.
    folder, slash, base = name.rpartition("/")
    found = list(_ROLE.finditer(base))
    if not found:
        return None
    role = found[-1]
    rest = re.sub(f"{COMPRESSED_PATTERN}$", "", base[: role.start()] + "*" + base[role.end() :], flags=re.IGNORECASE)
    return f"{folder}{slash}{_AXES.sub('idx', rest)}".lower(), role.group().lower()


def _members_of(table: _Table, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[_Member, ...]:
    members = []
    for index, name in zip(table.indices, table.names, strict=True):
        file = files[index]
        layout = read_layout(file)
        members.append(_Member(file, layout, columns_of(name, layout.dtype, layout.shape[1:], place(file))))
    counts = [m.layout.num_rows for m in members]
    if len(set(counts)) > 1:
        images, labels = (printable(m.file.name) for m in members)
        raise UsageError(
            f"{images} and {labels} do not go together",
            why=f"{images} has {counts[0]:,} rows, {labels} has {counts[1]:,}",
            next_step="Leave one of them out, or get both from one place",
        )
    check_row_size(sum(m.layout.row_bytes for m in members), members[0].file, options.max_record_bytes)
    return tuple(members)


def _open_rows(stack: ExitStack, member: _Member, start: int) -> OrderedRows:
    first_byte = member.layout.data_start + start * member.layout.row_bytes
    stream = stack.enter_context(open_stream(member.file, first_byte, is_read_through=True))
    return OrderedRows(stream, member.layout, place(member.file))
