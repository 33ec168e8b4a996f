"""Series of numbers and audio to rows of a signal, in the input graph.

A short series enters as it is, standardised. A long one, such as samples of sound, and an audio file enter as the
logarithm of its energy in bands of frequency, over windows that overlap by half: a few hundred rows instead of many
thousand numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch
from shardkit.dataset.manifest import FeatureStatistics
from shardkit.features import Feature
from train.models.tokens import pad_to_boundary
from train.options.model_defaults import is_audio

MIN_SPECTRUM_LENGTH = 1_000  # Mean length from which a series of numbers enters by its spectrum.
MAX_ROWS = 2_048
NUM_BANDS = 40
WINDOW_S = 0.025
DEFAULT_RATE = 8_000
RATE_FEATURE = "sample_rate"
_BOUNDARY = 32
_LOWEST_HZ = 20.0
_FLOOR = 1e-6
_MAX_DEVIATIONS = 8.0

Statistics = Mapping[str, FeatureStatistics]


def uses_spectrum(feature: Feature, statistics: Statistics) -> bool:
    """Whether a feature enters as energies in bands of frequency."""
    if is_audio(feature):
        return True
    own = statistics.get(feature.name)
    length = feature.num_values or (own.mean_length if own else None) or 0
    return len(feature.shape) == 1 and feature.dtype.startswith("float") and length >= MIN_SPECTRUM_LENGTH


def sample_rate(statistics: Statistics) -> int:
    """Returns the samples a second that a dataset states, as `shardkit convert` writes them beside audio."""
    own = statistics.get(RATE_FEATURE)
    return max(1_000, round(own.mean)) if own is not None and own.mean is not None else DEFAULT_RATE


def num_channels(feature: Feature, statistics: Statistics) -> int:
    """Returns the numbers in a row of the signal."""
    if uses_spectrum(feature, statistics):
        return NUM_BANDS
    return int(feature.shape[1] or 1) if len(feature.shape) == 2 else 1


def prepare_series(feature: Feature, statistics: Statistics) -> Callable[[ParsedBatch], dict[str, tf.Tensor]]:
    """Returns the function that makes `values`, float32 `[n, rows, channels]`, and `mask`, 1 where a row is no padding.

    What follows after `MAX_ROWS` rows is left out.
    """
    rate, channels = sample_rate(statistics), num_channels(feature, statistics)
    own = statistics.get(feature.name)
    mean, std = (own.mean or 0.0, own.std or 1.0) if own is not None else (0.0, 1.0)

    def plain(values: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
        ragged = values if isinstance(values, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(values)
        standard = (tf.cast(ragged.flat_values, tf.float64) - mean) / std
        standard = tf.where(tf.math.is_finite(standard), standard, 0.0)
        standard = tf.cast(tf.clip_by_value(standard, -_MAX_DEVIATIONS, _MAX_DEVIATIONS), tf.float32)
        return ragged.with_flat_values(tf.reshape(standard, [-1, channels]))[:, :MAX_ROWS]

    def spectra(values: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
        ragged = _decoded(values) if is_audio(feature) else values
        if not isinstance(ragged, tf.RaggedTensor):
            ragged = tf.RaggedTensor.from_tensor(ragged)
        window = _window(rate)
        samples = tf.cast(ragged[:, : window * (MAX_ROWS + 1) // 2], tf.float32)
        lengths = _num_windows(samples.row_lengths(), window)
        dense = samples.to_tensor(0.0)
        missing = tf.maximum(0, window - tf.shape(dense)[1])
        dense = tf.pad(tf.where(tf.math.is_finite(dense), dense, 0.0), [[0, 0], [0, missing]])
        bands = _bands(dense, window, rate)
        mask = tf.sequence_mask(lengths, tf.shape(bands)[1], tf.float32)[:, :, tf.newaxis]
        # Loudness and microphone are the recording's, not the label's.
        count = tf.maximum(tf.reduce_sum(mask, axis=1, keepdims=True), 1.0)
        middle = tf.reduce_sum(bands * mask, axis=1, keepdims=True) / count
        variance = tf.reduce_sum(tf.square(bands - middle) * mask, axis=[1, 2], keepdims=True) / count / NUM_BANDS
        return tf.RaggedTensor.from_tensor((bands - middle) / tf.sqrt(variance + _FLOOR), lengths)

    rows_of = spectra if uses_spectrum(feature, statistics) else plain

    def prepare(batch: ParsedBatch) -> dict[str, tf.Tensor]:
        rows = rows_of(batch.values[feature.name])
        dense = tf.ensure_shape(pad_to_boundary(rows, _BOUNDARY), [None, None, channels])
        mask = tf.sequence_mask(rows.row_lengths(), tf.shape(dense)[1], tf.float32)
        return {"values": dense, "mask": mask}

    return prepare


def series_lengths(feature: Feature, statistics: Statistics) -> Callable[[ParsedBatch], tf.Tensor]:
    """Returns the function that counts the rows of each example that `prepare_series` makes, without making them."""
    window = _window(sample_rate(statistics)) if uses_spectrum(feature, statistics) else None

    def count(batch: ParsedBatch) -> tf.Tensor:
        values = batch.values[feature.name]
        if is_audio(feature):
            num_values = _num_samples(values)
        elif isinstance(values, tf.RaggedTensor):
            num_values = values.row_lengths()
        else:
            num_values = tf.fill([tf.shape(values)[0]], tf.shape(values)[1])
        return tf.minimum(_num_windows(num_values, window) if window else tf.cast(num_values, tf.int32), MAX_ROWS)

    return count


def _window(rate: int) -> int:
    """Returns the samples of a window, an even number."""
    return 2 * max(1, round(rate * WINDOW_S / 2))


def _num_windows(num_samples: tf.Tensor, window: int) -> tf.Tensor:
    return tf.maximum(1, 2 * tf.cast(num_samples, tf.int32) // window - 1)


def _num_samples(encoded: tf.Tensor) -> tf.Tensor:
    def count(one: tf.Tensor) -> tf.Tensor:
        return tf.size(decode_audio(one))

    return tf.map_fn(count, encoded, fn_output_signature=tf.TensorSpec([], tf.int32))


def _bands(samples: tf.Tensor, window: int, rate: int) -> tf.Tensor:
    size = 2 ** math.ceil(math.log2(window))
    spectrum = tf.abs(tf.signal.stft(samples, window, window // 2, fft_length=size))
    weights = tf.signal.linear_to_mel_weight_matrix(NUM_BANDS, size // 2 + 1, rate, _LOWEST_HZ, rate / 2)
    return tf.math.log(tf.matmul(tf.square(spectrum), weights) + _FLOOR)


def decode_audio(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the samples of a WAV file of 16 bits, the mean of its channels, from -1 to 1; none of an absent one."""

    def samples() -> tf.Tensor:
        return tf.reduce_mean(tf.audio.decode_wav(encoded).audio, axis=1)

    return tf.cond(tf.equal(tf.strings.length(encoded), 0), lambda: tf.zeros([0]), samples)


def _decoded(encoded: tf.Tensor) -> tf.RaggedTensor:
    return tf.map_fn(decode_audio, encoded, fn_output_signature=tf.RaggedTensorSpec([None], tf.float32, ragged_rank=0))
