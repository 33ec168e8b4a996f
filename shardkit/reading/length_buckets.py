"""Length buckets: what a user asks for, which examples fall into which, and how many rows a batch of each has."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from shardkit.errors import UsageError
from shardkit.features import Features

Int64s = npt.NDArray[np.int64]
TooLong = Literal["error", "drop"]

MAX_BOUNDARIES = 64
MAX_CHOSEN = 32
MAX_WASTE = 0.09
# A batch that is filled up takes the memory of all its rows, however few examples there are.
MAX_BATCH_EXAMPLES = 2**26
NO_BUCKET = 255
"""Of an example that is longer than the last boundary."""

# Among so many lengths the best boundaries are found exactly, in a few milliseconds.
_MAX_CANDIDATES = 512

# A state of a reader is to stay under 1 KB.
_MAX_LISTED_CHARACTERS = 256


class LengthBuckets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Batches of examples of similar length, so that little of a batch is padding and there are few shapes.

    Attributes:
        feature: Whose length counts: the values of a list, the bytes of a string or of bytes; an integer is the length
            itself. A null has length 0.
        tokens_per_batch: What a batch of all workers together has at most, padding included. A bucket's batch has the
            largest multiple of `num_groups` of rows for which that holds. None: every batch has `global_batch_size`
            rows, and an epoch as many steps as without buckets.
        boundaries: Longest length of each bucket, ascending, at most 64. None chooses from the lengths: as few as keep
            the padding under 9 %, at most 32.
        too_long: What becomes of examples beyond the last boundary: `error` refuses, `drop` leaves them out of every
            epoch; `BatchReader.buckets` says how many.
        num_groups: Parts that the examples are dealt to; each gives as many rows to every batch. Any number of workers
            that divides it gets the same global batches. None means the number of workers.
        padded: Features whose lists of numbers are delivered as arrays `[n, boundary]`, filled up with 0, with their
            lengths, int32 `[n]`, as `NAME/length`. None may be longer than the boundary.
    """

    feature: str
    tokens_per_batch: int | None = None
    boundaries: tuple[int, ...] | None = None
    too_long: TooLong = "error"
    num_groups: int | None = None
    padded: tuple[str, ...] = ()


class BucketOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of the buckets decides the order; see `LengthBuckets`.

    Attributes:
        boundaries_digest: What stands for boundaries that are many, in states; see `shortened`.
        lengths_digest: Of lengths that were given; None if they are those of the feature.
    """

    feature: str
    tokens_per_batch: int | None
    boundaries: tuple[int, ...]
    too_long: TooLong
    num_groups: int
    boundaries_digest: str | None = None
    lengths_digest: str | None = None


class BucketSizes(NamedTuple):
    """The examples of a split by bucket.

    Attributes:
        boundaries: Longest length of each bucket.
        num_rows: Of each bucket's batches, those of all workers together.
        num_examples: In each bucket.
        num_too_long: Examples in none.
        num_tokens: Sum of the lengths of the examples in buckets.
    """

    boundaries: tuple[int, ...]
    num_rows: tuple[int, ...]
    num_examples: tuple[int, ...]
    num_too_long: int
    num_tokens: int

    @property
    def padding_waste(self) -> float:
        """Share of padding if every example is filled up to its bucket's boundary.

        What goes up at the end of an epoch adds to it, about a quarter of a batch a bucket.
        """
        num_padded = sum(n * boundary for n, boundary in zip(self.num_examples, self.boundaries, strict=True))
        return 1 - self.num_tokens / num_padded if num_padded else 0.0


class Lengths(NamedTuple):
    """How many examples there are of each length."""

    values: Int64s
    counts: Int64s


def length_name(feature: str) -> str:
    """Returns the name of the column that holds the lengths of a padded feature."""
    return f"{feature}/length"


def checked(request: LengthBuckets) -> LengthBuckets:
    """Returns a request with its sequences as tuples, and integers of NumPy as those of Python.

    Raises:
        UsageError: If a value is of a wrong type, the boundaries are no ascending numbers from 1, or one is below 1.
    """
    try:
        values = msgspec.to_builtins(request, enc_hook=lambda value: np.asarray(value).tolist())
        buckets = msgspec.convert(values, LengthBuckets)
    except msgspec.ValidationError as error:
        raise UsageError("there are no such buckets", why=str(error), next_step="Correct the LengthBuckets") from error
    bounds = buckets.boundaries
    if bounds is not None:
        is_ascending = all(a < b for a, b in zip((0, *bounds), bounds, strict=False))
        if not bounds or not is_ascending or len(bounds) > MAX_BOUNDARIES:
            raise UsageError(
                "these are no boundaries of buckets",
                why=f"expected 1 to {MAX_BOUNDARIES} ascending lengths from 1, got {list(bounds)[:70]}",
                next_step="Correct them, or leave them out to have them chosen",
            )
    numbers = {"tokens_per_batch": buckets.tokens_per_batch, "num_groups": buckets.num_groups}
    small = [f"{name} is {number}" for name, number in numbers.items() if number is not None and number < 1]
    if small:
        raise UsageError("there are no such batches", why=" and ".join(small), next_step="Give numbers from 1")
    return buckets


def one_size(global_batch_size: int | None, buckets: LengthBuckets | None) -> int:
    """Returns the size of a batch, 0 if the tokens of buckets decide. Raises UsageError if both say it, or none."""
    has_tokens = buckets is not None and buckets.tokens_per_batch is not None
    if (global_batch_size is not None) == has_tokens:
        raise UsageError(
            "either `global_batch_size` or the `tokens_per_batch` of buckets says how many examples a batch has",
            why="both are given" if has_tokens else "neither is given",
            next_step="Give global_batch_size=N, or buckets=LengthBuckets(feature=..., tokens_per_batch=N)",
        )
    return global_batch_size or 0


def order_of(buckets: LengthBuckets, num_workers: int) -> BucketOrder:
    """Returns the parts of a request that decide the order; boundaries that are not given yet are empty."""
    return BucketOrder(
        feature=buckets.feature,
        tokens_per_batch=buckets.tokens_per_batch,
        boundaries=buckets.boundaries or (),
        too_long=buckets.too_long,
        num_groups=buckets.num_groups or num_workers,
    )


def shortened(order: BucketOrder) -> BucketOrder:
    """Returns an order as states hold it: boundaries that take much room become a digest, equal for equal ones."""
    text = ",".join(map(str, order.boundaries))
    if len(text) <= _MAX_LISTED_CHARACTERS:
        return order
    first, last = order.boundaries[0], order.boundaries[-1]
    digest = f"{len(order.boundaries)} from {first:,} to {last:,}, hash {xxhash.xxh3_128_hexdigest(text.encode())}"
    return msgspec.structs.replace(order, boundaries=(), boundaries_digest=digest)


def check_padded(buckets: LengthBuckets, features: Features) -> None:
    """Checks that the features which are to become arrays are lists of numbers and are delivered.

    Raises:
        UsageError: If they are not.
    """
    fits = {f.name for f in features if f.num_values is None and f.stored_as != "bytes_list"}
    names = {f.name for f in features}
    for name in buckets.padded:
        if name not in fits or length_name(name) in names:
            taken = f"there is a feature {length_name(name)!r} already"
            raise UsageError(
                f"feature {name!r} cannot be padded",
                why=taken if name in fits else "it is no list of numbers among the features that are read",
                next_step="Name lists of numbers, or pad by yourself with Ragged.to_dense(batch.pad_to)",
            )


def bucket_num_rows(boundaries: tuple[int, ...], tokens_per_batch: int, num_groups: int) -> tuple[int, ...]:
    """Returns the rows of a global batch of each bucket.

    Raises:
        UsageError: If a batch would have none; says what would do.
    """
    longest = boundaries[-1]
    if longest * num_groups > tokens_per_batch:
        most = tokens_per_batch // longest
        fewer = f", or num_groups={most} or less" if most else ", or leave out the longest with smaller boundaries"
        raise UsageError(
            "a batch of the longest examples has no room for one row of each group",
            why=f"{num_groups} groups times {longest:,} tokens are more than tokens_per_batch {tokens_per_batch:,}",
            next_step=f"Use tokens_per_batch={longest * num_groups} or more{fewer}",
        )
    num_rows = tuple(tokens_per_batch // (boundary * num_groups) * num_groups for boundary in boundaries)
    if max(num_rows) > MAX_BATCH_EXAMPLES:
        raise UsageError(
            "a batch of the shortest examples would have too many rows",
            why=f"tokens_per_batch {tokens_per_batch:,} gives {max(num_rows):,} of length {boundaries[0]:,}, and "
            f"{MAX_BATCH_EXAMPLES:,} at most can be",
            next_step=f"Use tokens_per_batch={boundaries[0] * MAX_BATCH_EXAMPLES} or less",
        )
    return num_rows


def goes_up(num_examples: tuple[int, ...], num_rows: tuple[int, ...], *, always: bool = False) -> tuple[bool, ...]:
    """Returns for each bucket whether examples that do not fill a batch go into batches of the next one.

    They do if it has examples and its batches have at least an eighth of the rows, so that these few are no more than
    seven batches of mostly padding.

    Args:
        num_examples: In each bucket.
        num_rows: Of each bucket's batches.
        always: Whether they do in any case, as where every batch has the same rows: an epoch then has as many batches
            as without buckets.
    """
    if always:
        return (True,) * (len(num_rows) - 1) + (False,)
    following = zip(num_rows, num_rows[1:], num_examples[1:], strict=False)
    return (*(count > 0 and 8 * above >= size for size, above, count in following), False)


def num_batches(
    num_examples: tuple[int, ...], num_rows: tuple[int, ...], *, pads: bool, always_up: bool = False
) -> int:
    """Returns the batches of an epoch; they are the same number whatever the order is.

    Args:
        num_examples: In each bucket.
        num_rows: Of each bucket's batches.
        pads: Whether examples that do not fill a batch and do not go up are in one more.
        always_up: Whether what does not fill a batch goes up in any case; see `goes_up`.
    """
    total, rest = 0, 0
    is_ups = goes_up(num_examples, num_rows, always=always_up)
    for count, size, is_up in zip(num_examples, num_rows, is_ups, strict=True):
        num_full, rest = divmod(count + rest, size)
        total += num_full
        if not is_up:
            total += pads and rest > 0
            rest = 0
    return total


def find_buckets(lengths: npt.NDArray[Any], boundaries: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Returns the bucket of each length, `NO_BUCKET` beyond the last boundary."""
    found = np.searchsorted(np.asarray(boundaries, np.int64), lengths, side="left")
    return np.where(found == len(boundaries), NO_BUCKET, found).astype(np.uint8)


def choose_boundaries(lengths: Lengths) -> tuple[int, ...]:
    """Returns the fewest boundaries that keep padding under `MAX_WASTE`, at most `MAX_CHOSEN`; the last is the longest.

    The boundaries are the best for their number: dynamic programming over where each bucket ends. Where lengths are
    many, candidates are those that cut the tokens into equal parts.
    """
    if not len(lengths.values) or lengths.values[-1] < 1:
        return (1,)
    ends, counts, num_tokens = _candidates(lengths)
    # costs[i, j]: padded tokens of one bucket from behind candidate i - 1 to candidate j.
    before = np.cumsum(counts) - counts
    costs = ends[None, :] * (np.cumsum(counts)[None, :] - before[:, None]).astype(np.float64)
    costs[np.tril_indices(len(ends), -1)] = np.inf
    best, firsts = costs[0], [np.zeros(len(ends), np.int64)]
    while num_tokens < (1 - MAX_WASTE) * best[-1] and len(firsts) < min(MAX_CHOSEN, len(ends)):
        totals = np.concatenate([[np.inf], best[:-1]])[:, None] + costs
        firsts.append(totals.argmin(axis=0))
        best = totals.min(axis=0)
    chosen, last = [], len(ends) - 1
    for first in reversed(firsts):
        chosen.append(int(ends[last]))
        last = int(first[last]) - 1
    return tuple(reversed(chosen))


def _candidates(lengths: Lengths) -> tuple[Int64s, Int64s, int]:
    """Returns possible boundaries, the examples that each adds, and the tokens of all."""
    values, counts = lengths
    tokens = np.cumsum(values * counts)
    if len(values) <= _MAX_CANDIDATES:
        is_end = np.ones(len(values), np.bool_)
    else:
        parts = (tokens * _MAX_CANDIDATES // tokens[-1]).astype(np.int64)
        is_end = np.append(parts[1:] != parts[:-1], True)
    is_end &= values > 0
    ends = np.flatnonzero(is_end)
    num_below = np.cumsum(counts)[ends]
    return values[ends], np.diff(num_below, prepend=0), int(tokens[-1])
