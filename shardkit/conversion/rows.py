"""The rows of an input split as every step of the conversion sees them."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.conversion.plan import Plan
from shardkit.sources import source_for
from shardkit.sources.base import InputSplit
from shardkit.transforms.pipeline import Applied, apply


def read_rows(plan: Plan, input_split: InputSplit) -> Iterator[Applied]:
    """Yields the batches of one input split that hold, reject or filter rows, transformed.

    Raises:
        BadInputError: At the first row that does not fit, unless bad rows are tolerated.
    """
    source = source_for(plan.recipe.source.format or "")
    features = plan.transforms.input_features
    for rows in source.read(input_split, plan.files, features, plan.recipe.source):
        if rows.batch.num_rows == 0 and not rows.rejected:
            continue
        applied = apply(plan.transforms, rows, plan.files, input_split)
        if applied.rows.batch.num_rows or applied.rows.rejected or applied.num_filtered:
            yield applied


def input_versions(plan: Plan, input_split: InputSplit) -> tuple[str, ...]:
    """Returns the versions of the files of an input split."""
    return tuple(f.version for f in plan.files[input_split.file_start : input_split.file_stop])
