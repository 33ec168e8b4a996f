"""Length buckets of a run: which models can have them, where they end, how much of their batches is padding. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardkit.errors import UsageError
from shardkit.reading.length_buckets import LengthBuckets, Lengths, choose_boundaries, find_buckets
from train.options.config import ReaderChoice
from train.options.model_defaults import model_kind
from train.options.model_table import BUILTIN_MODELS

Boundaries = tuple[int, ...]


class SplitBuckets(NamedTuple):
    """The buckets of the examples of one split.

    Attributes:
        feature: Whose length counts.
        boundaries: Longest length of each bucket; each has examples.
        bucket_of: Of each example, in the stored order.
        padding: Share of padding if every example is filled up to its boundary.
    """

    feature: str
    boundaries: Boundaries
    bucket_of: npt.NDArray[np.uint8]
    padding: float

    def request(self, num_groups: int) -> LengthBuckets:
        """Returns the request for the reader.

        Args:
            num_groups: Parts of a global batch that workers share.
        """
        return LengthBuckets(feature=self.feature, boundaries=self.boundaries, num_groups=num_groups)


def check_length_buckets(model: str, reader: ReaderChoice) -> None:
    """Checks that a run can have length buckets. Raises UsageError if its model or its reader cannot."""
    if not model_kind(model).has_lengths:
        names = " or ".join(name for name, kind in BUILTIN_MODELS.items() if kind.has_lengths)
        raise UsageError(
            "--length-buckets is for texts, lists of tokens, series and audio",
            why=f"the model is {model}",
            next_step=f"Leave it out, or use --model {names}",
        )
    if reader != "shardkit":
        raise UsageError(
            "--length-buckets is for shardkit's own reader",
            why=f"--reader {reader} was given",
            next_step="Leave one of them out",
        )


def fit_boundaries(wanted: Boundaries | None, lengths: Lengths) -> Boundaries:
    """Returns boundaries of which each has examples, and the last of which is no less than the longest.

    Args:
        wanted: Ascending; longer examples than the last one get one more bucket. None chooses boundaries that suit
            the lengths.
        lengths: How many examples there are of each.
    """
    if wanted is None or not len(lengths.values):
        return choose_boundaries(lengths)
    longest = int(lengths.values[-1])
    ends = (*wanted, longest) if longest > wanted[-1] else wanted
    used = set(np.searchsorted(ends, lengths.values, side="left").tolist())
    return tuple(end for i, end in enumerate(ends) if i in used)


def bucket_split(
    feature: str, wanted: Boundaries | None, lengths: npt.NDArray[np.int32], counts: Lengths
) -> SplitBuckets:
    """Returns the buckets of the examples of a split.

    Args:
        feature: Whose length counts.
        wanted: As for `fit_boundaries`.
        lengths: Of each example, in the stored order.
        counts: How many examples there are of each length.
    """
    boundaries = fit_boundaries(wanted, counts)
    bucket_of = find_buckets(lengths, boundaries)
    num_padded = int(np.bincount(bucket_of, minlength=len(boundaries)) @ np.array(boundaries))
    num_positions = int((counts.values * counts.counts).sum())
    return SplitBuckets(feature, boundaries, bucket_of, 1 - num_positions / max(1, num_padded))
