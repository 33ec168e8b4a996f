"""Images that are stored as arrays of pixels: scaled, resized and shifted a batch at a time, in the input graph.

Pictures of a few pixels are not cropped and recoloured like photos, because they would lose their content. Grey
pictures are not mirrored either, because they are often digits and letters.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.features import Feature

MAX_SHIFT = 1 / 14  # Of the height and width.

# Constants of the splitmix64 generator, which is as good on consecutive seeds as on any.
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def num_channels(feature: Feature) -> int:
    """Returns the channels of an image feature: 1 for grey, 3 for colour."""
    return int(feature.shape[2] or 1) if len(feature.shape) == 3 else 1


def prepare_pixels(
    feature: Feature, statistics: FeatureStatistics | None, image_size: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function from arrays `[n, *shape]` to float32 `[n, image_size, image_size, channels]` from 0 to 255.

    Bytes are taken as they are, other numbers from their least to their greatest value in the train split.
    """
    height, width = feature.shape[:2]
    low, high = 0.0, 255.0
    if feature.dtype != "uint8" and statistics is not None and statistics.max is not None:
        low, high = float(statistics.min or 0.0), float(statistics.max)

    def prepare(values: tf.Tensor) -> tf.Tensor:
        pixels = tf.reshape(tf.cast(values, tf.float32), [-1, height, width, num_channels(feature)])
        if (low, high) != (0.0, 255.0):
            pixels = (pixels - low) * (255.0 / max(high - low, 1e-12))
        pixels = tf.where(tf.math.is_finite(pixels), tf.clip_by_value(pixels, 0.0, 255.0), 0.0)
        if (height, width) != (image_size, image_size):
            pixels = tf.image.resize(pixels, [image_size, image_size], antialias=True)
        return pixels

    return prepare


def augment_pixels(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Returns images shifted by a few pixels, black where nothing was, and in colour perhaps mirrored.

    Args:
        images: float32 `[n, size, size, channels]`.
        seeds: int64 `[n, 2]`, one for each image: the same one gives the same result.
    """
    size, channels = images.shape[1], images.shape[3]
    most = max(1, round(size * MAX_SHIFT))
    padded = tf.pad(images, [[0, 0], [most, most], [most, most], [0, 0]])
    draws = [uniform(seeds, i) for i in range(3)]
    rows, columns = (_shifted(draw, most, size) for draw in draws[:2])
    if channels == 3:
        columns = tf.where((draws[2] < 0.5)[:, tf.newaxis], columns[:, ::-1], columns)
    shifted = tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)
    return tf.ensure_shape(shifted, images.shape)


def uniform(seeds: tf.Tensor, index: int) -> tf.Tensor:
    """Returns float32 `[n]` from 0 up to 1, a function of each row of seeds and of an index."""
    state = tf.bitcast(seeds[:, 0], tf.uint64) + _mixed(tf.bitcast(seeds[:, 1], tf.uint64) + _constant(_STEP, index))
    bits = tf.bitwise.right_shift(_mixed(state), tf.constant(40, tf.uint64))  # 24 bits are exact in float32.
    return tf.cast(tf.cast(bits, tf.int32), tf.float32) / 2.0**24


def _shifted(draw: tf.Tensor, most: int, size: int) -> tf.Tensor:
    first = tf.cast(draw * (2 * most + 1), tf.int32)
    return first[:, tf.newaxis] + tf.range(size)


def _mixed(state: tf.Tensor) -> tf.Tensor:
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(shift, tf.uint64)))
        state = state * _constant(factor)
    return tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(31, tf.uint64)))


def _constant(value: int, times: int = 1) -> tf.Tensor:
    return tf.constant(value * times % 2**64, tf.uint64)
