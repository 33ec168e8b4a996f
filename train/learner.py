"""What is trained and what it takes in: a model, its features, and how a parsed batch becomes its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch
from shardkit.dataset import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.manifest import FeatureStatistics
from train.choices import IMAGE, TABULAR, is_image
from train.columns import TabularColumns, choose_columns, wants_vocabulary
from train.config import LabelSpec
from train.labels import listed_values
from train.models import image_model, tabular_model
from train.prepare import prepare_columns
from train.recipe import LearnerRecipe
from train.user_model import (
    arrange_inputs,
    call_user_code,
    choose_inputs,
    image_keys,
    load_build_function,
    model_path,
    prepare_user_inputs,
)
from train.vocabulary import scan_values


class Learner(NamedTuple):
    """A recipe for a model and its input.

    Attributes:
        features: Those that are read.
        model: Its variables live where the strategy wants them.
        prepare: Makes inputs from a parsed batch, in the input graph; images are still encoded.
        images: Inputs that hold encoded images.
        arrange: Puts the inputs, images decoded, in the structure that the model declares.
        summary: What it reads, for the user.
        notes: What the user should know.
        columns: Of a tabular model.
    """

    features: Features
    model: keras.Model
    prepare: Callable[[ParsedBatch], dict[str, tf.Tensor]]
    images: tuple[str, ...]
    arrange: Callable[[dict[str, tf.Tensor]], Any]
    summary: str
    notes: tuple[str, ...] = ()
    columns: TabularColumns | None = None


def make_learner(
    name: str,
    dataset: Dataset,
    split: str,
    features: Features,
    label: LabelSpec,
    image_size: int,
    strategy: tf.distribute.Strategy,
) -> Learner:
    """Returns the learner of that name.

    Args:
        name: From `choose_model`.
        dataset: An open dataset.
        split: The train split; its statistics become the model's constants.
        features: Candidates.
        label: What is predicted.
        image_size: Height and width of images in pixels.
        strategy: In whose scope the model is made.

    Raises:
        UsageError: If the features do not suit the model, or the user's file fails.
    """
    statistics = dataset.manifest.split(split).statistics
    if name == TABULAR:
        return _tabular_learner(dataset, split, features, statistics, label, strategy)
    if name == IMAGE:
        return _image_learner(features, label, image_size, strategy)
    return _user_learner(name, features, statistics, label, strategy)


def learner_again(
    name: str, recipe: LearnerRecipe, label: LabelSpec, image_size: int, strategy: tf.distribute.Strategy
) -> Learner:
    """Returns the learner that a recipe describes, with fresh weights.

    Args:
        name: As for `make_learner`.
        recipe: From the record of the run.
        label: What is predicted.
        image_size: Height and width of images in pixels.
        strategy: In whose scope the model is made.

    Raises:
        UsageError: If the user's file fails.
    """
    if recipe.columns is not None:
        return _learner_of_columns(recipe.columns, recipe.features, label, strategy)
    if name == IMAGE:
        return _image_learner(recipe.features, label, image_size, strategy)
    return _user_learner(name, recipe.features, recipe.statistics, label, strategy)


def _tabular_learner(
    dataset: Dataset,
    split: str,
    features: Features,
    statistics: Mapping[str, FeatureStatistics],
    label: LabelSpec,
    strategy: tf.distribute.Strategy,
) -> Learner:
    wanted = [f for f in features if wants_vocabulary(f, statistics.get(f.name))]
    known = {f.name: values for f in wanted if (values := listed_values(statistics[f.name])) is not None}
    scanned = scan_values(dataset, split, tuple(f for f in wanted if f.name not in known))
    columns = choose_columns(features, statistics, {**known, **scanned})
    if not columns.names:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in columns.left_out.items())
        raise UsageError("no feature suits the tabular model", why=reasons, next_step="Try --model FILE.py:function")
    return _learner_of_columns(columns, features, label, strategy)


def _learner_of_columns(
    columns: TabularColumns, features: Features, label: LabelSpec, strategy: tf.distribute.Strategy
) -> Learner:
    used = tuple(f for f in features if f.name in columns.names)
    with strategy.scope():
        model = tabular_model(columns, label)
    return Learner(
        features=used,
        model=model,
        prepare=prepare_columns(columns, used),
        images=(),
        arrange=dict,
        summary=f"{len(columns.numeric)} numeric and {len(columns.categories)} category columns",
        notes=tuple(f"feature {name!r} is left out: {reason}" for name, reason in columns.left_out.items()),
        columns=columns,
    )


def _image_learner(features: Features, label: LabelSpec, image_size: int, strategy: tf.distribute.Strategy) -> Learner:
    found = tuple(filter(is_image, features))
    if len(found) != 1:
        names = ", ".join(f.name for f in found) or "none"
        raise UsageError(
            "the image model reads one feature of encoded images", why=f"found: {names}", next_step="Use --features"
        )
    image: Feature = found[0]
    with strategy.scope():
        model = image_model(image_size, label, strategy.num_replicas_in_sync)
    return Learner(
        features=found,
        model=model,
        prepare=lambda batch: {"image": batch.values[image.name]},
        images=("image",),
        arrange=dict,
        summary=f"{image.name} at {image_size} x {image_size} pixels",
    )


def _user_learner(
    reference: str,
    features: Features,
    statistics: Mapping[str, FeatureStatistics],
    label: LabelSpec,
    strategy: tf.distribute.Strategy,
) -> Learner:
    build = load_build_function(reference)
    with strategy.scope():
        model = build(features, statistics, label)
    used, keys = choose_inputs(model, features)
    return Learner(
        features=used,
        model=model,
        prepare=prepare_user_inputs(keys),
        images=image_keys(used, keys),
        arrange=partial(arrange_inputs, model),
        summary=", ".join(keys),
    )


def check_model(learner: Learner, reference: str, inputs: object, label: LabelSpec) -> tuple[str, ...]:
    """Builds a user's model on one batch of zeros, checks what it gives, and returns what the user should know.

    Args:
        learner: With the model.
        reference: `FILE.py:function`.
        inputs: Specification of the inputs of a batch.
        label: What is predicted.

    Raises:
        UsageError: If the model cannot take the inputs, or gives something of another shape.
    """
    num_examples = 2

    def zeros(spec: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([num_examples, *(size or 1 for size in spec.shape[1:])], spec.dtype)

    sample = tf.nest.map_structure(zeros, inputs)
    path = model_path(reference)
    outputs = call_user_code(path, lambda: learner.model(sample, training=False))
    found = tuple(getattr(outputs, "shape", ()))
    allowed = [(num_examples, label.num_outputs)] + ([(num_examples,)] if label.task == "regression" else [])
    if found not in allowed:
        what = "one logit for each class" if label.task == "classification" else "the predicted number"
        raise UsageError(
            f"the model gives shape {[None, *found[1:]]} for a batch",
            where=str(path),
            why=f"expected {[None, label.num_outputs]}: {what}",
            next_step="Change the last layer of the model, without a softmax at its end",
        )
    if not learner.model.trainable_variables:
        raise UsageError(
            "the model has nothing to train",
            where=str(path),
            next_step="Give it a layer with weights, and leave trainable on",
        )
    is_probability = label.num_outputs > 1 and np.allclose(np.sum(outputs, axis=1), 1.0, atol=1e-5)
    return ("the model seems to give probabilities; leave the softmax out, a loss on logits is exact",) * is_probability
