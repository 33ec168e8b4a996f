"""`--model tabular`: columns of numbers and categories, embeddings and a multilayer perceptron."""

from __future__ import annotations

import keras
from keras import layers

from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Features
from train.models.builtin.outputs import outputs_layer
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe, recorded
from train.models.tabular_inputs import prepare_columns, scan_values
from train.options.config import LabelSpec
from train.options.labels import listed_values
from train.options.model_defaults import is_of_any_length
from train.options.tabular_columns import TabularColumns, choose_columns, wants_vocabulary

EMBEDDING_SIZE = 16
HIDDEN_SIZES = (256, 128)


def make_bundle(settings: ModelSettings, dataset: Dataset, split: str, features: Features) -> ModelBundle:
    """Returns the model bundle for the features that a table can take. Raises UsageError if there are none."""
    statistics = dataset.manifest.split(split).statistics
    wanted = [f for f in features if wants_vocabulary(f, statistics.get(f.name))]
    known = {f.name: values for f in wanted if (values := listed_values(statistics[f.name])) is not None}
    scanned = scan_values(dataset, split, tuple(f for f in wanted if f.name not in known))
    columns = choose_columns(features, statistics, {**known, **scanned})
    if not columns.names:
        reasons = "; ".join(f"{names} ({reason})" for names, reason in columns.left_out_by_reason())
        hint = "--model sequence and name one of them with --features" if any(map(is_of_any_length, features)) else None
        raise UsageError(
            "no feature suits the tabular model", why=reasons, next_step=f"Try {hint or '--model FILE.py:function'}"
        )
    return column_bundle(settings, columns, features)


def restore_bundle(settings: ModelSettings, recipe: ModelRecipe) -> ModelBundle:
    """Returns the model bundle that a recipe describes."""
    return column_bundle(settings, recorded(recipe.columns), recipe.features)


def column_bundle(settings: ModelSettings, columns: TabularColumns, features: Features) -> ModelBundle:
    """Returns the model bundle for columns of a table."""
    used = tuple(f for f in features if f.name in columns.names)
    with settings.strategy.scope():
        model = tabular_model(columns, settings.label)
    return ModelBundle(
        features=used,
        model=model,
        prepare=prepare_columns(columns, used),
        images=(),
        arrange=dict,
        summary=f"{len(columns.numeric)} numeric and {len(columns.categories)} category columns",
        notes=tuple(f"features left out: {names} ({reason})" for names, reason in columns.left_out_by_reason()),
        columns=columns,
    )


def tabular_model(columns: TabularColumns, label: LabelSpec) -> keras.Model:
    """Returns embeddings and a multilayer perceptron over the inputs of `tabular_inputs.prepare_columns`."""
    inputs, parts = {}, []
    if columns.numeric:
        inputs["numeric"] = keras.Input([columns.num_numeric], name="numeric")
        parts.append(inputs["numeric"])
    if columns.categories:
        num_indices = sum(c.num_indices for c in columns.categories)
        inputs["categories"] = keras.Input([len(columns.categories)], dtype="int32", name="categories")
        embedded = layers.Embedding(num_indices, EMBEDDING_SIZE, name="embeddings")(inputs["categories"])
        parts.append(layers.Flatten()(embedded))
    hidden = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    for size in HIDDEN_SIZES:
        hidden = layers.Dense(size, activation="relu")(hidden)
    return keras.Model(inputs, outputs_layer(hidden, label), name="tabular")
