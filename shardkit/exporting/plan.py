"""The plan of an export: which rows go into which file, fixed before the first one and stored beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from shardkit.dataset.documents import Count, Document, check_relative_path
from shardkit.dataset.manifest import Manifest, SplitInfo
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import ShardkitError, UsageError
from shardkit.exporting.base import ExportFormat
from shardkit.exporting.options import FORMATS, ExportRequest, format_named
from shardkit.features import Feature, Features

_MAX_FILES = 1_000_000
_MAX_NAMED = 8


class ExportedSplit(Document, frozen=True, kw_only=True):
    """Rows and files of one split. The files differ by at most one row."""

    name: str
    num_rows: Count
    num_files: Annotated[int, msgspec.Meta(ge=1, le=_MAX_FILES)]


class ExportPlan(Document, frozen=True, kw_only=True):
    """What `export.json` holds. Equal plans stand for the same bytes.

    Attributes:
        dataset: SHA-256 of the shard table, which tells versions and datasets apart.
        features: Of the columns, in their order; with the names of classes. Nullable only where nulls are.
        splits: In the order of the dataset.
    """

    export_version: Literal[1] = 1
    format: str
    dataset: str
    version: Count
    features: tuple[Feature, ...]
    splits: tuple[ExportedSplit, ...]


class FilePlan(NamedTuple):
    """One file: its path below the folder, and the rows of the split that it holds."""

    split: str
    path: str
    start: int
    stop: int


def plan_export(manifest: Manifest, version: int, request: ExportRequest) -> ExportPlan:
    """Returns the plan.

    Raises:
        UsageError: If there is no such split or column, or the format cannot hold a column; names it.
    """
    chosen = [manifest.split(name).name for name in request.splits]
    splits = [s for s in manifest.splits if not chosen or s.name in chosen]
    names = [f.name for f in manifest.features] if request.columns is None else dict.fromkeys(request.columns)
    named = map(manifest.feature, names)
    features = tuple(msgspec.structs.replace(f, nullable=f.nullable and _has_nulls(f, splits)) for f in named)
    _check_columns(format_named(request.format), features)
    return ExportPlan(
        format=request.format,
        dataset=manifest.shard_table.sha256,
        version=version,
        features=features,
        splits=tuple(
            ExportedSplit(name=s.name, num_rows=s.num_examples, num_files=_num_files(s, request)) for s in splits
        ),
    )


def _num_files(split: SplitInfo, request: ExportRequest) -> int:
    if request.rows_per_file is not None:
        number = -(-split.num_examples // request.rows_per_file)
    else:
        number = min(split.num_examples, -(-split.num_uncompressed_bytes // request.file_bytes))
    if number > _MAX_FILES:
        raise UsageError(
            f"split {split.name!r} would become {number:,} files",
            why=f"{_MAX_FILES:,} are the most",
            state="Nothing was written",
            next_step="Give larger files with --rows-per-file or --file-size",
        )
    return max(1, number)


def _has_nulls(feature: Feature, splits: Sequence[SplitInfo]) -> bool:
    known = [s.statistics.get(feature.name) for s in splits if s.num_examples]
    return any(found is None or found.num_nulls > 0 for found in known)


def _check_columns(format: ExportFormat, features: Features) -> None:
    if not features:
        raise UsageError("no column is chosen", state="Nothing was written", next_step="Name one with --columns")
    reasons = {f.name: why for f in features if (why := format.why_not(f)) is not None}
    for feature in features:
        if feature.name in reasons:
            held = [f.name for f in features if f.name not in reasons]
            columns = ",".join(held) if 0 < len(held) <= _MAX_NAMED else "A,B,..."
            raise UsageError(
                f"{format.title} cannot hold the column {feature.name!r}, which is {feature.describe_type()}",
                why=reasons[feature.name],
                state="Nothing was written",
                next_step=f"Leave it out with --columns {columns}, or export to parquet or arrow",
            )
    if (why := format.why_not_all(features)) is not None:
        next_step = "Choose others with --columns, or export to parquet or arrow"
        raise UsageError(
            f"{format.title} cannot hold these columns", why=why, state="Nothing was written", next_step=next_step
        )


def files_of(plan: ExportPlan) -> list[FilePlan]:
    """Returns the files of a plan in the order of the splits and of the rows."""
    format = format_named(plan.format)
    return [
        FilePlan(
            split.name,
            format.file_name(split.name, index, split.num_files),
            split.num_rows * index // split.num_files,
            split.num_rows * (index + 1) // split.num_files,
        )
        for split in plan.splits
        for index in range(split.num_files)
    ]


def encode_plan(plan: ExportPlan) -> bytes:
    """Returns the content of `export.json`."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


def decode_plan(raw: bytes, where: str) -> ExportPlan | None:
    """Returns the plan in `raw`, None if that is none, or one that leads out of its folder."""
    try:
        plan = msgspec.json.decode(raw, type=ExportPlan)
        for split in plan.splits:
            check_relative_path(split.name, where)
    except (*DECODE_ERRORS, ShardkitError):
        return None
    return plan if plan.format in FORMATS and all("/" not in s.name for s in plan.splits) else None
