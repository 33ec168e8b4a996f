"""Batches for the loop: epochs in seeded order from any step on, and a validation pass without repetition."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from shardkit.adapters.tfdata import (
    ShardFiles,
    fold_in,
    parse_examples,
    read_records,
    reading_options,
    shuffle_windows,
)
from shardkit.features import Feature, Features
from train.batch import Batch
from train.config import LabelSpec
from train.images import augment_image, center_image
from train.learner import Learner
from train.plan import Position, TrainPlan
from train.prepare import label_reader

_SHARDS, _WINDOWS, _AUGMENTATION = 0, 1, 2


class BatchInput:
    """Makes the datasets of a run.

    Args:
        learner: What reads them.
        label: What is predicted.
        label_feature: Its feature.
        plan: Sizes and steps.
        image_size: Height and width of images in pixels.
        seed: Of order and augmentation.
    """

    def __init__(
        self,
        learner: Learner,
        label: LabelSpec,
        label_feature: Feature,
        plan: TrainPlan,
        image_size: int,
        seed: int,
    ) -> None:
        self._learner = learner
        self._features: Features = (*learner.features, label_feature)
        self._read_label = label_reader(label, label_feature)
        self._plan = plan
        self._image_size = image_size
        self._seed = seed

    def training(self, files: ShardFiles, start: Position) -> tf.data.Dataset:
        """Returns the batches of all epochs from a position on.

        The end of an epoch reads its shards to their ends, so every shard's count is checked in every epoch. The
        batches are a function of (shards, seed, epoch, step): a run that goes on elsewhere gets the same ones.
        """
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

    def validation(self, files: ShardFiles) -> tf.data.Dataset:
        """Returns the batches of one pass, the last one filled up with copies of weight 0."""
        size = self._plan.global_batch_size

        def pad(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            num_examples = tf.size(serialized)
            position = tf.range(size)
            padded = tf.gather(serialized, tf.minimum(position, num_examples - 1))
            return padded, tf.cast(position < num_examples, tf.float32), tf.zeros([2], tf.int64)

        return self._finish(read_records(files, seed=None).rebatch(size).map(pad), is_training=False)

    def _finish(self, batches: tf.data.Dataset, *, is_training: bool) -> tf.data.Dataset:
        size = self._plan.global_batch_size
        parse = partial(self._parse, is_training=is_training)
        batches = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        if self._learner.images:
            # One image costs far more than a stage of single examples, and spreads over the cores this way.
            examples = batches.unbatch().map(
                lambda batch, seed: self._decode_images(batch, seed, is_training), num_parallel_calls=tf.data.AUTOTUNE
            )
            batches = examples.batch(size, drop_remainder=True).map(self._arrange)
        else:
            batches = batches.map(lambda batch, _: self._arrange(batch))
        return batches.prefetch(tf.data.AUTOTUNE).with_options(reading_options())

    def _parse(
        self, serialized: tf.Tensor, weights: tf.Tensor, seed: tf.Tensor, *, is_training: bool
    ) -> tuple[Batch, tf.Tensor]:
        size = self._plan.global_batch_size
        parsed = parse_examples(tf.ensure_shape(serialized, [size]), self._features)
        labels, is_labelled = self._read_label(parsed)
        weights = tf.ensure_shape(weights, [size]) * tf.cast(is_labelled, tf.float32)
        seeds = tf.stack([seed[0] + tf.range(size, dtype=tf.int64), tf.fill([size], seed[1])], axis=1)
        inputs = self._learner.prepare(parsed)
        if is_training and self._learner.augment is not None:
            inputs = self._learner.augment(inputs, seeds)
        return Batch(inputs, labels, weights), seeds

    def _arrange(self, batch: Batch) -> Batch:
        return batch._replace(inputs=self._learner.arrange(batch.inputs))

    def _decode_images(self, example: Batch, seed: tf.Tensor, is_training: bool) -> Batch:
        inputs: dict[str, tf.Tensor] = dict(example.inputs)
        for i, name in enumerate(self._learner.images):
            inputs[name] = (
                augment_image(inputs[name], self._image_size, fold_in(seed, i))
                if is_training
                else center_image(inputs[name], self._image_size)
            )
        return Batch(inputs, example.labels, example.weights)
