"""The rows of an input split as every step of the conversion sees them."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.conversion.plan import Plan
from shardkit.sources import source_for
from shardkit.sources.base import InputSplit, RowBatch


def read_rows(plan: Plan, input_split: InputSplit) -> Iterator[RowBatch]:
    """Yields the batches of one input split that hold or reject rows.

    Raises:
        BadInputError: At the first row that does not fit, unless bad rows are tolerated.
    """
    source = source_for(plan.recipe.source.format or "")
    for rows in source.read(input_split, plan.files, plan.features, plan.recipe.source):
        if rows.batch.num_rows or rows.rejected:
            yield rows


def input_versions(plan: Plan, input_split: InputSplit) -> tuple[str, ...]:
    """Returns the versions of the files of an input split."""
    return tuple(f.version for f in plan.files[input_split.file_start : input_split.file_stop])
