"""Metrics of a trained model over a split, every example counted once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from shardkit.adapters.tensorflow import Tensors, to_tensors
from shardkit.adapters.tfdata import ParsedBatch
from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.reading.batch import Batch as ReaderBatch
from shardkit.reading.splits import Splits
from train.input.preparation import num_rows, parsed_batch
from train.models.batch import Batch
from train.models.tabular_inputs import label_reader
from train.optimization.objectives import objective_for
from train.optimization.step import evaluate_step
from train.reporting.metric_sums import layout_for, summarize, zero_sums
from train.runs.dataset_check import check_dataset
from train.runs.restore_model import RestoredModel, model_inputs

_UNKNOWN_LABEL = "unknown label"


class Evaluation(NamedTuple):
    """What an evaluation found.

    Attributes:
        num_examples: Of the split.
        num_labelled: Those that have a usable label; the metrics are theirs.
        metrics: By name.
    """

    num_examples: int
    num_labelled: int
    metrics: dict[str, float]


def evaluate(restored: RestoredModel, dataset: Splits, split: str, global_batch_size: int) -> Evaluation:
    """Returns the metrics of a trained model over a split.

    Raises:
        UsageError: If the dataset lacks a feature or holds a class that training did not.
        DamageError: If a shard is damaged.
    """
    features: Features = (*restored.bundle.features, restored.label_feature)
    check_dataset(features, dataset.dataset, split)
    reader = dataset[split].batches(
        global_batch_size=global_batch_size,
        shuffle=False,
        remainder="pad",
        features=[f.name for f in features],
        decodes_text=False,
    )
    step = _step(restored)
    layout = layout_for(restored.label)
    sums = zero_sums(layout)
    for batch in reader:
        tensors = to_tensors(batch)
        try:
            sums = sums + step(parsed_batch(tensors, features), _weights(tensors)).numpy().astype(np.float64)
        except tf.errors.InvalidArgumentError as error:
            raise _explained(error, batch, restored) from error
    return Evaluation(dataset[split].num_examples, round(float(sums[0])), summarize(layout, sums))


def _step(restored: RestoredModel) -> tf.types.experimental.GenericFunction:
    bundle, label = restored.bundle, restored.label
    read_label = label_reader(label, restored.label_feature)
    objective = objective_for(label)

    @tf.function(reduce_retracing=True)
    def step(parsed: ParsedBatch, weights: tf.Tensor) -> tf.Tensor:
        labels, is_labelled = read_label(parsed, weights)
        inputs = model_inputs(bundle, restored.record.image_size, parsed)
        return evaluate_step(bundle.model, objective, Batch(inputs, labels, weights * tf.cast(is_labelled, tf.float32)))

    return step


def _weights(tensors: Tensors) -> tf.Tensor:
    if "mask" in tensors:
        return tf.cast(tensors["mask"], tf.float32)
    return tf.ones([num_rows(next(iter(tensors.values())))])


def _explained(error: tf.errors.InvalidArgumentError, batch: ReaderBatch, restored: RestoredModel) -> Exception:
    if _UNKNOWN_LABEL not in str(error.message):
        return error
    column = batch[restored.label.name]
    present = batch.present.get(restored.label.name, np.ones(len(column), np.bool_))
    known = {c.encode() if isinstance(c, str) else c for c in restored.label.classes}
    unknown = next(value for value in np.asarray(column)[present].tolist() if value not in known)
    shown = unknown.decode(errors="replace") if isinstance(unknown, bytes) else unknown
    return UsageError(
        f"the dataset has the class {shown!r}, which training never saw",
        why=f"{restored.label.name!r} had the classes {', '.join(map(repr, restored.label.class_names[:10]))}",
        next_step="Leave those examples out with convert --select, or train on a dataset that has the class",
    )
