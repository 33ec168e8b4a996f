"""The steps together: planned once from the features, applied to every batch.

Rows carry their identity and their file through all steps. What becomes of a row depends on that row and the plan
alone, so it does not matter how rows are cut into batches.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Features, make_feature, stored_like
from shardkit.media.decoding import DecodingError, check_decodes, load_decoders, media_kind
from shardkit.messages import printable, shown
from shardkit.runtime.bounded import bounded
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions
from shardkit.transforms.columns import CastStep, cast_step, drop_null_step, rename_step
from shardkit.transforms.fetch.rows import with_fetched_column
from shardkit.transforms.images import ImageStep, image_step
from shardkit.transforms.map import MapStep
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.row_origin import bad_row, rejected_rows
from shardkit.transforms.select import select_step
from shardkit.transforms.steps import Positions, RowError, RowFailure, Step, StepResult, Taken
from shardkit.transforms.text import lower_step, tokenize_step, unicode_step
from shardkit.transforms.user_files import with_hashes

FilteredCounts = Mapping[int, int]


class TransformPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done to the rows, and what it makes of the features.

    Attributes:
        input_features: What the source gives.
        options: What is done, with the hashes of the files it names. This is what belongs into the recipe.
        source: How the files are read: whether bad rows are tolerated, and the caps of sizes.
    """

    input_features: Features
    output_features: Features
    options: TransformOptions
    source: SourceOptions


class Applied(NamedTuple):
    """Rows after all steps, and how many the steps left out, by position of the file. Bad rows are not among those."""

    rows: RowBatch
    num_filtered: FilteredCounts


def plan_transforms(
    features: Features, options: TransformOptions, source: SourceOptions, held: Features = ()
) -> TransformPlan:
    """Returns the plan of the transformations, found without reading any data.

    Args:
        options: What is asked for; files that already have a hash must still have it.
        held: Of the dataset that the rows are appended to.

    Raises:
        UsageError: If a step cannot be done; names its option.
    """
    if source.video != "bytes" and options.image_format is None:
        options = msgspec.structs.replace(options, image_format="jpeg")
    options = with_hashes(options)
    steps = _steps(features, options, source)
    after = steps[-1].features if steps else _features_before(features, options)
    return TransformPlan(
        input_features=features, output_features=stored_like(after, held), options=options, source=source
    )


def transform_notes(plan: TransformPlan) -> tuple[str, ...]:
    """Returns notes on the transformations for the user, one sentence each."""
    steps = _steps(plan.input_features, plan.options, plan.source)
    notes = tuple(note for step in steps if isinstance(step, (CastStep, MapStep, ImageStep)) for note in step.notes)
    return notes if plan.options.fetch is None else ("sizes leave out what --fetch will add to the rows", *notes)


def load_steps(plan: TransformPlan) -> None:
    """Loads what the steps need, which is otherwise done with the first rows.

    Raises:
        UsageError: If a statement or function of the user does not do what it did when it was planned.
    """
    _steps(plan.input_features, plan.options, plan.source)


def apply(plan: TransformPlan, rows: RowBatch, files: tuple[RawFile, ...], split: InputSplit) -> Applied:
    """Returns the rows after all steps.

    Args:
        rows: A batch of the input features, and of what was fetched.

    Raises:
        BadInputError: At the first row that a step cannot take, unless bad rows are tolerated.
        UsageError: If a statement or function of the user does not do what it did when it was planned.
    """
    if plan.options.changes_nothing:
        return Applied(rows, {})
    batch, is_tolerant = rows.batch, plan.source.tolerates_bad_rows
    if plan.options.source_column is not None:
        batch = add_source_column(rows, files, plan.options.source_column)
    kept: Positions = np.arange(batch.num_rows)
    failures: list[RowFailure] = []
    num_rounded = dict(rows.num_rounded)
    for step in _steps(plan.input_features, plan.options, plan.source):
        taken, failed = step.run(batch, is_tolerant=is_tolerant)
        failures.extend(RowFailure(int(kept[f.row]), f.error) for f in failed)
        batch = taken.batch
        kept = kept if taken.kept is None else kept[taken.kept]
        num_rounded = _carried(num_rounded, step, taken.num_rounded)
    # A rejected row is kept as the source gave it.
    raw = rows._replace(batch=rows.batch.select([f.name for f in plan.input_features]))
    if failures and not is_tolerant:
        # Later steps saw only the rows before the one that failed, so the last failure is the first row's.
        raise bad_row(failures[-1], raw, files, split, plan.source)
    num_filtered = _count_filtered(rows, kept, failures)
    if not failures and len(kept) == rows.batch.num_rows:
        return Applied(rows._replace(batch=batch, num_rounded=num_rounded), num_filtered)
    rejected = rejected_rows(sorted(failures, key=lambda f: f.row), raw, files, split, plan.source)
    indices = rows.file_indices
    return Applied(
        RowBatch(
            batch,
            rows.identities[kept],
            indices if isinstance(indices, int) else indices[kept],
            num_rounded,
            (*rows.rejected, *rejected),
        ),
        num_filtered,
    )


@functools.lru_cache(maxsize=8)
def _steps(features: Features, options: TransformOptions, source: SourceOptions) -> tuple[Step, ...]:
    steps: list[Step] = []
    features = _features_before(features, options)

    def now() -> Features:
        return steps[-1].features if steps else features

    if options.check_media and (check := media_check(features, source)) is not None:
        steps.append(check)
    if options.cast:
        steps.append(cast_step(now(), options.cast))
    if options.rename:
        steps.append(rename_step(now(), options.rename))
    if options.drop_null:
        steps.append(drop_null_step(now(), options.drop_null))
    if options.map_path is not None:
        with bounded(f"--map {printable(options.map_path)}"):
            steps.append(MapStep(now(), options))
    if options.select is not None:
        with bounded("--select"):
            steps.append(select_step(now(), options.select))
    if options.unicode_form:
        steps.append(unicode_step(now(), options.unicode_form))
    if options.lower:
        steps.append(lower_step(now(), options.lower))
    if options.tokenize:
        steps.append(tokenize_step(now(), options.tokenize))
    images = image_step(now(), options, source)
    return (*steps, images) if images is not None else tuple(steps)


def _features_before(features: Features, options: TransformOptions) -> Features:
    """Returns what the first step gets."""
    return with_source_column(with_fetched_column(features, options), options.source_column)


def _carried(before: dict[str, int], step: Step, added: Mapping[str, int]) -> dict[str, int]:
    sources = {f.name: f.name for f in step.features} if step.sources is None else step.sources
    after = {new: before[old] for new, old in sources.items() if old in before}
    for name, count in added.items():
        after[name] = after.get(name, 0) + count
    return after


def _count_filtered(rows: RowBatch, kept: Positions, failures: list[RowFailure]) -> dict[int, int]:
    num_left_out = rows.batch.num_rows - len(kept) - len(failures)
    if num_left_out == 0:
        return {}
    if isinstance(rows.file_indices, int):
        return {rows.file_indices: num_left_out}
    is_left_out: npt.NDArray[np.bool_] = np.ones(rows.batch.num_rows, dtype=bool)
    is_left_out[kept] = False
    is_left_out[[f.row for f in failures]] = False
    indices, counts = np.unique(rows.file_indices[is_left_out], return_counts=True)
    return dict(zip(indices.tolist(), counts.tolist(), strict=True))


def with_source_column(features: Features, name: str | None) -> Features:
    """Returns the features with the column behind them; as they are without a name.

    Raises:
        UsageError: If there is a column of that name.
    """
    if name is None:
        return features
    if any(feature.name == name for feature in features):
        raise UsageError(
            f"--source-column names the column {shown(name)}, which the inputs have",
            next_step="Choose another name, or leave that column out with --drop-columns",
        )
    return (*features, make_feature(name, "string"))


def add_source_column(rows: RowBatch, files: Sequence[RawFile], name: str) -> pa.RecordBatch:
    """Returns the columns of a batch, and behind them the names of the files, relative to the root of all inputs."""
    indices = np.broadcast_to(rows.file_indices, rows.batch.num_rows)
    found, positions = np.unique(indices, return_inverse=True)
    names = pa.array([files[index].name for index in found.tolist()], pa.string()).take(pa.array(positions, pa.int64()))
    return pa.RecordBatch.from_arrays([*rows.batch.columns, names], names=[*rows.batch.schema.names, name])


def media_check(features: Features, source: SourceOptions) -> MediaCheck | None:
    """Returns the step, None where the source decodes everything.

    Raises:
        UsageError: If there is nothing to decode, or an optional package is not installed.
    """
    columns = tuple(
        i for i, f in enumerate(features) if f.is_scalar and f.dtype == "bytes" and media_kind(f.media_type)
    )
    if not columns:
        if source.audio == "samples" or source.video != "bytes":
            return None
        raise UsageError(
            "--check-media is for images, audio files and videos",
            why="no column has the media type of one",
            next_step="Leave it out",
        )
    load_decoders([media_kind(features[i].media_type) for i in columns])
    return MediaCheck(features, columns, source.max_pixels)


@dataclass(frozen=True)
class MediaCheck:
    """Decodes images, sounds and videos, and keeps their bytes.

    Attributes:
        columns: Positions of those that are decoded.
        max_pixels: An image or a frame may have so many.
    """

    features: Features
    columns: tuple[int, ...]
    max_pixels: int
    option = "--check-media"
    sources = None

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the rows that decode."""
        kept: list[int] = []
        failures: list[RowFailure] = []
        for row in range(batch.num_rows):
            error = self._fault(batch, row)
            if error is None:
                kept.append(row)
                continue
            failures.append(RowFailure(row, error))
            if not is_tolerant:
                break
        if not failures:
            return StepResult(Taken(batch))
        positions = np.array(kept, np.int64)
        return StepResult(Taken(batch.take(pa.array(positions)), positions), tuple(failures))

    def _fault(self, batch: pa.RecordBatch, row: int) -> RowError | None:
        for position in self.columns:
            data = batch.column(position)[row].as_py()
            media_type = self.features[position].media_type or ""
            try:
                if data is not None:
                    check_decodes(data, media_type, self.max_pixels)
            except DecodingError as error:
                return RowError(f"the {media_kind(media_type)} does not decode", str(error), data)
        return None
