"""Model bundles for texts, token lists, series of numbers and audio."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.dataset.open import Dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from train.models.model_inputs import ModelBundle
from train.models.sequence_models import signal_model, token_model
from train.models.series import NUM_BANDS, num_channels, prepare_series, sample_rate, series_lengths, uses_spectrum
from train.models.tokens import MAX_TOKENS, NUM_SPECIAL, Token, prepare_tokens, scan_tokens, token_lengths
from train.options.config import LabelSpec
from train.options.model_defaults import SEQUENCE, TEXT, is_audio, is_series, is_tokens
from train.options.tabular_columns import reason_to_leave_out

_DECODABLE = ("audio/wav", "audio/x-wav", "audio/wave", "audio/*")

Statistics = Mapping[str, FeatureStatistics]


def text_bundle(
    dataset: Dataset, split: str, features: Features, label: LabelSpec, strategy: tf.distribute.Strategy
) -> ModelBundle:
    """Returns the model bundle for one column of text or of token lists.

    Raises:
        UsageError: If there is none, or more than one that could be meant.
    """
    statistics = dataset.manifest.split(split).statistics
    feature = _only_one(
        tuple(filter(is_tokens, features)), statistics, TEXT, "text, or of lists of strings or integers"
    )
    notes = _notes(features, feature, statistics)
    return token_bundle(feature, scan_tokens(dataset, split, feature), label, strategy, notes)


def sequence_bundle(
    dataset: Dataset, split: str, features: Features, label: LabelSpec, strategy: tf.distribute.Strategy
) -> ModelBundle:
    """Returns the model bundle for one series of numbers, audio file or list of tokens.

    Integers that are never negative are tokens, other numbers a series.

    Raises:
        UsageError: If there is none, more than one that could be meant, or audio that is no WAV.
    """
    statistics = dataset.manifest.split(split).statistics
    found = tuple(filter(is_audio, features)) or tuple(
        f for f in features if f.shape and (is_series(f) or is_tokens(f))
    )
    feature = _only_one(found, statistics, SEQUENCE, "numbers, tokens or audio of any length")
    notes = _notes(features, feature, statistics)
    own = statistics.get(feature.name)
    is_signed = own is not None and own.min is not None and own.min < 0
    if is_tokens(feature) and not (is_series(feature) and is_signed):
        return token_bundle(feature, scan_tokens(dataset, split, feature), label, strategy, notes)
    if is_audio(feature) and feature.media_type not in _DECODABLE:
        raise UsageError(
            f"the sequence model decodes audio/wav, and {feature.name!r} holds {feature.media_type}",
            next_step="Convert again with --audio samples",
        )
    return signal_bundle(feature, statistics, label, strategy, notes)


def signal_bundle(
    feature: Feature,
    statistics: Statistics,
    label: LabelSpec,
    strategy: tf.distribute.Strategy,
    notes: tuple[str, ...] = (),
) -> ModelBundle:
    """Returns the model bundle for one series of numbers or audio file."""
    with strategy.scope():
        model = signal_model(num_channels(feature, statistics), label)
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


def token_bundle(
    feature: Feature,
    vocabulary: tuple[Token, ...],
    label: LabelSpec,
    strategy: tf.distribute.Strategy,
    notes: tuple[str, ...] = (),
) -> ModelBundle:
    """Returns the model bundle for one feature of tokens."""
    with strategy.scope():
        model = token_model(NUM_SPECIAL + len(vocabulary), label)
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


def _only_one(found: Features, statistics: Statistics, model: str, what: str) -> Feature:
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


def _notes(features: Features, used: Feature, statistics: Statistics) -> tuple[str, ...]:
    left_out = [f.name for f in features if f.name != used.name]
    return (f"only {used.name!r} is learned from, not {', '.join(left_out)}",) if left_out else ()
