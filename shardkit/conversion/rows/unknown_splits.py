"""Rows whose column says nothing of their split: bad rows like others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.conversion.plan import Plan
from shardkit.errors import BadInputError
from shardkit.messages import shown
from shardkit.sources.base import InputSplit, RejectedRow, RowBatch, rejected_row
from shardkit.sources.split_names import split_for_word
from shardkit.transforms.pipeline import Applied
from shardkit.transforms.row_origin import origin_of, place_of, raw_row


def without_unknown_splits(plan: Plan, split: InputSplit, applied: Applied) -> Applied:
    """Returns the rows whose column names a split of the recipe or has a rank, the others as rejected rows.

    Raises:
        BadInputError: At the first other row, unless bad rows are tolerated.
    """
    recipe, rows = plan.recipe, applied.rows
    if rows.batch.num_rows == 0 or (recipe.split_column is None and recipe.split_by is None):
        return applied
    if recipe.split_column is not None:
        words, names = rows.batch.column(recipe.split_column).cast(pa.string()), {s.name for s in recipe.splits}
        known = [word for word in pc.unique(words).to_pylist() if split_for_word(word, names) is not None]
        found = pc.is_in(words, value_set=pa.array(known, words.type))
    else:
        found = pc.invert(pc.is_null(rows.batch.column(recipe.split_by), nan_is_null=True))
    is_known = np.asarray(found.to_numpy(zero_copy_only=False), bool)
    if is_known.all():
        return applied
    rejected = [_rejected(plan, split, rows, int(row)) for row in np.flatnonzero(~is_known)]
    indices = rows.file_indices
    return Applied(
        RowBatch(
            rows.batch.filter(pa.array(is_known)),
            rows.identities[is_known],
            indices if isinstance(indices, int) else indices[is_known],
            rows.num_rounded,
            (*rows.rejected, *rejected),
        ),
        applied.num_filtered,
    )


def _rejected(plan: Plan, split: InputSplit, rows: RowBatch, row: int) -> RejectedRow:
    name = plan.recipe.split_column or plan.recipe.split_by or ""
    word = rows.batch.column(name)[row].as_py()
    is_ranked = plan.recipe.split_by is not None
    origin = origin_of(rows, row, plan.files, split, plan.recipe.source)
    error = BadInputError(
        f"column {shown(name)} does not fit",
        where=place_of(origin, plan.files),
        why=f"{'null' if word is None else shown(word)} {'has no rank' if is_ranked else 'is no split'}",
        next_step="Leave such rows out with --on-bad-record skip or quarantine, which count them"
        if is_ranked
        else "Name every split with --split NAME, or leave the row out with --on-bad-record skip or quarantine",
    )
    if not plan.recipe.source.tolerates_bad_rows:
        raise error
    return rejected_row(
        error,
        file_index=origin.file_index,
        position=origin.position,
        first_byte=None,
        raw=raw_row(rows.batch, row),
    )
