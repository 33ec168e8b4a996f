"""Batches by stock tf.data: epochs in seeded order from any step on, and a validation pass without repetition."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from shardkit.adapters.tfdata import (
    ShardFiles,
    fold_in,
    parse_examples,
    read_records,
    reading_options,
    shard_files,
    shuffle_windows,
)
from shardkit.dataset.open import Dataset
from train.input.preparation import Preparation
from train.input.reader_input import Assignment
from train.models.batch import Batch
from train.options.step_plan import Position

_SHARDS, _WINDOWS, _AUGMENTATION = 0, 1, 2


class TfdataInput:
    """Makes the datasets of one worker. Each worker reads whole global batches and takes its share."""

    def __init__(self, dataset: Dataset, preparation: Preparation, assigned: Assignment) -> None:
        self._dataset = dataset
        self._preparation = preparation
        self._splits, self._plan, worker_index, self._seed = assigned
        self._first_row = worker_index * self._plan.worker_batch_size

    @property
    def spec(self) -> Batch:
        """What a batch is made of."""
        spec: Batch = self.training(Position(0, 0)).element_spec
        return spec

    def training(self, start: Position) -> tf.data.Dataset:
        """Returns the batches of all epochs from a position on.

        The end of an epoch reads its shards to their ends, so every shard's count is checked in every epoch. The
        batches are a function of (shards, seed, epoch, step): a run that goes on elsewhere gets the same ones.
        """
        files = shard_files(self._dataset, self._splits.train)
        size = self._plan.global_batch_size

        def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            seed = tf.stack([tf.constant(self._seed, tf.int64), epoch])
            records = read_records(files, seed=fold_in(seed, _SHARDS))
            records = shuffle_windows(records, files.num_window_examples, fold_in(seed, _WINDOWS))
            num_done = tf.where(tf.equal(epoch, start.epoch), tf.constant(start.step, tf.int64), 0)
            batches = records.rebatch(size, drop_remainder=True).enumerate().skip(num_done)
            weights = tf.ones([size])

            def with_seed(step: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                return serialized, weights, fold_in(fold_in(seed, _AUGMENTATION), step)

            return batches.map(with_seed)

        epochs = tf.data.Dataset.range(start.epoch, self._plan.num_epochs)
        return self._finish(epochs.flat_map(one_epoch), is_training=True)

    def validation(self, first_step: int = 0) -> tf.data.Dataset | None:
        """Returns the batches of one pass from a step on, the last one filled up with copies of weight 0.

        None without a split.
        """
        if self._splits.validation is None:
            return None
        files: ShardFiles = shard_files(self._dataset, self._splits.validation)
        size = self._plan.global_batch_size

        def pad(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            num_examples = tf.size(serialized)
            position = tf.range(size)
            padded = tf.gather(serialized, tf.minimum(position, num_examples - 1))
            return padded, tf.cast(position < num_examples, tf.float32), tf.zeros([2], tf.int64)

        return self._finish(read_records(files, seed=None).rebatch(size).skip(first_step).map(pad), is_training=False)

    def _finish(self, batches: tf.data.Dataset, *, is_training: bool) -> tf.data.Dataset:
        size, prepared = self._plan.worker_batch_size, self._preparation

        def decode(example: Batch, seed: tf.Tensor) -> Batch:
            return prepared.decode(example, seed if is_training else None)

        batches = batches.map(partial(self._parse, is_training=is_training), num_parallel_calls=tf.data.AUTOTUNE)
        if prepared.images:
            # One image costs far more than a stage of single examples, and spreads over the cores this way.
            examples = batches.unbatch().map(decode, num_parallel_calls=tf.data.AUTOTUNE)
            batches = examples.batch(size, drop_remainder=True).map(prepared.arrange)
        else:
            batches = batches.map(lambda batch, _: prepared.arrange(batch))
        return batches.prefetch(tf.data.AUTOTUNE).with_options(reading_options())

    def _parse(
        self, serialized: tf.Tensor, weights: tf.Tensor, seed: tf.Tensor, *, is_training: bool
    ) -> tuple[Batch, tf.Tensor]:
        first, size = self._first_row, self._plan.worker_batch_size
        own = tf.ensure_shape(serialized[first : first + size], [size])
        parsed = parse_examples(own, self._preparation.features)
        rows = first + tf.range(size, dtype=tf.int64)
        seeds = tf.stack([seed[0] + rows, tf.fill([size], seed[1])], axis=1)
        weights = tf.ensure_shape(weights[first : first + size], [size])
        return self._preparation.prepare(parsed, weights, seeds if is_training else None), seeds
