"""The length of every example of a split: a pass over it that decodes one feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardkit.decoder import RecordDecoder
from shardkit.errors import UsageError
from shardkit.features import Feature
from shardkit.reading.blocks import BlockLoader
from shardkit.reading.length_buckets import (
    NO_BUCKET,
    BucketSizes,
    LengthBuckets,
    Lengths,
    choose_boundaries,
    find_buckets,
)
from shardkit.worker_threads import worker_threads

_NUM_REQUESTS = 16


class SplitBuckets(NamedTuple):
    """The buckets of all examples of a split.

    Attributes:
        boundaries: Longest length of each bucket.
        bucket_of: Of each example, in the stored order; a byte each.
        num_examples: In each bucket.
        num_too_long: Examples in none.
        longest: Length of all examples.
        num_tokens: Sum of the lengths of the examples in buckets.
    """

    boundaries: tuple[int, ...]
    bucket_of: npt.NDArray[np.uint8]
    num_examples: tuple[int, ...]
    num_too_long: int
    longest: int
    num_tokens: int

    def sizes(self, num_rows: tuple[int, ...]) -> BucketSizes:
        """Returns what is told of them, with the rows of each bucket's batches."""
        return BucketSizes(self.boundaries, num_rows, self.num_examples, self.num_too_long, self.num_tokens)


def has_length(feature: Feature) -> bool:
    """Returns whether examples differ in a feature's length; an integer is one."""
    is_bytes = feature.is_scalar and feature.dtype in ("string", "bytes")
    is_integer = feature.is_scalar and feature.dtype.rstrip("0123456789") in ("int", "uint")
    return feature.num_values is None or is_bytes or is_integer


def check_too_long(found: SplitBuckets, buckets: LengthBuckets) -> None:
    """Checks that every example is in a bucket where that is asked for.

    Raises:
        UsageError: If not.
    """
    if found.num_too_long and buckets.too_long == "error":
        num_examples = found.num_too_long + sum(found.num_examples)
        raise UsageError(
            f"feature {buckets.feature!r} has examples that fit no bucket",
            why=f"{found.num_too_long:,} of {num_examples:,} are longer than the last boundary "
            f"{found.boundaries[-1]:,}, the longest has {found.longest:,}",
            next_step=f"Add a boundary of at least {found.longest}, or leave them out with too_long='drop'",
        )


def put_in_buckets(
    loader: BlockLoader,
    num_examples: npt.NDArray[np.int64],
    feature: Feature,
    boundaries: tuple[int, ...] | None,
    num_threads: int,
) -> SplitBuckets:
    """Returns the buckets of all examples of a split, with the boundaries that are given or suit the lengths.

    Holds 8 bytes an example while it reads.

    Args:
        loader: Of the split's blocks.
        num_examples: Of each block.
        feature: Whose length counts; see `has_length`.
        boundaries: None chooses them.
        num_threads: Blocks that are decoded at once, at least one.

    Raises:
        UsageError: If the feature has no length, or one is negative.
        DamageError: If a block cannot be read.
    """
    if not has_length(feature):
        raise UsageError(
            f"feature {feature.name!r} has no length",
            why=f"it is {feature.dtype} {list(feature.shape)}",
            next_step="Name a list of any length, text, bytes, or an integer that is the length",
        )
    lengths = np.zeros(int(num_examples.sum()), np.int64)
    first = 0
    for found in _block_lengths(loader, feature, len(num_examples), num_threads):
        lengths[first : first + len(found)] = found
        first += len(found)
    if len(lengths) and lengths.min() < 0:
        raise UsageError(
            f"feature {feature.name!r} cannot be a length",
            why=f"the least is {lengths.min():,}",
            next_step="Name a list, text, bytes, or an integer from 0",
        )
    if boundaries is None:
        boundaries = choose_boundaries(Lengths(*np.unique(lengths, return_counts=True)))
    bucket_of = find_buckets(lengths, boundaries)
    counts = np.bincount(bucket_of, minlength=NO_BUCKET + 1)
    return SplitBuckets(
        boundaries,
        bucket_of,
        num_examples=tuple(counts[: len(boundaries)].tolist()),
        num_too_long=int(counts[NO_BUCKET]),
        longest=int(lengths.max(initial=0)),
        num_tokens=int(lengths[bucket_of != NO_BUCKET].sum()),
    )


def _block_lengths(
    loader: BlockLoader, feature: Feature, num_blocks: int, num_threads: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the lengths of the examples of each block."""
    decoder = RecordDecoder((feature,))
    is_number = feature.is_scalar and feature.stored_as == "int64_list"

    def read(index: int) -> npt.NDArray[np.int64]:
        block = loader.load(index, None)
        columns = decoder.decode_buffers(
            block.frames, block.starts, block.lengths, lambda row: f"{block.where}, record {row}"
        )
        # Offsets come first, of lists as of bytes.
        numbers: Any = columns[0][1]
        if is_number:
            values: npt.NDArray[np.int64] = np.frombuffer(numbers, np.int64)
            return values
        return np.diff(np.frombuffer(numbers, np.int32)).astype(np.int64)

    num_threads = max(num_threads, _NUM_REQUESTS if loader.is_remote else 1)
    with worker_threads(num_threads, "shardkit-lengths") as threads:
        yield from threads.map(read, range(num_blocks))
