"""Raw files in, trainable shards out, and a trainer that never waits for them."""

from __future__ import annotations

from shardkit._version import __version__

TYPE_CHECKING = False  # As in typing, whose import takes as long as all else here; type checkers know the name.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from fractions import Fraction
    from os import PathLike
    from typing import Any, Unpack

    from shardkit.conversion.memory.typed_options import ConvertOptions as ConvertOptions
    from shardkit.conversion.memory.typed_options import RowOptions as RowOptions
    from shardkit.conversion.memory.writer import Writer as Writer
    from shardkit.reading.length_buckets import LengthBuckets
    from shardkit.reading.media.images import Fit, ImageDecoder, Mode, OnError, Resample
    from shardkit.reading.media.videos import VideoDecoder
    from shardkit.reading.mixture import Mixture
    from shardkit.reading.split import Split
    from shardkit.reading.splits import Splits

__all__ = [
    "ConvertOptions", "LengthBuckets", "RowOptions", "Writer", "__version__", "convert", "decode_images",
    "decode_videos", "mix", "open", "open_tfrecords",
]  # fmt: skip

_LAZY = {
    "ConvertOptions": "shardkit.conversion.memory.typed_options",
    "RowOptions": "shardkit.conversion.memory.typed_options",
    "LengthBuckets": "shardkit.reading.length_buckets",
    "Writer": "shardkit.conversion.memory.writer",
}


def convert(
    data: Any, destination: str | PathLike[str], *, workers: int | None = None, **options: Unpack[ConvertOptions]
) -> Splits:
    """Makes a dataset and returns its splits: `shardkit.convert(frame, "out/people", seed=7)`.

    Args:
        data: Paths, as `shardkit convert` takes them, or rows: what has `__arrow_c_stream__` (Arrow, pandas, polars,
            DuckDB, Hugging Face `datasets`), a dict of columns, a NumPy array, a data set of TensorFlow or PyTorch with
            dicts as rows, or any iterable of dicts or of Arrow batches. Rows go through a file beside the dataset, some
            thousands at a time.
        destination: Of the dataset, local or in a store.
        workers: Pieces of work at the same time; None lets the data decide.
        options: Those of `shardkit convert`, with `_` for `-`: `shard_size="64MiB"`, `shuffle=False`,
            `cast={"x": "float32"}`. Paths with these options give the bytes that the command gives.

    Raises:
        UsageError: If an option or the data cannot be used.
        BadInputError: If a row or a file does not fit.
        ConflictError: If there is a dataset, and neither `overwrite=True` nor `append=True` is given.
        ShardkitError: What else the command ends with. Nothing is committed then.
    """
    from shardkit.conversion.memory.writer import convert as convert_them

    convert_them(data, destination, workers=workers, **options)
    return open(destination)


def open(
    url: str | PathLike[str],
    version: int | None = None,
    *,
    cache_dir: str | PathLike[str] | None = None,
    cache_bytes: int | str = "20GiB",
) -> Splits:
    """Returns the splits of a dataset by name; reads its manifest and nothing else.

    Blocks of a store are asked for ahead of need, side by side in one request where they lie so; each is compared with
    the CRC32C of the index, and asked for again if it differs or the store does not answer.

    Args:
        url: Local folder, address in a store (s3, gs, az, abfs, hdfs, hf) or on a web server (http, https).
        version: None means the newest.
        cache_dir: A local folder in which blocks that came from a store are kept as they are stored. Any number of
            processes and datasets may share it. Without meaning for what is on a mounted file system.
        cache_bytes: What all files in it together take at most, such as `"50GB"` or a number; the least recently used
            make room.

    Raises:
        UsageError: If there is no dataset, or no such version, or a newer shardkit wrote it; or if `cache_dir` cannot
            be used.
        DamageError: If the manifest is damaged.
    """
    # Here, so that `import shardkit` stays light for the command line.
    from shardkit.reading.splits import open_splits

    return open_splits(url, version, cache_dir=cache_dir, cache_bytes=cache_bytes)


def open_tfrecords(
    patterns: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    max_record_bytes: int = 256 * 1024 * 1024,
    max_expansion: int = 200,
    num_threads: int = 2,
) -> Split:
    """Returns the examples of TFRecord files that others wrote as one split named `train`; nothing is written.

    Its features are those that any record of any file has; one that some records lack is nullable.

    Every file is read once before this returns: all records are checked and their features inferred. That takes about
    as long as reading them takes, several files at a time; what is held meanwhile is a few MiB a thread. What is kept
    is a few hundred bytes a MiB of data. `shardkit index` keeps the result beside the files instead, and knows splits.

    A plain file is read in blocks of about 1 MiB. A gzip file is one block: reading from it holds all of it,
    uncompressed, and shuffled batches hold up to `num_lanes` of them.

    Args:
        patterns: A file, a folder, a glob, or several of them; local or in a store. They are below one folder. In
            folders and globs, files that hold no TFRecords are passed over unless they are called like some.
        max_record_bytes: Larger records are refused.
        max_expansion: A gzip file may become so many times as large; up to 64 MiB are always allowed.
        num_threads: Files that are read at the same time.

    Raises:
        UsageError: If there are none, a feature is of different kinds in two files, two files have no feature in
            common, they differ in compression, or hold SequenceExamples.
        BadInputError: At the first record that is damaged, cut off or no Example; names file, record and byte.
        StorageError: If a file cannot be read.
    """
    from shardkit.indexing.open import open_tfrecords as open_them

    return open_them(patterns, max_record_bytes=max_record_bytes, max_expansion=max_expansion, num_threads=num_threads)


def mix(sources: Mapping[Split, float | Fraction] | Iterable[tuple[Split, float | Fraction]]) -> Mixture:
    """Returns several splits as one source of batches: `shardkit.mix({first: 0.7, second: 0.3}).batches(...)`.

    Each source gives its share of the rows of every run of batches, begins again when it is through, in another order,
    and is read at its own place. Batches, states and numbers of workers are as those of a split. Adapters take it in
    place of a split.

    Args:
        sources: Weight of each split, positive, in any unit. A float stands for the decimal number it is written as.

    Raises:
        UsageError: If there are none, or a weight is no positive number.
    """
    from shardkit.reading.mixture import mix as mix_them

    return mix_them(sources)


def decode_images(
    feature: str,
    size: tuple[int, int] | None = None,
    *,
    mode: Mode = "RGB",
    resample: Resample = "bilinear",
    fit: Fit = "stretch",
    on_error: OnError = "raise",
    max_pixels: int = 64_000_000,
) -> ImageDecoder:
    """Returns a function for `map` that makes pixels of encoded images: uint8 `[n, height, width, channels]`.

    JPEG, PNG, WebP, GIF (its first frame) and BMP are decoded by Pillow and turned upright as their EXIF data say.
    Transparent parts are laid over white; 16 bits become 8. A JPEG is decoded at an eighth, a quarter or half of its
    size where that still covers `size`: several times as fast, and a pixel differs by a few levels from what decoding
    all of it gives. An example without an image is black.

    Args:
        feature: Name of the column, which becomes the pixels.
        size: Height and width. None wants all images of a batch to have one size.
        mode: `RGB`, or `L` for grey.
        resample: `nearest`, `bilinear`, `bicubic` or `lanczos`; all but the first look at every pixel that becomes one.
        fit: `stretch` fills `size` without keeping the ratio, `crop` keeps it and cuts off what is over on two sides,
            `pad` keeps it and leaves black bars.
        on_error: `fill` makes a damaged image black and says so: `present[feature]` is False. `raise` stops.
        max_pixels: Images that declare more are refused before anything is decoded.

    Raises:
        UsageError: If a setting cannot be.
    """
    from shardkit.reading.media.images import ImageDecoder

    return ImageDecoder(feature, size, mode, resample, fit, on_error, max_pixels)


def decode_videos(
    feature: str,
    size: tuple[int, int] | None = None,
    *,
    num_frames: int | None = None,
    fps: float | None = None,
    mode: Mode = "RGB",
    resample: Resample = "bilinear",
    fit: Fit = "stretch",
    on_error: OnError = "raise",
    max_pixels: int = 64_000_000,
) -> VideoDecoder:
    """Returns a function for `map` that makes pixels of videos: uint8 `[n, num_frames, height, width, channels]`.

    Encoded videos are decoded by PyAV (extra `video`), clips of encoded images by Pillow; frames are upright. One frame
    at a time is held at its own size. An example without a video is black.

    Args:
        feature: Name of the column, which becomes the pixels: bytes, or as many images a row, as `--video clips` gives.
        size: Height and width. None wants all frames of a batch to have one size.
        num_frames: Frames that are taken at even distances; a shorter video repeats some. None takes all, and wants
            all videos of a batch to have as many.
        fps: Frames a second that encoded videos are reduced to before, as by `--video-fps`.
        mode: As of `decode_images`; `resample`, `fit`, `on_error` and `max_pixels` too.
        resample: How pixels are computed from others.
        fit: What becomes of the ratio.
        on_error: What becomes of a damaged video.
        max_pixels: Frames that declare more are refused before anything is decoded.

    Raises:
        UsageError: If a setting cannot be.
    """
    from shardkit.reading.media.videos import VideoDecoder

    return VideoDecoder(feature, size, mode, resample, fit, on_error, max_pixels, num_frames, fps)


def __getattr__(name: str) -> object:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
