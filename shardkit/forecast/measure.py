"""Real inputs as a forecast takes them: listed, cut as a conversion would, and measured on a few rows."""

from __future__ import annotations

import tempfile

import msgspec

from shardkit.conversion.plan import WORK_DIR
from shardkit.conversion.prepare import draft
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.space.size_sample import measure_sample
from shardkit.errors import BadInputError
from shardkit.forecast.values import Workload
from shardkit.storage import files as storage


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
    )
