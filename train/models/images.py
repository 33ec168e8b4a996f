"""Encoded images to the float32 tensors of a model: decode, crop, resize, and augment by seed."""

from __future__ import annotations

import tensorflow as tf

NUM_CHANNELS = 3
MIN_CROP_AREA = 0.5
MAX_COLOR_CHANGE = 0.2
_ASPECT_RATIOS = (3 / 4, 4 / 3)
_GREY = 128
# As many as `convert` takes by default. A PNG of 50 KB may declare 400 million, which take gigabytes.
MAX_PIXELS = 64_000_000
_HEAD_BYTES = 32


def decode(encoded: tf.Tensor) -> tf.Tensor:
    """Returns an encoded JPEG, PNG, GIF, BMP or WebP as uint8 `[height, width, 3]`; an absent one as a grey pixel.

    Of an animation it is the first frame. An image that declares more than `MAX_PIXELS` is an `InvalidArgumentError`.
    """

    def decoded() -> tf.Tensor:
        message = f"an image declares more than {MAX_PIXELS:,} pixels"
        most = tf.constant(MAX_PIXELS, tf.int64)
        # Eagerly, nothing is returned: a wrong number is raised at once.
        check = tf.debugging.assert_less_equal(_declared_pixels(encoded), most, message)
        with tf.control_dependencies([] if check is None else [check]):
            return tf.io.decode_image(tf.identity(encoded), channels=NUM_CHANNELS, expand_animations=False)

    def grey() -> tf.Tensor:
        return tf.fill([1, 1, NUM_CHANNELS], tf.constant(_GREY, tf.uint8))

    image = tf.cond(tf.equal(tf.strings.length(encoded), 0), grey, decoded)
    return tf.ensure_shape(image, [None, None, NUM_CHANNELS])


def _declared_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Returns height times width as the header of a JPEG, PNG, GIF or BMP says; 0 for WebP, which has few at most."""
    padded = tf.strings.join([tf.strings.substr(encoded, 0, _HEAD_BYTES), tf.constant(bytes(_HEAD_BYTES))])
    head = tf.cast(tf.io.decode_raw(tf.strings.substr(padded, 0, _HEAD_BYTES), tf.uint8), tf.int64)

    def number(*positions: int) -> tf.Tensor:
        """Returns the number of bytes, the highest first."""
        return tf.reduce_sum(tf.stack([head[p] * 256**i for i, p in enumerate(reversed(positions))]))

    def in_jpeg() -> tf.Tensor:
        return tf.reduce_prod(tf.cast(tf.image.extract_jpeg_shape(encoded)[:2], tf.int64))

    def begins(start: bytes) -> tf.Tensor:
        return tf.reduce_all(head[: len(start)] == tf.constant(list(start), tf.int64))

    return tf.case(
        [
            (begins(b"\xff\xd8"), in_jpeg),
            (begins(b"\x89PNG"), lambda: number(16, 17, 18, 19) * number(20, 21, 22, 23)),
            (begins(b"GIF8"), lambda: number(7, 6) * number(9, 8)),
            # The height of a picture that begins at its top is negative.
            (begins(b"BM"), lambda: number(21, 20, 19, 18) * _absolute(number(25, 24, 23, 22))),
        ],
        default=lambda: tf.constant(0, tf.int64),
    )


def _absolute(number: tf.Tensor) -> tf.Tensor:
    return tf.minimum(number, 2**32 - number)


def center_image(encoded: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns the largest centred square, resized: float32 `[image_size, image_size, 3]` from 0 to 255."""
    image = decode(encoded)
    shape = tf.shape(image)
    side = tf.minimum(shape[0], shape[1])
    top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
    return _resize(image[top : top + side, left : left + side], image_size)


def augment_image(encoded: tf.Tensor, image_size: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random crop, resized, perhaps mirrored, with other brightness and contrast.

    Args:
        encoded: One image, as a file.
        image_size: Height and width of the result.
        seed: int64 `[2]`; the same seed gives the same result.
    """
    image = decode(encoded)
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 4))
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([0, 0, 4]),
        seed=seeds[0],
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECT_RATIOS,
        area_range=(MIN_CROP_AREA, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    image = _resize(tf.ensure_shape(tf.slice(image, begin, size), [None, None, NUM_CHANNELS]), image_size)
    image = tf.image.stateless_random_flip_left_right(image, seeds[1])
    image = tf.image.stateless_random_brightness(image, 255 * MAX_COLOR_CHANGE, seeds[2])
    image = tf.image.stateless_random_contrast(image, 1 - MAX_COLOR_CHANGE, 1 + MAX_COLOR_CHANGE, seeds[3])
    return tf.clip_by_value(image, 0.0, 255.0)


def _resize(image: tf.Tensor, image_size: int) -> tf.Tensor:
    sides = [image_size, image_size]
    # Images that shrink are averaged. That leaves no pixel out either, and takes a third of the time of a filter
    # (0.5 ms, not 1.5, for a photo of 0.16 megapixels at 224).
    resized = tf.cond(
        tf.reduce_all(tf.shape(image)[:2] >= image_size),
        lambda: tf.image.resize(image, sides, method=tf.image.ResizeMethod.AREA),
        lambda: tf.cast(tf.image.resize(image, sides, antialias=True), tf.float32),
    )
    return tf.ensure_shape(resized, [image_size, image_size, NUM_CHANNELS])
