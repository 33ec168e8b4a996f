"""Images as arrays: what a model sees of them, and how chance changes them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.features import make_feature
from train.models.image_arrays import augment_pixels, prepare_pixels, uniform

pytestmark = pytest.mark.full


def seeds(num: int) -> tf.Tensor:
    return tf.stack([1_000 + tf.range(num, dtype=tf.int64), tf.fill([num], tf.constant(-7, tf.int64))], axis=1)


def test_draws_are_even_independent_and_a_function_of_the_seed() -> None:
    first, second = (uniform(seeds(50_000), i).numpy() for i in range(2))
    assert np.histogram(first, 10, (0, 1))[0] == pytest.approx([5_000] * 10, rel=0.08)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03
    np.testing.assert_array_equal(uniform(seeds(50_000)[777:], 0), first[777:])


def test_bytes_are_pixels_and_other_numbers_are_scaled() -> None:
    grey = make_feature("m", "uint8", (8, 9))
    values = np.arange(144).reshape(2, 8, 9).astype(np.uint8)
    shown = prepare_pixels(grey, None, 9)(values)
    assert shown.shape == [2, 9, 9, 1]
    wide = make_feature("m", "float64", (8, 8))
    own = FeatureStatistics(count=1, num_nulls=0, num_values=64, min=-1.0, max=3.0)
    flat = tf.fill([1, 8, 8], tf.constant(1.0, tf.float64))
    np.testing.assert_allclose(prepare_pixels(wide, own, 8)(flat), np.full((1, 8, 8, 1), 127.5))
    assert prepare_pixels(wide, own, 8)(flat * np.nan).numpy().max() == 0


def test_grey_images_are_shifted_a_little_and_never_mirrored() -> None:
    image = np.zeros((28, 28, 1), np.float32)
    image[14, 10], image[14, 11] = 1, 2
    changed = augment_pixels(tf.constant(np.stack([image] * 400)), seeds(400)).numpy()[..., 0]
    rows, left = np.nonzero(changed == 1)[1:], np.argwhere(changed == 2)[:, 2]
    assert set(rows[0]) == {12, 13, 14, 15, 16}
    assert set(rows[1]) == {8, 9, 10, 11, 12}
    np.testing.assert_array_equal(left - rows[1], np.ones(400))


def test_colour_images_are_mirrored_half_of_the_time() -> None:
    image = np.zeros((32, 32, 3), np.float32)
    image[16, 10], image[16, 11] = 1, 2
    changed = augment_pixels(tf.constant(np.stack([image] * 400)), seeds(400)).numpy()[..., 0]
    direction = np.argwhere(changed == 2)[:, 2] - np.argwhere(changed == 1)[:, 2]
    assert set(direction) == {-1, 1}
    assert 150 < np.sum(direction == 1) < 250
