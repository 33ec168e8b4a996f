"""The `--schema` file: features that are declared or overridden, in JSON or TOML.

[features]
zip_code = "string"
embedding = { dtype = "float32", shape = [768] }
label = { dtype = "int64", vocabulary = ["cat", "dog"], nullable = false }
"""

from __future__ import annotations

import tomllib

import msgspec

from shardkit import storage
from shardkit.errors import UsageError
from shardkit.features import Feature, Features, make_feature, stored_as

_MAX_BYTES = 1024 * 1024


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is declared of one feature; what is left out stays as it was inferred.

    Attributes:
        dtype: Logical dtype.
        shape: `[]`, fixed, or `[null]` (JSON) or `["*"]` for a list of any length.
        nullable: Whether rows may lack it.
        vocabulary: Class names by index; integer dtypes only. Text values become their index.
        media_type: Of bytes or text.
        timezone: Of a timestamp.
    """

    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None
    nullable: bool | None = None
    vocabulary: tuple[str, ...] | None = None
    media_type: str | None = None
    timezone: str | None = None


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declarations by name of the feature; a plain string stands for its dtype."""

    features: dict[str, Declaration | str]


def load_schema(path: str) -> Schema:
    """Returns the schema in a file.

    Raises:
        UsageError: If it cannot be read, is neither JSON nor TOML, or holds an unknown key.
    """
    if storage.stat_file(path).num_bytes > _MAX_BYTES:
        raise UsageError("the schema file is too large", where=path, why="at most 1 MiB is read")
    raw = storage.read_bytes(path)
    try:
        if raw.lstrip().startswith(b"{"):
            return msgspec.json.decode(raw, type=Schema)
        return msgspec.convert(tomllib.loads(raw.decode()), Schema)
    except (msgspec.DecodeError, msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            "the schema file cannot be read",
            where=path,
            why=str(error),
            next_step='Write it like {"features": {"zip_code": "string"}}',
        ) from error


def apply_schema(inferred: Features, schema: Schema) -> Features:
    """Returns the inferred features with what the schema declares put in its place.

    Raises:
        UsageError: If a column is declared that the inputs do not have, or a declaration makes no sense.
    """
    known = [f.name for f in inferred]
    unknown = [name for name in schema.features if name not in known]
    if unknown:
        raise UsageError(
            f"the schema declares {unknown[0]!r}", why="the inputs have no such column", next_step=f"They have: {known}"
        )
    return tuple(_declare(f, schema.features[f.name]) if f.name in schema.features else f for f in inferred)


def _declare(feature: Feature, given: Declaration | str) -> Feature:
    declared = Declaration(dtype=given) if isinstance(given, str) else given
    dtype = declared.dtype or feature.dtype
    shape = feature.shape if declared.shape is None else tuple(_size(feature.name, s) for s in declared.shape)
    if declared.vocabulary is not None:
        _check_vocabulary(feature.name, dtype, declared.vocabulary)
    changed = declared.dtype is not None and declared.dtype != feature.dtype
    return make_feature(
        feature.name,
        dtype,
        shape,
        nullable=feature.nullable if declared.nullable is None else declared.nullable,
        vocabulary=declared.vocabulary if declared.vocabulary is not None or changed else feature.vocabulary,
        media_type=declared.media_type if declared.media_type is not None or changed else feature.media_type,
        timezone=declared.timezone if declared.timezone is not None or changed else feature.timezone,
    )


def _size(name: str, size: int | str | None) -> int | None:
    if size is None or size == "*":
        return None
    if isinstance(size, str) or size < 0:
        raise UsageError(f"feature {name!r} has the size {size!r}", next_step='Sizes are whole numbers, or "*" for any')
    return size


def _check_vocabulary(name: str, dtype: str, vocabulary: tuple[str, ...]) -> None:
    if stored_as(dtype) != "int64_list" or "int" not in dtype:
        raise UsageError(
            f"feature {name!r} has a vocabulary and the dtype {dtype}",
            why="a vocabulary names the values of an integer",
            next_step="Declare the dtype int64",
        )
    if len(set(vocabulary)) != len(vocabulary):
        raise UsageError(f"the vocabulary of feature {name!r} names a class twice")
