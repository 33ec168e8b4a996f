"""Batches by shardkit's own reader, prepared in a thread ahead of the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shardkit.adapters.tensorflow import Tensors, tensor_specs, to_tensors
from shardkit.adapters.tfdata import ParsedBatch, fold_in
from shardkit.features import Features
from shardkit.reading.batch import Batch as ReaderBatch
from shardkit.reading.split import Split
from shardkit.reading.splits import Splits as OpenSplits
from shardkit.runtime.threads import worker_threads
from train.input.preparation import Preparation, parsed_batch
from train.models.batch import Batch
from train.models.model_inputs import ModelBundle
from train.options.choices import Splits
from train.options.length_buckets import SplitBuckets
from train.options.step_plan import Position, TrainPlan

_NUM_AT_ONCE = 1_024


NUM_AHEAD = 2
# 16 photos of 115 KB: 0.2 ms, where a batch of 400 would keep the loop from its next step for 5 to 15.
_PIECE_BYTES = 2 << 20
_MASK = "mask"

T = TypeVar("T")


class Assignment(NamedTuple):
    """Which batches one worker reads."""

    splits: Splits
    plan: TrainPlan
    worker_index: int
    seed: int


class BatchInput(Protocol):
    """Where the batches of one worker come from."""

    @property
    def spec(self) -> Batch:
        """What a batch is made of."""
        ...

    def training(self, start: Position) -> Iterable[Batch]:
        """Returns the batches of all epochs from a position on."""
        ...

    def validation(self, first_step: int = 0) -> Iterable[Batch] | None:
        """Returns the batches of one pass from a step on, every example once, padding with weight 0.

        None without a split.
        """
        ...


class ReaderInput:
    """Reads the batches of one worker: `plan.worker_batch_size` examples a step.

    The workers' batches of a step, one behind the other, are the same whatever their number is.

    Args:
        buckets: By split: what its batches of similar length are made of. A split that is not there has batches of
            examples of any length.
    """

    def __init__(
        self,
        opened: OpenSplits,
        preparation: Preparation,
        assigned: Assignment,
        buckets: Mapping[str, SplitBuckets] | None = None,
    ) -> None:
        self._opened = opened
        self._preparation = preparation
        self._splits, self._plan, self._worker_index, self._seed = assigned
        self._buckets = buckets or {}
        self._prepare = {is_training: self._graph(is_training) for is_training in (True, False)}

    @property
    def spec(self) -> Batch:
        """What a batch is made of."""
        size = self._plan.worker_batch_size
        tensors = tensor_specs(self._preparation.features, size)
        weights, at = tf.TensorSpec([size], tf.float32), tf.TensorSpec([2], tf.int64)
        length = tf.TensorSpec([], tf.int32) if self._buckets else None
        graph = self._prepare[True].get_concrete_function(tensors, weights, at, length)
        spec: Batch = tf.nest.map_structure(tf.TensorSpec.from_tensor, graph.structured_outputs)
        return spec

    def training(self, start: Position) -> Iterator[Batch]:
        """Returns the batches of all epochs from a position on; the rows before it are not read."""
        return ahead(self._training(start), NUM_AHEAD)

    def validation(self, first_step: int = 0) -> _Pass | None:
        """Returns the batches of one pass from a step on, in the order of the shards; None without a split."""
        name = self._splits.validation
        return None if name is None else _Pass(lambda: self._validation(self._opened[name], first_step))

    def _training(self, start: Position) -> Iterator[Batch]:
        plan = self._plan
        name = self._splits.train
        reader = self._opened[name].batches(
            **self._settings(name), epoch=start.epoch, num_epochs=plan.num_epochs - start.epoch, seed=self._seed
        )
        reader.restore({**reader.state(), "epoch": start.epoch, "step": start.step})
        weights = tf.ones([plan.worker_batch_size])
        for step, batch in zip(count(start.epoch * plan.steps_per_epoch + start.step), reader, strict=False):
            at = tf.constant(plan.position(step), tf.int64)
            yield self._prepare[True](to_tensors(batch, _PIECE_BYTES), weights, at, _length(batch))

    def _validation(self, split: Split, first_step: int) -> Iterator[Batch]:
        size = self._plan.worker_batch_size
        reader = split.batches(**self._settings(split.name), shuffle=False, remainder="pad")
        reader.restore({**reader.state(), "step": first_step})
        for batch in reader:
            tensors = to_tensors(batch, _PIECE_BYTES)
            mask = tensors.pop(_MASK, None)
            weights = tf.ones([size]) if mask is None else tf.cast(mask, tf.float32)
            yield self._prepare[False](tensors, weights, tf.zeros([2], tf.int64), _length(batch))

    def _settings(self, split: str) -> dict[str, Any]:
        buckets = self._buckets.get(split)
        return {
            "buckets": None if buckets is None else buckets.request(self._plan.num_groups),
            "global_batch_size": self._plan.global_batch_size,
            "num_workers": self._plan.num_workers,
            "worker_index": self._worker_index,
            "num_lanes": self._plan.num_lanes,
            "features": [f.name for f in self._preparation.features],
            "decodes_text": False,
        }

    def _graph(self, is_training: bool) -> Any:
        prepared, size = self._preparation, self._plan.worker_batch_size
        first_row = self._worker_index * size

        @tf.function(reduce_retracing=True)
        def prepare(tensors: Tensors, weights: tf.Tensor, at: tf.Tensor, length: tf.Tensor | None) -> Batch:
            seeds = None
            if is_training:
                seed = fold_in(tf.stack([tf.constant(self._seed, tf.int64), at[0]]), at[1])
                rows = first_row + tf.range(size, dtype=tf.int64)
                seeds = tf.stack([seed[0] + rows, tf.fill([size], seed[1])], axis=1)
            batch = prepared.prepare(parsed_batch(tensors, prepared.features), weights, seeds)
            if prepared.images:
                batch = _decoded(prepared, batch, seeds, size)
            if length is not None:
                batch = batch._replace(inputs=bring_to_length(batch.inputs, length))
            return prepared.arrange(batch)

        return prepare


def _length(batch: ReaderBatch) -> tf.Tensor | None:
    return None if batch.pad_to is None else tf.constant(batch.pad_to, tf.int32)


def _decoded(prepared: Preparation, batch: Batch, seeds: tf.Tensor | None, size: int) -> Batch:
    encoded = {name: batch.inputs[name] for name in prepared.images}

    def decode(row: tf.Tensor) -> dict[str, tf.Tensor]:
        example = batch._replace(inputs={name: images[row] for name, images in encoded.items()})
        return prepared.decode(example, None if seeds is None else seeds[row]).inputs

    sample = tf.function(decode).get_concrete_function(tf.TensorSpec([], tf.int32)).structured_outputs
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, sample)
    decoded = tf.map_fn(decode, tf.range(size), fn_output_signature=specs, parallel_iterations=size)
    return batch._replace(inputs={**batch.inputs, **decoded})


class _Pass:
    """One pass over a split, each time it is iterated over."""

    def __init__(self, begin: Callable[[], Iterator[Batch]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Batch]:
        return ahead(self._begin(), NUM_AHEAD)


def ahead(items: Iterator[T], num_ahead: int) -> Iterator[T]:
    """Yields items that a thread makes, so many ahead. An error in making one is raised in its place."""
    end = object()
    with worker_threads(1, "shardkit-input") as thread:
        pending: deque[Future[Any]] = deque(thread.submit(next, items, end) for _ in range(num_ahead))
        while (item := pending.popleft().result()) is not end:
            pending.append(thread.submit(next, items, end))
            yield item


def read_lengths(split: Split, bundle: ModelBundle) -> npt.NDArray[np.int32]:
    """Returns the length of each example of a split for a model, in the stored order."""
    if bundle.lengths is None:
        raise ValueError("the examples of this model have no length")
    count = _counter(bundle.lengths, bundle.features)
    names = [f.name for f in bundle.features]
    batches = split.batches(
        global_batch_size=_NUM_AT_ONCE, shuffle=False, remainder="pad", features=names, decodes_text=False
    )
    found = [np.zeros(0, np.int32)]
    for batch in batches:
        tensors = to_tensors(batch)
        tensors.pop("mask", None)
        lengths = count(tensors).numpy()
        found.append(lengths if batch.mask is None else lengths[batch.mask])
    return np.concatenate(found)


def bring_to_length(inputs: dict[str, tf.Tensor], length: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns inputs `[n, rows, ...]` with so many rows. Rows that are cut off must be padding; added rows are 0."""

    def bring(values: tf.Tensor) -> tf.Tensor:
        if values.shape.rank < 2 or values.shape[1] is not None:
            return values
        cut = values[:, :length]
        padding = [[0, 0], [0, length - tf.shape(cut)[1]], *([0, 0] for _ in values.shape[2:])]
        return tf.ensure_shape(tf.pad(cut, padding), values.shape)

    return {name: bring(values) for name, values in inputs.items()}


def _counter(lengths: Callable[[ParsedBatch], tf.Tensor], features: Features) -> Callable[[Tensors], tf.Tensor]:
    @tf.function(input_signature=[tensor_specs(features, _NUM_AT_ONCE)])
    def count(tensors: Tensors) -> tf.Tensor:
        return tf.cast(lengths(parsed_batch(tensors, features)), tf.int32)

    return count
