"""Predictions of a trained model for the examples of a split, in their stored order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shardkit.adapters.tensorflow import to_tensors
from shardkit.adapters.tfdata import ParsedBatch
from shardkit.dataset.manifest import Manifest
from shardkit.errors import UsageError
from shardkit.features import Features, make_feature
from shardkit.reading.batch import Batch
from shardkit.reading.splits import Splits
from train.input.preparation import parsed_batch
from train.options.config import LabelSpec
from train.runs.dataset_check import check_dataset
from train.runs.restore_model import RestoredModel, model_outputs

MAX_LISTED_CLASSES = 20
PREDICTION = "prediction"
PROBABILITY = "probability"


def kept_features(manifest: Manifest, names: Sequence[str], predicted: Features) -> Features:
    """Returns the features that are copied beside the predictions.

    Raises:
        UsageError: If there is no such feature, or it has the name of a predicted column.
    """
    taken = {f.name for f in predicted}
    if both := [name for name in names if name in taken]:
        raise UsageError(
            f"the feature {both[0]!r} has the name of a column of predictions",
            next_step="Leave it out of --keep",
        )
    return tuple(manifest.feature(name) for name in dict.fromkeys(names))


def predicted_features(restored: RestoredModel) -> Features:
    """Returns the columns that predictions have."""
    label, own = restored.label, restored.label_feature
    if label.task == "regression":
        return (make_feature(PREDICTION, "float32"),)
    dtype = "string" if own.vocabulary is not None else own.dtype
    listed = label.class_names if len(label.classes) <= MAX_LISTED_CLASSES else ()
    return (
        make_feature(PREDICTION, dtype),
        make_feature(PROBABILITY, "float32"),
        *(make_feature(f"{PROBABILITY}_{name}", "float32") for name in listed),
    )


def predictions(
    restored: RestoredModel, dataset: Splits, split: str, kept: Features, global_batch_size: int
) -> Iterator[Batch]:
    """Yields batches of kept and predicted columns, text as bytes, the last one filled up.

    Raises:
        UsageError: If the dataset lacks a feature.
        DamageError: If a shard is damaged.
    """
    features = restored.bundle.features
    check_dataset(features, dataset.dataset, split)
    reader = dataset[split].batches(
        global_batch_size=global_batch_size,
        shuffle=False,
        remainder="pad",
        features=list(dict.fromkeys(f.name for f in (*features, *kept))),
        decodes_text=False,
    )
    step = _step(restored)
    values = _class_values(restored)
    for batch in reader:
        outputs = step(parsed_batch(to_tensors(batch), features)).numpy()
        columns: dict[str, Any] = {f.name: batch[f.name] for f in kept}
        columns |= _columns(restored.label, outputs, values)
        present = {f.name: batch.present[f.name] for f in kept if f.name in batch.present}
        yield Batch(columns, present, batch.mask)


def _step(restored: RestoredModel) -> tf.types.experimental.GenericFunction:
    @tf.function(reduce_retracing=True)
    def step(parsed: ParsedBatch) -> tf.Tensor:
        outputs = model_outputs(restored.bundle, restored.record.image_size, parsed)
        return outputs if restored.label.task == "regression" else tf.nn.softmax(outputs)

    return step


def _class_values(restored: RestoredModel) -> npt.NDArray[Any]:
    label, own = restored.label, restored.label_feature
    if own.vocabulary is None and own.dtype != "string":
        return np.array(label.classes, own.dtype)
    found = np.empty(len(label.class_names), np.object_)
    found[:] = [name.encode() for name in label.class_names]
    return found


def _columns(label: LabelSpec, outputs: npt.NDArray[np.float32], values: npt.NDArray[Any]) -> dict[str, Any]:
    if label.task == "regression":
        return {PREDICTION: outputs.reshape(-1)}
    best = outputs.argmax(axis=1)
    return {
        PREDICTION: values[best],
        PROBABILITY: outputs[np.arange(len(best)), best],
        # What is not among the predicted features is not written.
        **{f"{PROBABILITY}_{name}": outputs[:, i] for i, name in enumerate(label.class_names[:MAX_LISTED_CLASSES])},
    }
