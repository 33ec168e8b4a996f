"""Real inputs as a forecast takes them: listed, cut as a conversion would, and measured on a few rows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.conversion.plan import WORK_DIR, Plan
from shardkit.conversion.prepare import draft
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.space.size_sample import measure_sample
from shardkit.errors import BadInputError, ShardkitError
from shardkit.forecast.manifest_size import size_of
from shardkit.forecast.values import Workload
from shardkit.sources import source_of
from shardkit.sources.base import InputSplit
from shardkit.storage import files as storage
from shardkit.units import MiB

# So many places are measured, each up to these limits.
_NUM_PLACES = 4
_MOST_ROWS = 20_000
_MOST_BYTES = 8 * MiB
_MOST_SECONDS = 1.0


def measure_inputs(options: ConvertRequest) -> Workload:
    """Returns the sizes of real inputs. Rows are counted, and shards compressed, on a sample of a few places.

    What transformations make of a row is not known beforehand: rows are taken as they come.

    Args:
        options: What a conversion would be asked for; its destination does not matter.

    Raises:
        UsageError, BadInputError: If the request or an input is wrong, or no row can be read.
    """
    nowhere = storage.join(tempfile.gettempdir(), "shardkit-plan", "none")
    plan, _ = draft(msgspec.structs.replace(options, destination=nowhere), nowhere, storage.join(nowhere, WORK_DIR))
    num_bytes = sum(s.num_bytes for s in plan.input_splits)
    sample = measure_sample(plan)
    if sample is None or not sample.num_rows:
        raise BadInputError(
            "the inputs cannot be measured",
            why="no row of the sample can be read",
            next_step="Name their size instead, as in --input-size 1TB",
        )
    num_rows = max(1, round(sample.num_rows * num_bytes))
    num_framed_bytes = max(num_rows, round(sample.num_framed_bytes * num_bytes))
    shares = plan.recipe.splits
    if not plan.recipe.has_fractions:
        # The rows of each split are unknown before they are read.
        shares = tuple(msgspec.structs.replace(s, fraction=1 / len(shares)) for s in shares)
    rows = _rows_of(plan)
    return Workload(
        num_bytes=num_bytes,
        num_files=len(plan.files),
        num_rows=num_rows,
        num_framed_bytes=num_framed_bytes,
        ratio=1 / max(1e-3, sample.compressed_fraction),
        max_record_bytes=-(-num_framed_bytes // num_rows),
        num_features=len(plan.features),
        is_cut=any(f.compression is None for f in plan.files),
        num_input_splits=len(plan.input_splits),
        shares=shares,
        manifest=size_of(plan, rows, num_rows, shares) if len(rows) else None,
    )


def _rows_of(plan: Plan) -> pa.Table:
    """Returns some rows of a few places that lie evenly over the inputs."""
    filled = [s for s in plan.input_splits if s.num_bytes]
    ends = np.cumsum([s.num_bytes for s in filled])
    wanted = (np.arange(_NUM_PLACES) + 0.5) / _NUM_PLACES * ends[-1]
    places = np.unique(np.searchsorted(ends, wanted, side="right")).tolist()
    schema = pa.schema([(f.name, f.arrow_type) for f in plan.transforms.input_features])
    batches: list[pa.RecordBatch] = []
    for place in places:
        found = _batches_of(plan, filled[place])
        batches += [pa.record_batch(b.columns, schema=schema) for b in found if b.num_rows]
    return pa.Table.from_batches(batches, schema=schema)


def _batches_of(plan: Plan, split: InputSplit) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    until = time.monotonic() + _MOST_SECONDS
    try:
        for batch in _read(plan, split):
            found.append(batch[: _MOST_ROWS - num_rows])
            num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + batch.nbytes
            if num_rows >= _MOST_ROWS or num_bytes >= _MOST_BYTES or time.monotonic() > until:
                break
    except (ShardkitError, pa.ArrowException, OSError, ValueError):
        pass  # What was read before it tells of the rest.
    return found


def _read(plan: Plan, split: InputSplit) -> Iterator[pa.RecordBatch]:
    options = msgspec.structs.replace(plan.recipe.source, tolerates_bad_rows=True)
    source = source_of(options)
    for part in split.parts or (split,):
        for rows in source.read(part, plan.files, plan.transforms.input_features, options):
            yield rows.batch
