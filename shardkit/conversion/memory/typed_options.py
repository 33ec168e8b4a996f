"""Types of the keywords of `shardkit.convert` and `shardkit.Writer`, for type checkers and editors.

`python -m tests.support.typed_options` makes this file of the structs that state the options; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict

from shardkit.transforms.options import FetchKind


class RowOptions(TypedDict, total=False):
    """Options of `shardkit convert` that have a meaning for rows of a program."""

    drop_columns: str | Sequence[str]
    explode: str
    union_by_name: bool
    max_pixels: int
    max_record_size: int | str
    max_expansion: int
    split: str | Sequence[str] | Mapping[str, float | str]
    group_by: str | Sequence[str]
    split_column: str
    stratify: str
    split_by: str
    limit: int
    sample: int
    dedup: bool
    dedup_by: str | Sequence[str]
    pack: int
    separator: int | str
    shuffle: bool
    seed: int
    shard_size: int | str
    num_shards: int
    compression: Literal["gzip", "none"]
    compression_level: Literal["fast", "balanced", "small"]
    tfds: bool
    on_bad_record: Literal["fail", "skip", "quarantine"]
    max_bad: int | str
    max_row_seconds: float
    allow_empty: bool
    fetch: str | Mapping[str, FetchKind]
    fetch_private: bool
    fetch_disallowed: bool
    source_column: str
    check_media: bool
    cast: str | Sequence[str] | Mapping[str, str]
    rename: str | Sequence[str] | Mapping[str, str]
    drop_null: str | Sequence[str]
    map: str
    select: str
    unicode_form: str | Sequence[str] | Mapping[str, str]
    lower: str | Sequence[str]
    tokenize: str | Sequence[str] | Mapping[str, str]
    image_size: int | str | tuple[int, int]
    image_format: Literal["jpeg", "png"]
    image_quality: int
    apply_exif: bool
    schema: str | PathLike[str]
    work_dir: str | PathLike[str]
    overwrite: bool
    append: bool
    rebase: bool


class ConvertOptions(RowOptions, total=False):
    """Options of `shardkit convert`."""

    format: str
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    columns: str | Sequence[str]
    header: bool
    no_header: bool
    delimiter: str
    quote: Literal["double", "none"]
    skip_lines: int
    comment: str
    null_value: str | Sequence[str]
    max_field: int | str
    allow_duplicate_keys: bool
    records: str
    encoding: str
    text_record: Literal["line", "paragraph", "file"]
    vector: Literal["sparse", "dense"]
    array_record: Literal["row", "file"]
    tfrecord_as: Literal["examples", "bytes"]
    table: str
    query: str
    labels: str | PathLike[str]
    no_labels: bool
    class_folder: int
    audio: Literal["bytes", "samples"]
    audio_rate: int
    video: Literal["bytes", "frames", "clips"]
    video_fps: float
    clip_frames: int
    clip_stride: int
    fetch_again: bool
