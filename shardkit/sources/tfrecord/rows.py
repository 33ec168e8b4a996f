"""Blocks of records to batches of exactly the features' types, and the records that do not fit."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.encoding.decoder import RAW_KINDS, STORED_TYPES, stored_column
from shardkit.encoding.kernel import Int64s, decode
from shardkit.encoding.kernel_reference import ANY_NUMBER, BYTES, FLOAT, INT64, UINT8, Spec
from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema, make_feature, stored_as
from shardkit.messages import shown
from shardkit.sources.columns.halving import parse_parts
from shardkit.sources.columns.row_casting import cast_rows
from shardkit.sources.tfrecord.blocks import RecordBlock
from shardkit.sources.tfrecord.columns import bad_texts, filled_rows
from shardkit.sources.tfrecord.feature_shapes import MAX_FEATURES, FileShape
from shardkit.sources.tfrecord.messages import (
    KIND_NAMES,
    NotExampleError,
    Record,
    StoredSteps,
    are_plain_examples,
    kind_of,
    parse,
    parse_lists,
)
from shardkit.units import MiB, format_size

_DEFAULT_KINDS = {"int64_list": INT64, "float_list": FLOAT, "bytes_list": BYTES, "little_endian_bytes": FLOAT}
_MAX_FIXED_BYTES = 64 * MiB
_UNEXPECTED = "no record that the features were inferred from has it"


class DecodedBlock(NamedTuple):
    """The rows of a block.

    Attributes:
        rows: Position of each in the block.
        num_rounded: By column, values that a narrower float could not hold.
        bad_values: Position and reason of those that do not fit, ascending.
    """

    batch: pa.RecordBatch
    rows: Int64s
    num_rounded: Mapping[str, int]
    bad_values: list[tuple[int, str]]


def whole_records(block: RecordBlock, rows: Int64s, max_bytes: int, bad_values: dict[int, str]) -> Int64s:
    """Returns those of some records that are neither damaged nor too long.

    Args:
        max_bytes: Longer records are too long.
        bad_values: Takes position and reason of the others.
    """
    is_long = block.lengths[rows] > max_bytes
    for row in rows[is_long].tolist():
        size, limit = format_size(int(block.lengths[row])), format_size(max_bytes)
        bad_values[row] = f"its {size} are more than the {limit} that a record may have"
    is_damaged = block.is_damaged[rows] & ~is_long
    for row in rows[is_damaged].tolist():
        bad_values[row] = "it is damaged, its CRC32C does not match"
    return rows[~(is_long | is_damaged)]


class _Plan(NamedTuple):
    """How one feature comes out of the records.

    Attributes:
        spec: What the kernel decodes; of a feature list, what its values are.
        step_values: Values in every step of a feature list; None if it is none.
    """

    feature: Feature
    spec: Spec
    step_values: int | None

    @property
    def stored_type(self) -> pa.DataType:
        """The Arrow type of one stored value."""
        return self.feature.value_type if self.spec.kind == UINT8 else STORED_TYPES[self.spec.kind]


class BlockDecoder:
    """Decodes the blocks of one file.

    Args:
        shape: What the head of the file holds: features may be declared as something else than they are stored as.
        max_record_bytes: Longer records do not fit.
    """

    def __init__(self, features: Features, shape: FileShape, max_record_bytes: int) -> None:
        self._features = features
        self._schema = arrow_schema(features)
        self._is_sequence = shape.is_sequence
        self._max_record_bytes = max_record_bytes
        self._plans = [_plan(f, shape) for f in features]
        self._context = [p for p in self._plans if p.step_values is None]
        self._lists = {p.feature.name: p for p in self._plans if p.step_values is not None}
        self._may_be_empty = not any(p.spec.is_required for p in self._plans)
        row_bytes = sum(8 * p.spec.num_values for p in self._context if p.spec.num_values > 1)
        self._kindless = set(shape.kindless) - {f.name for f in features}
        self._max_rows = max(1, _MAX_FIXED_BYTES // max(1, row_bytes))

    def decode(self, block: RecordBlock) -> Iterator[DecodedBlock]:
        """Yields the rows of a block in order, in one piece unless nulls would take up much room."""
        for start in range(0, len(block.starts), self._max_rows):
            rows = np.arange(start, min(start + self._max_rows, len(block.starts)), dtype=np.int64)
            decode_some = functools.partial(self._decode_rows, block, rows)
            for first, _, found in parse_parts(decode_some, len(rows), OverflowError):
                if isinstance(found, OverflowError):
                    found = self._decode_rows(block, rows, 0, 0)
                    found.bad_values.append((int(rows[first]), "it holds more values than Arrow can count"))
                yield found

    def _decode_rows(self, block: RecordBlock, rows: Int64s, start: int, stop: int) -> DecodedBlock:
        bad_values: dict[int, str] = {}
        good = self._usable(block, rows[start:stop], bad_values)
        arrays, good = self._decode_good(block, good, bad_values)
        batch, good, rounded = self._fit(arrays, good, bad_values)
        return DecodedBlock(batch, good, rounded, sorted(bad_values.items()))

    def _usable(self, block: RecordBlock, rows: Int64s, bad_values: dict[int, str]) -> Int64s:
        # Records that are whole, not too long, and of the kind of message that the file holds.
        rows = whole_records(block, rows, self._max_record_bytes, bad_values)
        is_odd = ~are_plain_examples(np.frombuffer(block.data, np.uint8), block.starts[rows], block.lengths[rows])
        for row in rows[is_odd].tolist():
            try:
                if kind_of(block.record(row)) == "sequence" and not self._is_sequence:
                    bad_values[row] = "it is a SequenceExample, while the head of the file holds Examples"
            except NotExampleError as error:
                bad_values[row] = f"it {error}"
        return rows if not is_odd.any() else _without(rows, bad_values)

    def _decode_good(
        self, block: RecordBlock, rows: Int64s, bad_values: dict[int, str]
    ) -> tuple[dict[str, pa.Array], Int64s]:
        columns = self._decode_columns(block, rows, bad_values)
        arrays = {
            p.feature.name: stored_column(
                column, len(rows), p.stored_type, p.spec.num_values, is_scalar=p.feature.is_scalar
            )
            for p, column in zip(self._context, columns, strict=False)
        }
        if self._may_be_empty:
            self._refuse_foreign(block, rows, arrays, bad_values)
        if self._is_sequence:
            steps = self._steps(block, rows, bad_values)
            arrays |= {
                p.feature.name: _list_column([row.get(name) for row in steps], p) for name, p in self._lists.items()
            }
        for plan in self._plans:
            if plan.feature.dtype != "bytes" and plan.spec.kind == BYTES:
                self._refuse_other_texts(arrays[plan.feature.name], plan.feature, rows, bad_values)
        keep = np.array([row not in bad_values for row in rows.tolist()], np.bool_) if bad_values else None
        if keep is not None and not keep.all():
            arrays = {name: array.filter(pa.array(keep)) for name, array in arrays.items()}
            rows = rows[keep]
        return arrays, rows

    def _decode_columns(self, block: RecordBlock, rows: Int64s, bad_values: dict[int, str]) -> list[tuple[Any, ...]]:
        starts, lengths = block.starts[rows], block.lengths[rows]
        while True:
            specs = [p.spec for p in self._context]
            specs += [Spec(name.encode(), INT64, ANY_NUMBER, False) for name in sorted(self._kindless)]
            columns, problems = decode(block.data, starts, lengths, specs, refuse_others=True)
            for column in columns[len(self._context) :]:
                problems = np.union1d(problems, filled_rows(column, len(rows)))
            num_kindless = len(self._kindless)
            for row in rows[problems].tolist():
                problem = self._problem_of(block.record(row))
                if problem is not None:
                    bad_values[row] = problem
            if len(self._kindless) == num_kindless:
                return columns

    def _refuse_foreign(
        self, block: RecordBlock, rows: Int64s, arrays: dict[str, pa.Array], bad_values: dict[int, str]
    ) -> None:
        # Protobuf reads nearly any message as one without features.
        is_empty = np.ones(len(rows), np.bool_)
        for array in arrays.values():
            if not is_empty.any():
                return
            is_empty &= array.is_null().to_numpy(zero_copy_only=False)
        for row in rows[is_empty].tolist():
            try:
                parse(block.record(row))
            except NotExampleError as error:
                bad_values.setdefault(row, f"it {error}")

    def _steps(self, block: RecordBlock, rows: Int64s, bad_values: dict[int, str]) -> list[Mapping[str, StoredSteps]]:
        found: list[Mapping[str, StoredSteps]] = []
        for row in rows.tolist():
            lists: Mapping[str, StoredSteps] = {}
            if row not in bad_values:
                try:
                    lists = parse_lists(block.record(row))
                    problem = self._list_problem(lists)
                except NotExampleError as error:
                    problem = f"it {error}"
                if problem is not None:
                    bad_values[row], lists = problem, {}
            found.append(lists)
        return found

    def _list_problem(self, lists: Mapping[str, StoredSteps]) -> str | None:
        for name, plan in self._lists.items():
            steps = lists.get(name)
            if steps is None and plan.spec.is_required:
                return f"the feature list {shown(name)} is absent"
            if steps is None or steps.kind is None:
                continue
            if steps.kind != plan.spec.kind:
                return _wrong(name, f"{KIND_NAMES[plan.spec.kind]} values", f"{KIND_NAMES[steps.kind]} values")
            odd = set(steps.sizes) - {plan.step_values}
            if odd:
                return _wrong(name, f"{plan.step_values} values a step", f"{min(odd)}")
        unknown = next((n for n, steps in lists.items() if steps.sizes and n not in self._lists), None)
        return None if unknown is None else f"the feature list {shown(unknown)} is no column: {_UNEXPECTED}"

    def _refuse_other_texts(self, array: pa.Array, feature: Feature, rows: Int64s, bad_values: dict[int, str]) -> None:
        values = array if feature.is_scalar else array.flatten()
        bad = bad_texts(values)
        if not len(bad):
            return
        positions = bad
        if not feature.is_scalar:
            lengths = np.asarray(array.value_lengths().fill_null(0)) if feature.num_values is None else None
            if lengths is None:
                lengths = np.where(np.asarray(array.is_valid()), feature.num_values or 0, 0)
            positions = np.searchsorted(np.cumsum(lengths), bad, side="right")
        for position, value in zip(positions.tolist(), bad.tolist(), strict=True):
            got = f"{shown(values[value].as_py())}, which is not UTF-8"
            bad_values.setdefault(int(rows[position]), _wrong(feature.name, feature.describe_type(), got))

    def _fit(
        self, arrays: dict[str, pa.Array], rows: Int64s, bad_values: dict[int, str]
    ) -> tuple[pa.RecordBatch, Int64s, Mapping[str, int]]:
        columns = {f.name: _as_text(arrays[f.name], f) for f in self._features}
        if all(columns[f.name].type == f.arrow_type for f in self._features):
            return pa.RecordBatch.from_arrays(list(columns.values()), schema=self._schema), rows, {}

        def take(start: int, stop: int) -> dict[str, pa.Array]:
            return {name: column.slice(start, stop - start) for name, column in columns.items()}

        # Only what a schema file declares can fail here.
        try:
            found = cast_rows(take, len(rows), self._features, tolerates_bad_rows=True)
        except UsageError as error:
            error.next_step = error.next_step or "Declare another type in the --schema file"
            raise
        for position, bad in found.bad_values:
            bad_values[int(rows[position])] = _wrong(bad.column, bad.expected, bad.got)
        return found.batch, rows[found.kept], found.num_rounded

    def _problem_of(self, raw: bytes) -> str | None:
        # Returns None if the only fault is a name without a kind, which is known from now on.
        try:
            record = parse(raw)
        except NotExampleError as error:
            return f"it {error}"
        problem = next((p for p in (_problem(plan, record) for plan in self._context) if p is not None), None)
        if problem is not None:
            return problem
        known = {p.feature.name for p in self._context}
        unknown = sorted(record.features.keys() - known)
        if unknown:
            return f"feature {shown(unknown[0])} is no column: {_UNEXPECTED}"
        kindless = record.kindless - known - self._kindless
        if not kindless or len(self._kindless) > MAX_FEATURES:
            return "it has too many features without a kind"
        self._kindless |= kindless
        return None


def _plan(feature: Feature, shape: FileShape) -> _Plan:
    default = _DEFAULT_KINDS[stored_as(feature.dtype)]
    if shape.is_sequence and feature.name not in shape.features and feature.shape == (None,):
        seen = shape.lists.get(feature.name)
        kind, step_values = (seen.kind, seen.most) if seen is not None else (default, 1)
        spec = Spec(feature.name.encode(), kind, ANY_NUMBER, not feature.nullable)
        return _Plan(feature, spec, step_values)
    found = shape.features.get(feature.name)
    kind = default if found is None else found.kind
    if kind == BYTES and feature.stored_as == "little_endian_bytes":
        kind = RAW_KINDS[feature.dtype]
    num_values = ANY_NUMBER if feature.num_values is None else feature.num_values
    return _Plan(feature, Spec(feature.name.encode(), kind, num_values, not feature.nullable), None)


def _problem(plan: _Plan, record: Record) -> str | None:
    name, spec = plan.feature.name, plan.spec
    stored = record.features.get(name)
    if stored is None:
        return f"feature {shown(name)} is absent" if spec.is_required else None
    is_raw = spec.kind in RAW_KINDS.values()
    kind = BYTES if is_raw else spec.kind
    if stored.kind != kind:
        return _wrong(name, f"{KIND_NAMES[kind]} values", f"{KIND_NAMES[stored.kind]} values")
    num_values = len(stored.values)
    if is_raw:
        sizes, width = [len(v) for v in stored.values], plan.stored_type.byte_width
        if len(sizes) != 1 or sizes[0] % width:
            return _wrong(name, f"{plan.feature.dtype} values as little-endian bytes", f"values of {sizes[:3]} bytes")
        num_values = sizes[0] // width
    if spec.num_values not in (ANY_NUMBER, num_values):
        return _wrong(name, plan.feature.describe_type(), f"{num_values} values")
    return None


def _wrong(name: str, expected: str, got: str) -> str:
    return f"feature {shown(name)} does not fit: expected {expected}, got {got}"


def _list_column(rows: list[StoredSteps | None], plan: _Plan) -> pa.Array:
    # The values of all steps, one step after the other.
    values: list[int | bytes] = []
    offsets = np.zeros(len(rows) + 1, np.int64)
    for position, steps in enumerate(rows):
        if steps is not None:
            values += steps.values
        offsets[position + 1] = len(values)
    if plan.spec.kind == BYTES:
        flat = pa.array(values, pa.binary())
    elif plan.spec.kind == FLOAT:
        flat = pa.array(np.array(values, np.uint32).view(np.float32))
    else:
        flat = pa.array(values, pa.int64())
    mask = pa.array([steps is None for steps in rows], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=mask if any(mask.to_pylist()) else None)


def _as_text(array: pa.Array, feature: Feature) -> pa.Array:
    # Bytes that are not to stay bytes were checked to be UTF-8.
    if array.type == feature.arrow_type or not pa.types.is_binary(_values_type(array)):
        return array
    text = make_feature(feature.name, "string", feature.shape, nullable=feature.nullable)
    return array.view(text.arrow_type)


def _values_type(array: pa.Array) -> pa.DataType:
    return (
        array.type
        if pa.types.is_primitive(array.type) or not hasattr(array.type, "value_type")
        else array.type.value_type
    )


def _without(rows: Int64s, bad_values: dict[int, str]) -> Int64s:
    is_good: npt.NDArray[np.bool_] = np.array([row not in bad_values for row in rows.tolist()], np.bool_)
    return rows[is_good]
