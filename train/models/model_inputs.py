"""A model, its features, and how a parsed batch becomes its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch
from shardkit.features import Features
from train.options.config import LabelSpec
from train.options.tabular_columns import TabularColumns, Value


class ModelSettings(NamedTuple):
    """What a model bundle is made for, whatever it reads.

    Attributes:
        name: From `choose_model`.
        image_size: Height and width of images in pixels.
        strategy: In whose scope the model is made.
    """

    name: str
    label: LabelSpec
    image_size: int
    strategy: tf.distribute.Strategy


class ModelBundle(NamedTuple):
    """A model and the makers of its inputs.

    Attributes:
        model: Its variables live where the strategy wants them.
        prepare: Makes inputs from a parsed batch, in the input graph; images are still encoded.
        images: Inputs that hold encoded images.
        arrange: Puts the inputs, images decoded, in the structure that the model declares.
        lengths: Returns how many positions each example of a parsed batch takes in the inputs, `[n]`, in the input
            graph; None where all take the same.
        augment: Changes the inputs of a training batch by chance, before images are decoded: a function of the inputs
            and of seeds, int64 `[n, 2]`, one for each example. None leaves them as they are.
        columns: Of a tabular model.
        vocabulary: Of a model of tokens.
    """

    features: Features
    model: keras.Model
    prepare: Callable[[ParsedBatch], dict[str, tf.Tensor]]
    images: tuple[str, ...]
    arrange: Callable[[dict[str, tf.Tensor]], Any]
    summary: str
    lengths: Callable[[ParsedBatch], tf.Tensor] | None = None
    augment: Callable[[dict[str, tf.Tensor], tf.Tensor], dict[str, tf.Tensor]] | None = None
    notes: tuple[str, ...] = ()
    columns: TabularColumns | None = None
    vocabulary: tuple[Value, ...] | None = None
