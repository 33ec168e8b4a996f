"""What a conversion is asked to do, as its steps read it."""

from __future__ import annotations

import msgspec

from shardkit.conversion.request import BadRowPolicy, ConvertRequest, option_fields
from shardkit.encoding.codec import Compression, CompressionLevel
from shardkit.sources.base import SourceOptions
from shardkit.transforms.options import TransformOptions, make_options
from shardkit.units import MiB


class ConvertOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for.

    Attributes:
        inputs: Files, folders and globs.
        destination: Where the dataset goes.
        source: How raw files are read.
        schema_path: File that declares or overrides features.
        recipe_path: Recipe file whose features count where there is no schema file.
        splits: Names and fractions; none makes one split `train`.
        shuffle: Whether to bring the examples into a random order.
        seed: Of that order and of the assignment to splits.
        shard_bytes: Wanted size of a shard on disk, unless `num_shards` is given.
        num_shards: Shards of each split.
        compression: `gzip` or `none`.
        compression_level: `fast`, `balanced` or `small`; None takes the default of gzip.
        tfds: Whether to write what `tfds.builder_from_directory` needs; without compression only.
        on_bad_record: What becomes of rows that do not fit: `fail`, `skip` or `quarantine`.
        max_bad: How many of them there may be at most, such as `100` or `0.1%`; None sets no limit.
        allow_empty: Whether a dataset may have no examples at all.
        dedup: Columns in which duplicates are equal, none for all; None keeps duplicates.
        group_by: Columns whose equal values keep rows in one split.
        split_column: Column that names each row's split.
        stratify: Column of which every value is divided over the splits by their fractions.
        transforms: What is done to the rows.
        overwrite: Whether to make the next version where a dataset is already.
        append: Whether to make a version that holds the newest one and what of the inputs is not in it. Everything
            that its recipe holds is taken from there, and may be given only if it is the same.
        work_dir: Where the spool goes; None puts it beside the data. A folder in a store is for workers without a
            shared disk.
        max_row_seconds: How long reading or transforming one row may take.
    """

    inputs: tuple[str, ...]
    destination: str
    source: SourceOptions = SourceOptions()
    schema_path: str | None = None
    recipe_path: str | None = None
    splits: tuple[tuple[str, float | None], ...] = ()
    shuffle: bool = True
    seed: int = 0
    shard_bytes: int = 128 * MiB
    num_shards: int | None = None
    compression: Compression = "gzip"
    compression_level: CompressionLevel | None = None
    tfds: bool = False
    on_bad_record: BadRowPolicy = "fail"
    max_bad: str | None = None
    allow_empty: bool = False
    dedup: tuple[str, ...] | None = None
    group_by: tuple[str, ...] = ()
    split_column: str | None = None
    stratify: str | None = None
    transforms: TransformOptions = TransformOptions()
    overwrite: bool = False
    append: bool = False
    work_dir: str | None = None
    max_row_seconds: float = 60.0


def convert_options(request: ConvertRequest, inputs: tuple[str, ...], destination: str) -> ConvertOptions:
    """Returns what a command line asks for.

    Raises:
        UsageError: If an option does not fit.
    """
    values = msgspec.structs.asdict(request)
    parts = {
        part: {f.name: values[f.name] for f in option_fields() if f.option.part == part}
        for part in ("source", "transforms")
    }
    own = {name: value for name, value in values.items() if name in ConvertOptions.__struct_fields__}
    return ConvertOptions(
        inputs=inputs,
        destination=destination,
        source=SourceOptions(**parts["source"]),
        transforms=make_options(parts["transforms"]),
        **{**own, "dedup": () if request.dedup_all and request.dedup is None else request.dedup},
    )
