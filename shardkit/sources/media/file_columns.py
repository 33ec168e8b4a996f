"""Columns of files that are a row each, and which of these files are read together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.media.audio_decoding import Samples
from shardkit.sources.base import InputSplit, RawFile
from shardkit.sources.files.whole_files import WholeFiles


def in_pixels(boxes: pa.Array, widths: pa.Array, heights: pa.Array) -> pa.Array:
    """Returns boxes, four numbers each, that are parts of the width and height of their image, in pixels."""
    sizes = np.stack([widths.to_numpy(), heights.to_numpy()], axis=1).astype(np.float64)
    num_values = boxes.value_lengths().fill_null(0).to_numpy()
    factors = np.repeat(sizes, num_values // 2, axis=0).reshape(-1)
    offsets = np.concatenate([[0], np.cumsum(num_values)])
    scaled = pa.array(boxes.flatten().to_numpy() * factors)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), scaled, mask=boxes.is_null())


def as_bytes(whole: WholeFiles, positions: npt.NDArray[np.int64]) -> pa.Array:
    """Returns the bytes of some of the files, without a copy where it is all of them."""
    offsets = pa.py_buffer(whole.offsets.astype(np.int32))
    contents = pa.Array.from_buffers(pa.binary(), len(whole.offsets) - 1, [None, offsets, whole.data])
    return contents if len(positions) == len(contents) else contents.take(pa.array(positions))


def as_lists(samples: Sequence[Samples]) -> pa.Array:
    """Returns lists of numbers, each of shape `[n]`."""
    offsets = np.cumsum([0, *map(len, samples)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.concatenate(samples)))


def cut_batches(
    split: InputSplit, files: tuple[RawFile, ...], batch_bytes: int, max_file_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yields the files of a split in batches of about `batch_bytes`, half-open; a file that is too large is alone."""
    start, num_bytes = split.file_start, 0
    for index in range(split.file_start, split.file_stop):
        if files[index].num_bytes > max_file_bytes:
            if index > start:
                yield start, index
            yield index, index + 1
            start, num_bytes = index + 1, 0
            continue
        num_bytes += files[index].num_bytes
        if num_bytes >= batch_bytes:
            yield start, index + 1
            start, num_bytes = index + 1, 0
    if start < split.file_stop:
        yield start, split.file_stop
