"""A model of one's own, for `shardkit train --model my_model.py:build`: one number from numbers and words.

The function is given the features to learn from, their statistics over the train split, and the label. The inputs of
the model that it returns are named after features.
"""

from collections.abc import Mapping

import keras

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.features import Features
from train.options.config import LabelSpec


def build(features: Features, statistics: Mapping[str, FeatureStatistics], label: LabelSpec) -> keras.Model:
    inputs = {}
    columns = []
    for feature in features:
        found = statistics[feature.name]
        if feature.dtype == "string":
            words = list(found.vocabulary)
            inputs[feature.name] = keras.Input((), name=feature.name, dtype="string")
            columns.append(keras.layers.StringLookup(vocabulary=words, output_mode="one_hot")(inputs[feature.name]))
        else:
            inputs[feature.name] = keras.Input((), name=feature.name, dtype="float32")
            scaled = (inputs[feature.name] - found.mean) / (found.std or 1.0)
            columns.append(keras.layers.Reshape((1,))(scaled))
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()(columns))
    return keras.Model(inputs, keras.layers.Dense(label.num_outputs)(hidden))
