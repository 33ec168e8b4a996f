"""Which features the records of a file hold: gathered by the kernel, record by record only where it meets a new one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.encoding.decoder import STORED_TYPES, stored_column
from shardkit.encoding.kernel import Int64s, decode
from shardkit.encoding.kernel_reference import ANY_NUMBER, BYTES, INT64, Spec
from shardkit.errors import BadInputError, UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.file_types import image_type_of
from shardkit.messages import shown
from shardkit.sources.tfrecord.blocks import RecordBlock
from shardkit.sources.tfrecord.columns import bad_texts, present_rows
from shardkit.sources.tfrecord.messages import KIND_NAMES, NotExampleError, Record, are_plain_examples, kind_of, parse

MAX_FEATURES = 10_000
"""Different names that the records of a file may have."""

_PARSED_AT_ONCE = 256
_MAX_SEQUENCES = 1_000
_HEAD_BYTES = 16
_CONTROLS = np.array([i < 32 and chr(i) not in "\t\n\r\f\x1b" for i in range(256)])


class Seen(msgspec.Struct):
    """What one feature has held so far.

    Attributes:
        kind: BYTES, FLOAT or INT64.
        least, most: Values in a record, or in a step of a feature list.
        is_text: Whether all bytes values are UTF-8 without control characters.
        media_types: What image formats the bytes values are; None for others.
        num_values: Bytes values looked at.
    """

    kind: int
    num_present: int = 0
    least: int | None = None
    most: int = 0
    is_text: bool = True
    media_types: set[str | None] = set()
    num_values: int = 0

    def describe(self) -> str:
        """Returns the kind in words."""
        return KIND_NAMES[self.kind]

    def united(self, other: Seen) -> Seen:
        """Returns both together."""
        leasts = [s.least for s in (self, other) if s.least is not None]
        return Seen(
            kind=self.kind,
            num_present=self.num_present + other.num_present,
            least=min(leasts, default=None),
            most=max(self.most, other.most),
            is_text=self.is_text and other.is_text,
            media_types=self.media_types | other.media_types,
            num_values=self.num_values + other.num_values,
        )

    def note_sizes(self, sizes: npt.NDArray[np.int64]) -> None:
        """Takes in how many values records or steps hold."""
        if len(sizes):
            least = int(sizes.min())
            self.least = least if self.least is None else min(self.least, least)
            self.most = max(self.most, int(sizes.max()))

    def note_bytes(self, values: pa.Array) -> None:
        """Takes in bytes values."""
        if not len(values):
            return
        self.num_values += len(values)
        if self.is_text:
            content = values.buffers()[2]
            data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
            self.is_text = not _CONTROLS[data].any() and not len(bad_texts(values))
        if None not in self.media_types:
            for value in values:
                found = image_type_of(value.as_buffer().to_pybytes()[:_HEAD_BYTES])
                self.media_types.add(found)
                if found is None:
                    break


class FileShape(msgspec.Struct):
    """What the records of one file that were looked at hold.

    Attributes:
        is_sequence: Whether any is a SequenceExample with feature lists.
        features: By name; of a SequenceExample those of the context.
        lists: Feature lists by name, those that had a step.
        list_counts: Records that have each feature list, with or without steps.
        kindless: Names of features that had a kind in no record.
        num_looked_into: Records whose feature lists were looked at.
    """

    name: str
    num_records: int = 0
    is_sequence: bool = False
    features: dict[str, Seen] = {}
    lists: dict[str, Seen] = {}
    list_counts: dict[str, int] = {}
    kindless: set[str] = set()
    num_looked_into: int = 0


def observe(block: RecordBlock, shape: FileShape) -> list[tuple[int, str]]:
    """Takes in the whole records of a block.

    Returns:
        Row and reason of every record that is no Example, or holds values of another kind than those before.

    Raises:
        UsageError: If there are too many features.
    """
    bad: dict[int, str] = {
        int(row): "is damaged, its CRC32C does not match" for row in np.flatnonzero(block.is_damaged)
    }
    rows = np.flatnonzero(~block.is_damaged)
    data = np.frombuffer(block.data, np.uint8)
    odd = rows[~are_plain_examples(data, block.starts[rows], block.lengths[rows])]
    sequences = []
    for row in odd.tolist():
        try:
            if kind_of(block.record(row)) == "sequence":
                shape.is_sequence = True
                sequences.append(row)
        except NotExampleError as error:
            bad[row] = str(error)
    shape.num_looked_into += len(rows) - len(odd) + len(sequences[:_MAX_SEQUENCES])
    for row in sequences[:_MAX_SEQUENCES]:
        try:
            _note_lists(parse(block.record(row)), shape)
        except NotExampleError as error:
            bad[row] = str(error)
    rows = np.array([row for row in rows.tolist() if row not in bad], np.int64)
    _note_features(block, rows, shape, bad)
    return sorted(bad.items())


def _note_features(block: RecordBlock, rows: Int64s, shape: FileShape, bad: dict[int, str]) -> None:
    # Mostly the first record names all features, so that the kernel reads the rest alone.
    num_parsed = 1
    while len(rows):
        specs = [Spec(name.encode(), seen.kind, ANY_NUMBER, False) for name, seen in shape.features.items()]
        specs += [Spec(name.encode(), INT64, ANY_NUMBER, False) for name in sorted(shape.kindless)]
        starts, lengths = block.starts[rows], block.lengths[rows]
        columns, problems = decode(block.data, starts, lengths, specs, refuse_others=True)
        # A name without a kind so far has got one.
        for column in columns[len(shape.features) :]:
            problems = np.union1d(problems, present_rows(column, len(rows)))
        if not len(problems):
            shape.num_records += len(rows)
            for seen, column in zip(shape.features.values(), columns, strict=False):
                type_ = STORED_TYPES[seen.kind]
                _note_column(seen, stored_column(column, len(rows), type_, ANY_NUMBER, is_scalar=False))
            return
        before = len(shape.features), len(shape.kindless), len(bad)
        for row in rows[problems[:num_parsed]].tolist():
            try:
                _learn(parse(block.record(row)), shape)
            except NotExampleError as error:
                bad[row] = str(error)
        if before == (len(shape.features), len(shape.kindless), len(bad)):
            raise BadInputError("a record cannot be decoded", where=shape.name)
        num_parsed = min(2 * num_parsed, _PARSED_AT_ONCE)
        rows = np.array([row for row in rows.tolist() if row not in bad], np.int64)


def _learn(record: Record, shape: FileShape) -> None:
    for name, stored in record.features.items():
        seen = shape.features.setdefault(name, Seen(stored.kind))
        if seen.kind != stored.kind:
            raise _two_kinds(name, seen, stored.kind)
    shape.kindless = (shape.kindless | record.kindless) - shape.features.keys()
    if len(shape.features) + len(shape.kindless) > MAX_FEATURES:
        raise UsageError(
            "the records have too many different features",
            where=shape.name,
            why=f"more than {MAX_FEATURES:,}",
            next_step="Store what has so many names as a list of names and a list of values",
        )


def _note_column(seen: Seen, lists: pa.Array) -> None:
    is_valid = lists.is_valid().to_numpy(zero_copy_only=False)
    seen.num_present += int(is_valid.sum())
    seen.note_sizes(np.diff(lists.offsets.to_numpy())[is_valid])
    if seen.kind == BYTES:
        seen.note_bytes(lists.values)


def _note_lists(record: Record, shape: FileShape) -> None:
    for name, steps in (record.lists or {}).items():
        shape.list_counts[name] = shape.list_counts.get(name, 0) + 1
        if steps.kind is None:
            continue
        seen = shape.lists.setdefault(name, Seen(steps.kind))
        if steps.kind != seen.kind:
            raise _two_kinds(name, seen, steps.kind)
        seen.note_sizes(np.array(steps.sizes, np.int64))
        if seen.kind == BYTES:
            seen.note_bytes(pa.array(steps.values, pa.binary()))


def _two_kinds(name: str, seen: Seen, kind: int) -> NotExampleError:
    return NotExampleError(f"has {KIND_NAMES[kind]} values in {shown(name)}, records before it have {seen.describe()}")


def check_alike(shapes: list[FileShape]) -> None:
    """Checks that a feature is of one kind in all files, and that files have features in common.

    Raises:
        UsageError: If not; shows what differs.
    """
    first = shapes[0]
    known: dict[str, tuple[FileShape, str]] = {}
    for shape in shapes:
        lines = []
        for name, described in described_features(shape).items():
            other, before = known.setdefault(name, (shape, described))
            if before != described:
                lines.append(f"{shown(name)} is {before} in {other.name} and {described} in {shape.name}")
        if lines:
            raise _different(first, shape, "; ".join(lines[:10]))
        here, there = described_features(shape), described_features(first)
        if here and there and not here.keys() & there.keys():
            why = f"{_names(there)} only in {first.name}; {_names(here)} only in {shape.name}"
            raise _different(first, shape, why)


def described_features(shape: FileShape) -> Mapping[str, str]:
    """Returns the kind of every feature of a file, in words."""
    context = {name: seen.describe() for name, seen in shape.features.items()}
    return context | {name: f"a feature list of {seen.describe()}" for name, seen in shape.lists.items()}


def _names(described: Mapping[str, str]) -> str:
    names = ", ".join(shown(n) for n in sorted(described)[:10])
    return f"{names}, ..." if len(described) > 10 else names


def _different(first: FileShape, other: FileShape, why: str) -> UsageError:
    return UsageError(
        f"{first.name} and {other.name} have different features",
        why=why,
        next_step="Convert them one by one",
    )


def features_of(shapes: list[FileShape]) -> Features:
    """Returns the features that hold the values of all files, by name.

    Raises:
        UsageError: If a feature list has steps of different sizes, or has the name of a feature of the context.
    """
    num_records = sum(s.num_records for s in shapes)
    context = _united([s.features for s in shapes])
    lists = _united([s.lists for s in shapes])
    shared = sorted(context.keys() & lists.keys())
    if shared:
        raise UsageError(
            f"{shown(shared[0])} is both a feature of the context and a feature list",
            why="the features of an example have different names",
            next_step="Rename one of them in the source",
        )
    looked_into = sum(s.num_looked_into for s in shapes)
    features = [_context_feature(name, seen, num_records) for name, seen in context.items()]
    for name, seen in lists.items():
        if seen.least != seen.most or not seen.most:
            raise UsageError(
                f"the feature list {shown(name)} has steps of different sizes",
                why=f"of {seen.least or 0} to {seen.most} values, which a list of one dimension cannot hold",
                next_step="Give all its steps the same number of values in the source",
            )
        count = sum(s.list_counts.get(name, 0) for s in shapes)
        features.append(_feature(name, seen, (None,), is_nullable=count < looked_into))
    return tuple(sorted(features, key=lambda f: f.name))


def never_filled(shapes: list[FileShape]) -> list[str]:
    """Returns the names of the features and feature lists that are there, but in no record with a value."""
    filled = {name for s in shapes for name in (*s.features, *s.lists)}
    return sorted({name for s in shapes for name in (*s.kindless, *s.list_counts)} - filled)


def _united(parts: list[dict[str, Seen]]) -> dict[str, Seen]:
    united: dict[str, Seen] = {}
    for part in parts:
        for name, seen in part.items():
            known = united.get(name)
            united[name] = seen if known is None else known.united(seen)
    return united


def _context_feature(name: str, seen: Seen, num_records: int) -> Feature:
    shape: tuple[int | None, ...] = (None,)
    if seen.least == seen.most and seen.most:
        shape = () if seen.most == 1 else (seen.most,)
    return _feature(name, seen, shape, is_nullable=seen.num_present < num_records)


def _feature(name: str, seen: Seen, shape: tuple[int | None, ...], *, is_nullable: bool) -> Feature:
    if seen.kind != BYTES:
        return make_feature(name, "int64" if seen.kind == INT64 else "float32", shape, nullable=is_nullable)
    media_type = None
    if seen.num_values and None not in seen.media_types:
        media_type = next(iter(seen.media_types)) if len(seen.media_types) == 1 else "image/*"
    dtype = "string" if seen.is_text and media_type is None else "bytes"
    return make_feature(name, dtype, shape, nullable=is_nullable, media_type=media_type)
