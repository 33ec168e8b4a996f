"""`--model text`: one feature of text or of tokens, embeddings, and pooling over them."""

from __future__ import annotations

from collections.abc import Mapping

import keras
from keras import layers, ops

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from train.models.builtin.outputs import pooled_outputs
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe, recorded
from train.models.tokens import MAX_TOKENS, NUM_SPECIAL, Token, prepare_tokens, scan_tokens, token_lengths
from train.options.config import LabelSpec
from train.options.model_defaults import is_tokens
from train.options.tabular_columns import reason_to_leave_out

EMBEDDING_SIZE = 64

Statistics = Mapping[str, FeatureStatistics]


def make_bundle(settings: ModelSettings, dataset: Dataset, split: str, features: Features) -> ModelBundle:
    """Returns the model bundle for one column of text or of token lists.

    Raises:
        UsageError: If there is none, or more than one that could be meant.
    """
    statistics = dataset.manifest.split(split).statistics
    found = tuple(filter(is_tokens, features))
    feature = only_one(found, statistics, settings.name, "text, or of lists of strings or integers")
    notes = note_on_others(features, feature)
    return token_bundle(settings, feature, scan_tokens(dataset, split, feature), notes)


def restore_bundle(settings: ModelSettings, recipe: ModelRecipe) -> ModelBundle:
    """Returns the model bundle that a recipe describes."""
    return token_bundle(settings, recipe.features[0], recorded(recipe.vocabulary))


def token_bundle(
    settings: ModelSettings, feature: Feature, vocabulary: tuple[Token, ...], notes: tuple[str, ...] = ()
) -> ModelBundle:
    """Returns the model bundle for one feature of tokens."""
    with settings.strategy.scope():
        model = token_model(NUM_SPECIAL + len(vocabulary), settings.label)
    kind = "words" if feature.is_scalar else "tokens"
    return ModelBundle(
        features=(feature,),
        model=model,
        prepare=prepare_tokens(feature, vocabulary),
        images=(),
        arrange=dict,
        summary=f"{feature.name} with {len(vocabulary):,} {kind}, at most {MAX_TOKENS:,} of an example",
        lengths=token_lengths(feature),
        notes=notes,
        vocabulary=vocabulary,
    )


def token_model(num_indices: int, label: LabelSpec) -> keras.Model:
    """Returns embeddings, a convolution over three tokens, and pooling, over int32 `tokens` of which 0 is padding."""
    tokens = keras.Input([None], dtype="int32", name="tokens")
    mask = ops.expand_dims(ops.cast(ops.not_equal(tokens, 0), "float32"), -1)
    embedded = layers.Embedding(num_indices, EMBEDDING_SIZE, name="embeddings")(tokens) * mask
    local = layers.Conv1D(EMBEDDING_SIZE, 3, padding="same", activation="relu")(embedded)
    return keras.Model({"tokens": tokens}, pooled_outputs(embedded, local, mask, label), name="text")


def only_one(found: Features, statistics: Statistics, model: str, what: str) -> Feature:
    """Returns the only feature that a model can take.

    Raises:
        UsageError: If there is none, or more than one that could be meant.
    """
    if len(found) > 1:
        # A model of tables can take categories and small numbers, so this model takes a feature that it cannot.
        found = tuple(f for f in found if reason_to_leave_out(f, statistics.get(f.name)) is not None) or found
    if len(found) != 1:
        raise UsageError(
            f"the {model} model reads one feature of {what}",
            why=f"found: {', '.join(f.name for f in found) or 'none'}",
            next_step="Name it with --features, or use another --model",
        )
    return found[0]


def note_on_others(features: Features, used: Feature) -> tuple[str, ...]:
    """Returns the note that a model reads one feature only, if there are others."""
    left_out = [f.name for f in features if f.name != used.name]
    return (f"only {used.name!r} is learned from, not {', '.join(left_out)}",) if left_out else ()
