"""The length of every example of a split: a pass over it that decodes one feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from shardkit.dataset.block_loader import BlockLoader
from shardkit.encoding.decoder import RecordDecoder
from shardkit.errors import UsageError
from shardkit.features import Feature
from shardkit.reading.length_buckets import (
    NO_BUCKET,
    BucketSizes,
    LengthBuckets,
    Lengths,
    choose_boundaries,
    find_buckets,
)
from shardkit.runtime.threads import worker_threads

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
        lengths_digest: Of lengths that were given; None if they are those of the feature.
    """

    boundaries: tuple[int, ...]
    bucket_of: npt.NDArray[np.uint8]
    num_examples: tuple[int, ...]
    num_too_long: int
    longest: int
    num_tokens: int
    lengths_digest: str | None = None

    def sizes(self, num_rows: tuple[int, ...]) -> BucketSizes:
        """Returns the sizes of the buckets for a number of rows in each bucket's batches."""
        return BucketSizes(self.boundaries, num_rows, self.num_examples, self.num_too_long, self.num_tokens)


class GivenLengths(NamedTuple):
    """Lengths of the examples of a split that were not read from it."""

    lengths: npt.NDArray[np.int32]
    digest: str


def given_lengths(lengths: npt.NDArray[np.integer[Any]], num_examples: int) -> GivenLengths:
    """Returns lengths with their digest. Raises UsageError if they are not one whole number from 0 for each example."""
    given = np.asarray(lengths)
    is_right = given.shape == (num_examples,) and given.dtype.kind in "iu"
    if not is_right or (num_examples and not 0 <= given.min() <= given.max() <= np.iinfo(np.int32).max):
        raise UsageError(
            "these are no lengths of the examples",
            why=f"they are {given.dtype} {list(given.shape)}, and the split has {num_examples:,} examples",
            next_step="Give one whole number from 0 for each, in the stored order",
        )
    kept = np.ascontiguousarray(given, np.dtype("<i4"))
    return GivenLengths(kept, xxhash.xxh3_128_hexdigest(kept.data))


def has_length(feature: Feature) -> bool:
    """Returns whether examples differ in a feature's length; an integer is one."""
    is_bytes = feature.is_scalar and feature.dtype in ("string", "bytes")
    is_integer = feature.is_scalar and feature.dtype.rstrip("0123456789") in ("int", "uint")
    return feature.num_values is None or is_bytes or is_integer


def check_too_long(found: SplitBuckets, buckets: LengthBuckets) -> None:
    """Checks that every example is in a bucket where that is asked for, or raises `UsageError`."""
    if found.num_too_long and buckets.too_long == "error":
        num_examples = found.num_too_long + sum(found.num_examples)
        raise UsageError(
            f"feature {buckets.feature!r} has examples that fit no bucket",
            why=f"{found.num_too_long:,} of {num_examples:,} are longer than the last boundary "
            f"{found.boundaries[-1]:,}, the longest has {found.longest:,}",
            next_step=f"Add a boundary of at least {found.longest}, or leave them out with too_long='drop'",
        )


def assign_length_buckets(
    lengths: npt.NDArray[np.integer[Any]], boundaries: tuple[int, ...] | None, digest: str | None = None
) -> SplitBuckets:
    """Returns the buckets of examples, with the boundaries that are given or suit the lengths.

    Args:
        lengths: Of each example, in the stored order, none negative.
        boundaries: None chooses them.
        digest: Of lengths that were given.
    """
    if boundaries is None:
        boundaries = choose_boundaries(count_lengths(lengths))
    bucket_of = find_buckets(lengths, boundaries)
    counts = np.bincount(bucket_of, minlength=NO_BUCKET + 1)
    return SplitBuckets(
        boundaries,
        bucket_of,
        num_examples=tuple(counts[: len(boundaries)].tolist()),
        num_too_long=int(counts[NO_BUCKET]),
        longest=int(lengths.max(initial=0)),
        num_tokens=int(lengths[bucket_of != NO_BUCKET].sum(dtype=np.int64)),
        lengths_digest=digest,
    )


def count_lengths(lengths: npt.NDArray[np.integer[Any]]) -> Lengths:
    """Returns how many examples there are of each length."""
    values, counts = np.unique(lengths, return_counts=True)
    return Lengths(values.astype(np.int64), counts.astype(np.int64))


def read_lengths(
    loader: BlockLoader, num_examples: npt.NDArray[np.int64], feature: Feature, num_threads: int
) -> npt.NDArray[np.int64]:
    """Returns the length of every example of a split, in the stored order.

    Args:
        loader: Of the split's blocks.
        num_examples: Of each block.
        feature: Whose length counts; see `has_length`.
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
    return lengths


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
