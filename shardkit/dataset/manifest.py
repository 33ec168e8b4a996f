"""The document that defines a dataset, as frozen values and as canonical JSON.

`manifests/00000001.json` is the commit; `manifests/00000001-<id>.shards.parquet` is the shard table it names by hash.
It holds the SHA-256 of its content. Decoding is strict: an unknown field is refused, except below `extensions`, where
a reader may pass over what it does not know. Counts of the shard table are checked against it when both are loaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from shardkit.dataset.documents import Accounting, Count, Document, check_relative_path
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import DamageError, ShardkitError, UsageError, suggest
from shardkit.features import Feature

FORMAT_VERSION = 1
MANIFESTS_DIR = "manifests"
DATA_DIR = "data"
INDEX = "index"
"""The source that a manifest names whose shards others wrote."""

_Named = TypeVar("_Named", Feature, "SplitInfo")

Json = str | int | float | bool | None | list[Any] | dict[str, Any]

_MANIFEST_NAME = re.compile(r"(\d{8})\.json")


class InputRoot(Document, frozen=True, kw_only=True):
    """The folder that the names of the next so many inputs are relative to; empty where they are whole paths."""

    path: str
    num_inputs: Count


class Created(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The one block in which two manifests of the same data may differ.

    Attributes:
        at: UTC time, `YYYY-MM-DDTHH:MM:SSZ`.
        commit_id: Random; tells a writer whether a manifest that it finds is its own.
        inputs: The inputs as they were typed, without credentials.
        roots: Where the inputs of the accounting lay, in its order; empty where it was not noted.
    """

    at: str
    commit_id: str
    inputs: tuple[str, ...]
    tool_versions: dict[str, str]
    roots: tuple[InputRoot, ...] = ()


class TopValue(Document, frozen=True, kw_only=True):
    """A frequent value. `value` is None where the bytes are not text."""

    value: str | int | bool | None
    count: Count


class Quantiles(Document, frozen=True, kw_only=True, omit_defaults=True):
    """Values that so many percent of the numbers do not exceed; NaN and infinite ones do not count.

    Attributes:
        p01, p05, p25, p50, p75, p95, p99: For the percentage in the name; p50 is the (lower) median.
        relative_error: Most that a value is off by, as a share of it; 0 where they are exact.
    """

    p01: float | int
    p05: float | int
    p25: float | int
    p50: float | int
    p75: float | int
    p95: float | int
    p99: float | int
    relative_error: float = 0.0


class FeatureStatistics(Document, frozen=True, kw_only=True, omit_defaults=True):
    """What one feature holds in one split.

    Attributes:
        count: Examples that hold it (nulls not counted).
        num_nulls: Examples that lack it.
        num_values: Values over all examples (differs from count for arrays).
        min, max, mean, std: Of numeric values that are finite; std is the population's.
        num_nans: Values that are NaN; they enter neither min, max, mean nor std.
        num_infs: Values that are infinite; likewise.
        num_rounded: float64 source values that float32 could not hold exactly to 9 significant digits.
        num_distinct_is_exact: Whether that number is exact or a sketch's estimate.
        top_values: The most frequent, most frequent first, ties by value; exact where num_distinct is.
        vocabulary: All distinct values in the same order; empty where they are too many, too long or hardly repeat.
        quantiles: Of numeric values that are finite; None where there are none, or an older shardkit wrote them.
        min_length, max_length, mean_length, length_quantiles: Of strings and bytes in bytes, of lists in values.
    """

    count: Count
    num_nulls: Count
    num_values: Count
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    num_nans: Count = 0
    num_infs: Count = 0
    num_rounded: Count = 0
    num_distinct: Count | None = None
    num_distinct_is_exact: bool = True
    top_values: tuple[TopValue, ...] = ()
    vocabulary: tuple[str | int | bool, ...] = ()
    quantiles: Quantiles | None = None
    min_length: Count | None = None
    max_length: Count | None = None
    mean_length: float | None = None
    length_quantiles: Quantiles | None = None


class SplitInfo(Document, frozen=True, kw_only=True):
    """Totals of one split.

    Attributes:
        num_bytes: Size of the shard files.
        num_uncompressed_bytes: Framed records before compression.
    """

    name: str
    num_shards: Count
    num_examples: Count
    num_bytes: Count
    num_uncompressed_bytes: Count
    statistics: dict[str, FeatureStatistics] = msgspec.field(default_factory=dict)


class ShardTableInfo(Document, frozen=True, kw_only=True):
    """The path of the shard table, relative to the dataset, and its hash."""

    path: str
    num_rows: Count
    sha256: str


class Manifest(Document, frozen=True, kw_only=True):
    """One version of a dataset.

    Attributes:
        format_version: Of this document and the shards.
        name: Last part of the dataset's location.
        fingerprint: Hash of inputs, recipe, seed and format version; names the folder under `data/`.
        created: When, by what, from where. Everything else is a function of the data and the recipe.
        recipe: All options of the conversion with their values, enough to run it again.
        compression: `gzip` or `none`.
        features: In the order of the source.
        splits: In the order in which they were asked for.
        accounting: Rows in and out, per file and in total.
        shard_table: The table with one row a shard.
        extensions: What a reader may pass over when it does not know it.
    """

    format_version: Count
    name: str
    fingerprint: str
    created: Created
    recipe: dict[str, Json]
    compression: Literal["gzip", "none"]
    features: tuple[Feature, ...]
    splits: tuple[SplitInfo, ...]
    accounting: Accounting
    shard_table: ShardTableInfo
    extensions: dict[str, Json] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_repeated("split", [s.name for s in self.splits])
        _refuse_repeated("feature", [f.name for f in self.features])
        for feature in self.features:
            for split in self.splits:
                _check_values(feature, split.statistics.get(feature.name))

    def split(self, name: str) -> SplitInfo:
        """Returns the split of that name. Raises UsageError if there is none; names those there are."""
        return _find("split", name, self.splits)

    def feature(self, name: str) -> Feature:
        """Returns the feature of that name. Raises UsageError if there is none; names those there are."""
        return _find("feature", name, self.features)


class ShardInfo(Document, frozen=True, kw_only=True):
    """One row of the shard table.

    Attributes:
        shard_index: 0-based position in the split.
        path: Relative to the dataset.
        num_bytes: Size of the file.
        num_uncompressed_bytes: Framed records before compression.
        crc32c: Of the file, unsigned.
        sha256: Of the file, hexadecimal.
        block_num_bytes: Compressed size of each block, its flush included. The first block starts after the 10-byte
            gzip header, or at 0 without compression.
        block_num_uncompressed_bytes: Framed bytes of each block.
        block_num_examples: Records of each block.
        block_crc32c: Of the bytes of each block as they are stored, unsigned.
    """

    split: str
    shard_index: Count
    path: str
    num_examples: Count
    num_bytes: Count
    num_uncompressed_bytes: Count
    crc32c: Count
    sha256: str
    block_num_bytes: tuple[Count, ...]
    block_num_uncompressed_bytes: tuple[Count, ...]
    block_num_examples: tuple[Count, ...]
    block_crc32c: tuple[Count, ...]


def manifest_path(version: int) -> str:
    """Returns the path of a manifest, relative to the dataset."""
    return f"{MANIFESTS_DIR}/{version:08d}.json"


def shard_table_path(version: int, commit_id: str) -> str:
    """Returns the path of the shard table of an attempt at a commit, relative to the dataset."""
    return f"{MANIFESTS_DIR}/{version:08d}-{commit_id[:16]}.shards.parquet"


def describe_table(version: int, commit_id: str, table: bytes, num_rows: int) -> ShardTableInfo:
    """Returns what the manifest of a version says about its shard table.

    Args:
        commit_id: Of the attempt at the commit; no other has a table of the same name.
    """
    return ShardTableInfo(
        path=shard_table_path(version, commit_id), num_rows=num_rows, sha256=hashlib.sha256(table).hexdigest()
    )


def parse_manifest_name(file_name: str) -> int | None:
    """Returns the version that a file name in `manifests/` stands for, None if it is no manifest's."""
    match = _MANIFEST_NAME.fullmatch(file_name)
    return int(match.group(1)) if match else None


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns canonical JSON: sorted keys, two spaces, one final newline, and the SHA-256 of everything else."""
    document = msgspec.to_builtins(manifest)
    document["sha256"] = _digest(document)
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def decode_manifest(raw: bytes, where: str) -> Manifest:
    """Returns the manifest in `raw`.

    Raises:
        UsageError: If a newer shardkit wrote it.
        DamageError: If it is not a manifest, or contradicts itself.
        UnsafeError: If it names a path outside the dataset.
    """
    try:
        version = msgspec.json.decode(raw, type=_VersionOnly).format_version
    except DECODE_ERRORS as error:
        raise DamageError("the manifest cannot be read", where=where, why=str(error)) from error
    if version > FORMAT_VERSION:
        raise UsageError(
            f"the dataset has format version {version}",
            where=where,
            why=f"this shardkit reads up to {FORMAT_VERSION}",
            next_step="Install a newer shardkit",
        )
    try:
        document = msgspec.json.decode(raw, type=dict[str, Any])
        stated = document.pop("sha256", None)
        manifest = msgspec.convert(document, Manifest)
    except (*DECODE_ERRORS, ShardkitError) as error:
        raise DamageError("the manifest cannot be read", where=where, why=str(error)) from error
    for path in (manifest.shard_table.path, *(f.path for f in manifest.accounting.rejected_files)):
        check_relative_path(path, where)
    if stated != _digest(document):
        raise DamageError(
            "the manifest is not as it was written", where=where, why="its content does not match its own SHA-256"
        )
    return manifest


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()


def _find(kind: str, name: str, items: Sequence[_Named]) -> _Named:
    found = next((item for item in items if item.name == name), None)
    if found is None:
        names = [item.name for item in items]
        next_step = f"It has: {', '.join(names)}.{suggest(name, names)}"
        raise UsageError(f"the dataset has no {kind} {name!r}", next_step=next_step)
    return found


def _refuse_repeated(kind: str, names: list[str]) -> None:
    repeated = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    if repeated:
        raise DamageError(f"the {kind} {min(repeated)!r} is there twice")


def _check_values(feature: Feature, statistics: FeatureStatistics | None) -> None:
    kinds = {"string": str, "bool": bool}
    is_integer = feature.dtype.startswith(("int", "uint"))
    if statistics is None or not (is_integer or feature.dtype in kinds):
        return
    wanted = kinds.get(feature.dtype, int)
    odd = next((v for v in statistics.vocabulary if type(v) is not wanted), None)
    if odd is not None:
        raise DamageError(f"the feature {feature.name!r} is {feature.dtype}, and one of its values {str(odd)[:50]!r}")


class _VersionOnly(msgspec.Struct):
    format_version: Annotated[int, msgspec.Meta(ge=1)]


def is_indexed(manifest: Manifest) -> bool:
    """Whether a manifest is of files that others wrote."""
    return manifest.recipe.get("source") == INDEX
