"""Which dataset split each row belongs to: by its identity, by values of columns, or as all rows together decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.conversion.plan import Recipe
from shardkit.conversion.splits.duplicates import row_digests
from shardkit.conversion.splits.stratify import StratumPositions
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.hashing import assign_splits
from shardkit.messages import shown
from shardkit.sources.base import RawFile, RowBatch
from shardkit.sources.split_names import SPLITS, split_for_word, split_of

DEFAULT_NAMES = SPLITS


def assign_rows(
    rows: RowBatch,
    features: Features,
    recipe: Recipe,
    files: Sequence[RawFile] = (),
    strata: StratumPositions | None = None,
) -> npt.NDArray[np.int64]:
    """Returns the position of each row's dataset split in the recipe.

    Rows with equal values in the columns of `group_by` fall into one split. All draws are independent of other rows,
    but for those of `stratify`.

    Args:
        rows: The next rows of an input split.
        files: Of the conversion, where their names tell the splits.

    Raises:
        StorageError: If the rows are not those that `strata` was made of.
    """
    if strata is not None:
        return strata.take(rows.batch.num_rows)
    if recipe.split_column is not None:
        return _by_word(rows.batch.column(recipe.split_column), recipe)
    if recipe.splits_by_name:
        return _by_file(rows, recipe, files)
    fractions = tuple(s.fraction for s in recipe.splits)
    identities = rows.identities
    if recipe.group_by and len(fractions) > 1:
        identities = row_digests(rows.batch, features, recipe.group_by)[:, 0]
    return assign_splits(identities, recipe.seed, fractions)


def check_columns(features: Features, recipe: Recipe) -> None:
    """Checks that the columns that a recipe names are there.

    Raises:
        UsageError: If one is not, or cannot name a split.
    """
    names = {f.name for f in features}
    asked = [("--group-by", n) for n in recipe.group_by] + [("--dedup-by", n) for n in recipe.dedup or ()]
    asked += [("--split-column", recipe.split_column)] if recipe.split_column is not None else []
    asked += [("--stratify", recipe.stratify)] if recipe.stratify is not None else []
    asked += [("--split-by", recipe.split_by)] if recipe.split_by is not None else []
    for option, name in asked:
        if name not in names:
            raise UsageError(
                f"{option} names the column {shown(name)}, which is not there",
                next_step=f"There are: {', '.join(shown(n) for n in sorted(names))}",
            )
    column = next((f for f in features if f.name == recipe.split_column), None)
    if column is not None and not (column.is_scalar and column.stored_as in ("bytes_list", "int64_list")):
        raise UsageError(
            f"--split-column {shown(column.name)} is {column.describe_type()}",
            why="its values must be names of splits",
            next_step="Name another column, or give shares with --split NAME=SHARE",
        )
    column = next((f for f in features if f.name == recipe.split_by), None)
    if column is not None and not (column.is_scalar and _is_ordered(column)):
        raise UsageError(
            f"--split-by {shown(column.name)} is {column.describe_type()}",
            why="rows are ordered by numbers or times",
            next_step=f"Name another column, or make one by --select, such as of texts like 31.12.2024 with "
            f"--select \"SELECT *, strptime({column.name}, '%d.%m.%Y') AS time FROM rows\" --split-by time",
        )


def _is_ordered(feature: Feature) -> bool:
    return feature.dtype != "bool" and feature.vocabulary is None and feature.stored_as != "bytes_list"


def _by_file(rows: RowBatch, recipe: Recipe, files: Sequence[RawFile]) -> npt.NDArray[np.int64]:
    position_of = {share.name: i for i, share in enumerate(recipe.splits)}
    indices, inverse = np.unique(np.asarray(rows.file_indices, np.int64), return_inverse=True)
    named = [split_of(files[index]) for index in indices.tolist()]
    positions = np.array([position_of[split] for split in named if split is not None], dtype=np.int64)
    return np.broadcast_to(positions[inverse], rows.batch.num_rows)


def _by_word(words: pa.Array, recipe: Recipe) -> npt.NDArray[np.int64]:
    found = words.cast(pa.string()).dictionary_encode()
    position_of = {share.name: i for i, share in enumerate(recipe.splits)}
    named = [split_for_word(word, position_of) for word in found.dictionary.to_pylist()]
    positions = np.array([position_of[split] for split in named if split is not None], dtype=np.int64)
    return np.take(positions, np.asarray(found.indices.to_numpy(zero_copy_only=False), dtype=np.int64))
