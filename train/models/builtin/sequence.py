"""`--model sequence`: one series of numbers, audio file or list of tokens; convolutions and pooling over a series."""

from __future__ import annotations

import keras
from keras import layers, ops

from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from train.models.builtin.outputs import pooled_outputs
from train.models.builtin.text import Statistics, note_on_others, only_one, token_bundle
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe
from train.models.series import NUM_BANDS, num_channels, prepare_series, sample_rate, series_lengths, uses_spectrum
from train.models.tokens import scan_tokens
from train.options.config import LabelSpec
from train.options.model_defaults import is_audio, is_series, is_tokens

WIDTHS = (64, 128, 128)
_KERNEL_SIZE = 5
_DECODABLE = ("audio/wav", "audio/x-wav", "audio/wave", "audio/*")


def make_bundle(settings: ModelSettings, dataset: Dataset, split: str, features: Features) -> ModelBundle:
    """Returns the model bundle for one series of numbers, audio file or list of tokens.

    Integers that are never negative are tokens, other numbers a series.

    Raises:
        UsageError: If there is none, more than one that could be meant, or audio that is no WAV.
    """
    statistics = dataset.manifest.split(split).statistics
    found = tuple(filter(is_audio, features)) or tuple(
        f for f in features if f.shape and (is_series(f) or is_tokens(f))
    )
    feature = only_one(found, statistics, settings.name, "numbers, tokens or audio of any length")
    notes = note_on_others(features, feature)
    own = statistics.get(feature.name)
    is_signed = own is not None and own.min is not None and own.min < 0
    if is_tokens(feature) and not (is_series(feature) and is_signed):
        return token_bundle(settings, feature, scan_tokens(dataset, split, feature), notes)
    if is_audio(feature) and feature.media_type not in _DECODABLE:
        raise UsageError(
            f"the sequence model decodes audio/wav, and {feature.name!r} holds {feature.media_type}",
            next_step="Convert again with --audio samples",
        )
    return signal_bundle(settings, feature, statistics, notes)


def restore_bundle(settings: ModelSettings, recipe: ModelRecipe) -> ModelBundle:
    """Returns the model bundle that a recipe describes."""
    if recipe.vocabulary is not None:
        return token_bundle(settings, recipe.features[0], recipe.vocabulary)
    return signal_bundle(settings, recipe.features[0], recipe.statistics)


def signal_bundle(
    settings: ModelSettings, feature: Feature, statistics: Statistics, notes: tuple[str, ...] = ()
) -> ModelBundle:
    """Returns the model bundle for one series of numbers or audio file."""
    with settings.strategy.scope():
        model = signal_model(num_channels(feature, statistics), settings.label)
    kind = "a series of numbers"
    if uses_spectrum(feature, statistics):
        kind = f"{NUM_BANDS} bands of frequency, {sample_rate(statistics):,} samples a second"
    return ModelBundle(
        features=(feature,),
        model=model,
        prepare=prepare_series(feature, statistics),
        images=(),
        arrange=dict,
        summary=f"{feature.name} as {kind}",
        lengths=series_lengths(feature, statistics),
        notes=notes,
    )


def signal_model(num_channels: int, label: LabelSpec) -> keras.Model:
    """Returns convolutions and pooling over float32 `values` `[length, num_channels]`, where `mask` is 1 and not 0."""
    values = keras.Input([None, num_channels], name="values")
    mask = keras.Input([None], name="mask")
    kept = ops.expand_dims(mask, -1)
    hidden = values * kept
    for i, width in enumerate(WIDTHS):
        hidden = layers.Conv1D(width, _KERNEL_SIZE, padding="same", use_bias=False)(hidden)
        # By position, so that neither padding nor the other examples of a batch matter.
        hidden = layers.Activation("relu")(layers.LayerNormalization()(hidden)) * kept
        if i:
            hidden = layers.MaxPooling1D(2, padding="same")(hidden)
            kept = layers.MaxPooling1D(2, padding="same")(kept)
    return keras.Model({"values": values, "mask": mask}, pooled_outputs(hidden, hidden, kept, label), name="sequence")
