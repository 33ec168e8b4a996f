"""Parsed columns to the inputs of a tabular model, and to labels, as parts of the input graph.

Numbers are standardised in float64, because float32 cannot tell two timestamps of one day apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch, load_split
from shardkit.dataset.open import Dataset
from shardkit.features import Feature, Features
from train.options.config import LabelSpec
from train.options.tabular_columns import (
    MAX_DEVIATIONS,
    MAX_VOCABULARY,
    NUM_SPECIAL,
    CategoryColumn,
    NumericColumn,
    TabularColumns,
    Value,
)

NUM_SCANNED_EXAMPLES = 1_000_000
_BATCH_SIZE = 4_096


class InputMaker(tf.Module):
    """A function that makes inputs, and its lookup tables. It is a module, so that a SavedModel holds the tables."""

    def __init__(
        self, function: Callable[[ParsedBatch], dict[str, tf.Tensor]], tables: Sequence[tf.lookup.StaticHashTable]
    ) -> None:
        super().__init__()
        self.tables = list(tables)
        self._function = function

    def __call__(self, batch: ParsedBatch) -> dict[str, tf.Tensor]:
        """Returns the inputs by name."""
        return self._function(batch)


def prepare_columns(columns: TabularColumns, features: Features) -> InputMaker:
    """Returns the function that makes the inputs of a tabular model.

    They are `numeric`, float32 `[n, num_numeric]`, and `categories`, int32 `[n, len(categories)]`, whose indices are
    counted on from column to column so that one embedding table holds all vocabularies. One without columns is
    left out.
    """
    by_name = {f.name: f for f in features}
    tables = [_lookup_table(c, by_name[c.name]) for c in columns.categories]

    def prepare(batch: ParsedBatch) -> dict[str, tf.Tensor]:
        inputs = {}
        if columns.numeric:
            parts = [part for c in columns.numeric for part in _numeric_parts(batch, c, by_name[c.name])]
            inputs["numeric"] = tf.concat(parts, axis=1)
        if columns.categories:
            indices, offset = [], 0
            for column, table in zip(columns.categories, tables, strict=True):
                indices.append(offset + _category_index(batch, column, table))
                offset += column.num_indices
            inputs["categories"] = tf.stack(indices, axis=1)
        return inputs

    return InputMaker(prepare, tables)


def label_reader(label: LabelSpec, feature: Feature) -> Callable[[ParsedBatch, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns the function that gives labels as a loss takes them, and bools that say which examples have one.

    It takes columns, and weights: rows of weight 0 may hold anything.
    """
    if label.task == "regression":
        return lambda batch, _: _numbers(batch, feature)
    is_text = feature.dtype == "string"
    keys = tf.constant([c if is_text else as_stored(c) for c in label.classes], tf.string if is_text else tf.int64)
    indices = tf.range(len(label.classes), dtype=tf.int32)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, indices), default_value=-1)

    def read(batch: ParsedBatch, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = batch.values[feature.name]
        index = table.lookup(values if is_text else tf.cast(values, tf.int64))
        is_there = batch.present.get(feature.name, tf.ones_like(index, tf.bool)) & (weights > 0)
        # All values that occur are classes, so another one means that the shards are not those of the manifest.
        check = tf.debugging.Assert(tf.reduce_all((index >= 0) | ~is_there), ["unknown label", values])
        with tf.control_dependencies([check]):
            return tf.maximum(index, 0), is_there

    return read


def _numeric_parts(batch: ParsedBatch, column: NumericColumn, feature: Feature) -> list[tf.Tensor]:
    values = tf.reshape(_as_doubles(batch.values[column.name]), [-1, column.width])
    is_there = tf.math.is_finite(values)
    if feature.nullable:
        is_there &= batch.present[column.name][:, tf.newaxis]
    standard = tf.where(is_there, (values - column.mean) / column.std, 0.0)
    parts = [tf.cast(tf.clip_by_value(standard, -MAX_DEVIATIONS, MAX_DEVIATIONS), tf.float32)]
    if column.can_be_absent:
        parts.append(1.0 - tf.cast(tf.reduce_all(is_there, axis=1, keepdims=True), tf.float32))
    return parts


def _lookup_table(column: CategoryColumn, feature: Feature) -> tf.lookup.StaticHashTable:
    dtype = tf.string if feature.dtype == "string" else tf.int64
    keys = tf.constant([v if dtype == tf.string else as_stored(v) for v in column.vocabulary], dtype)
    indices = tf.range(NUM_SPECIAL, column.num_indices, dtype=tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, indices), default_value=1)


def as_stored(value: Value) -> int:
    """Returns an integer or truth value as int64; uint64 beyond its range are stored as their two's complement."""
    number = int(value)
    return number - 2**64 if number >= 2**63 else number


def _category_index(batch: ParsedBatch, column: CategoryColumn, table: tf.lookup.StaticHashTable) -> tf.Tensor:
    values = batch.values[column.name]
    index = table.lookup(values if values.dtype == tf.string else tf.cast(values, tf.int64))
    present = batch.present.get(column.name)
    return index if present is None else tf.where(present, index, 0)


def _numbers(batch: ParsedBatch, feature: Feature) -> tuple[tf.Tensor, tf.Tensor]:
    values = tf.cast(_as_doubles(batch.values[feature.name]), tf.float32)
    is_there = tf.math.is_finite(values) & batch.present.get(feature.name, tf.ones_like(values, tf.bool))
    return tf.where(is_there, values, 0.0), is_there


def _as_doubles(values: tf.Tensor) -> tf.Tensor:
    if values.dtype == tf.string:
        # A decimal as text; an absent one is empty.
        return tf.strings.to_number(tf.where(tf.equal(values, ""), "nan", values), tf.float64)
    return tf.cast(values, tf.float64)


def scan_values(dataset: Dataset, split: str, features: Features) -> Mapping[str, Sequence[Value]]:
    """Returns the values of features in the first examples by name, most frequent first, ties by value."""
    counters = count_values(dataset, split, features, NUM_SCANNED_EXAMPLES)
    return {name: _ordered(counter) for name, counter in counters.items()}


def count_values(
    dataset: Dataset, split: str, features: Features, num_examples: int | None = None
) -> dict[str, Counter[Value]]:
    """Returns how often each value occurs, by name of the feature; absent values are not counted.

    Args:
        features: Strings, integers or truth values, one value an example.
        num_examples: How many examples to look at; None means all.
    """
    if not features:
        return {}
    batches = load_split(dataset, split, batch_size=_BATCH_SIZE, features=features, with_presence=True)
    if num_examples is not None:
        batches = batches.take(-(-num_examples // _BATCH_SIZE))
    counters: dict[str, Counter[Any]] = {f.name: Counter() for f in features}
    for values, present in batches.as_numpy_iterator():
        for name, counter in counters.items():
            column = values[name][present[name]] if name in present else values[name]
            counter.update(column.tolist())
    return {name: Counter({_as_text(v): n for v, n in counter.items()}) for name, counter in counters.items()}


def _ordered(counter: Counter[Value]) -> tuple[Value, ...]:
    order = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return tuple(value for value, _ in order[: MAX_VOCABULARY + 1])


def _as_text(value: Any) -> Value:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
