"""Schema files: features as a user declares them, laid over those that were inferred."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import UsageError
from shardkit.features import Feature, Features, Shape, make_feature
from shardkit.storage import files as storage
from shardkit.units import MiB

_MAX_BYTES = MiB
_ANY_SIZE = "*"
_INTEGER = re.compile(r"u?int(8|16|32|64)")
_LISTED_COLUMNS = 40


class ColumnSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's declaration of one column; the rest stays as inferred.

    Attributes:
        shape: Sizes; `"*"` or null for a list of any length.
        vocabulary: Names of the classes that an integer counts.
        media_type: What bytes or strings hold, such as `image/jpeg`.
        leading_zeros: Whether 00123 is a number in a column of CSV; a schema file that declares a dtype says so.
    """

    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None
    vocabulary: tuple[str, ...] | None = None
    nullable: bool | None = None
    media_type: str | None = None
    timezone: str | None = None
    leading_zeros: bool | None = None


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schema file.

    Attributes:
        features: By name; a text is short for `{"dtype": text}`.
    """

    features: dict[str, str | ColumnSchema]
    path: str = ""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    features: dict[str, str | ColumnSchema]


def load_schema(path: str, *, is_recipe: bool = False) -> Schema:
    """Returns the schema in a JSON or TOML file; JSON if it begins with a brace.

    Args:
        is_recipe: Whether it is a recipe, which may declare features among other things.

    Raises:
        UsageError: If the file cannot be read, is neither, or says something that is not known.
    """
    try:
        info = storage.stat_file(path)
    except UsageError as error:
        raise UsageError(
            "cannot read the schema file",
            where=error.where,
            why=error.why,
            next_step="Check the path that --schema names",
        ) from error
    if info.num_bytes > _MAX_BYTES:
        raise UsageError(
            "the schema file is too large",
            where=path,
            why=f"it has {info.num_bytes} bytes",
            next_step="Name a schema file with --schema, not data",
        )
    raw = storage.read_bytes(path)
    try:
        content: Any = msgspec.json.decode(raw) if raw.lstrip().startswith(b"{") else tomllib.loads(raw.decode())
        if is_recipe:
            content = {"features": content.get("features", {})}
        document = msgspec.convert(content, _Document)
    except (*DECODE_ERRORS, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            "the schema file cannot be used",
            where=path,
            why=str(error),
            next_step='Write it like {"features": {"age": "int32", "vector": {"dtype": "float32", "shape": [768]}}}',
        ) from error
    return Schema(features=document.features, path=path)


def apply_schema(inferred: Features, schema: Schema, *, may_lack_columns: bool = False) -> Features:
    """Returns the inferred features with the declarations of the schema in their place, and those it adds behind them.

    Args:
        inferred: What the rows that were looked at hold.
        may_lack_columns: Whether rows may lack a column, so that those looked at need not show all there are.

    Raises:
        UsageError: If the schema names a column that is not there, or declares what cannot be.
    """
    names = [f.name for f in inferred]
    unknown = [name for name in schema.features if name not in names]
    added = [name for name in unknown if may_lack_columns and _is_added(schema.features[name])]
    absent = next((name for name in unknown if name not in added), None)
    if absent is not None:
        columns = ", ".join(names[:_LISTED_COLUMNS]) + (", ..." if len(names) > _LISTED_COLUMNS else "")
        how = ". One that few rows have is declared with its dtype and nullable = true" if may_lack_columns else ""
        raise UsageError(
            f"the schema names a column {absent!r} that is not there",
            where=schema.path or None,
            next_step=f"The columns are: {columns}{how}",
        )
    inferred = (*inferred, *(make_feature(name, "string", nullable=True) for name in added))
    features = []
    for feature in inferred:
        try:
            features.append(_declared(feature, schema) if feature.name in schema.features else feature)
        except UsageError as error:
            error.where = error.where or f"{schema.path}, column {feature.name!r}"
            raise
    return tuple(features)


def _is_added(declared: str | ColumnSchema) -> bool:
    # A name alone may be a misspelling of one that is there.
    return isinstance(declared, ColumnSchema) and declared.dtype is not None and declared.nullable is True


def with_leading_zeros(schema: Schema, *, is_recipe: bool) -> tuple[str, ...]:
    """Returns the columns in which a schema allows numbers with leading zeros.

    Args:
        is_recipe: Whether that is a recipe, which repeats dtypes that were inferred.
    """
    found = {n: ColumnSchema(dtype=c) if isinstance(c, str) else c for n, c in schema.features.items()}
    return tuple(
        name
        for name, column in sorted(found.items())
        if (_is_number(column) and not is_recipe if column.leading_zeros is None else column.leading_zeros)
    )


def _is_number(column: ColumnSchema) -> bool:
    return column.dtype is not None and column.dtype.startswith(("int", "uint", "float"))


def declared_features(schema: Schema) -> Features:
    """Returns the features that a schema declares, where nothing else tells of any.

    Raises:
        UsageError: If it declares what cannot be.
    """
    return apply_schema(tuple(make_feature(name, "string", nullable=True) for name in schema.features), schema)


def _declared(feature: Feature, schema: Schema) -> Feature:
    found = schema.features[feature.name]
    declared = ColumnSchema(dtype=found) if isinstance(found, str) else found
    dtype = declared.dtype or feature.dtype
    same_type = dtype == feature.dtype
    # A description of values of the inferred dtype does not fit another dtype.
    vocabulary = declared.vocabulary if declared.vocabulary is not None else feature.vocabulary if same_type else None
    kept_zone = feature.timezone if dtype.startswith("timestamp") and feature.dtype.startswith("timestamp") else None
    _check(feature.name, dtype, declared, schema.path)
    return make_feature(
        feature.name,
        dtype,
        feature.shape if declared.shape is None else _shape(feature.name, declared.shape, schema.path),
        nullable=feature.nullable if declared.nullable is None else declared.nullable,
        media_type=declared.media_type or (feature.media_type if same_type else None),
        vocabulary=vocabulary,
        timezone=declared.timezone or kept_zone,
    )


def _check(name: str, dtype: str, declared: ColumnSchema, path: str) -> None:
    where = path or None
    if declared.vocabulary is not None:
        if not _INTEGER.fullmatch(dtype):
            raise UsageError(
                f"column {name!r} is {dtype} and cannot have a vocabulary",
                where=where,
                why="the classes of a vocabulary are counted by integers",
                next_step='Declare it as {"dtype": "int64", "vocabulary": [...]}',
            )
        if len(set(declared.vocabulary)) < len(declared.vocabulary) or not declared.vocabulary:
            raise UsageError(
                f"the vocabulary of column {name!r} is empty or repeats a name",
                where=where,
                next_step="Give every class one name that no other has, in the order of the integers",
            )
    if declared.timezone is not None and not dtype.startswith("timestamp"):
        raise UsageError(
            f"column {name!r} is {dtype} and cannot have a timezone",
            where=where,
            next_step='Leave "timezone" out, or declare "dtype": "timestamp[us]"',
        )
    if declared.media_type is not None and dtype not in ("bytes", "string"):
        raise UsageError(
            f"column {name!r} is {dtype} and cannot have a media type",
            where=where,
            next_step='Leave "media_type" out, or declare "dtype": "bytes"',
        )


def _shape(name: str, shape: tuple[int | str | None, ...], path: str) -> Shape:
    sizes: list[int | None] = []
    for size in shape:
        if size is None or size == _ANY_SIZE:
            sizes.append(None)
        elif isinstance(size, int) and size >= 1:
            sizes.append(size)
        else:
            raise UsageError(
                f"the shape of column {name!r} has a size {size!r}",
                where=path or None,
                why='sizes are positive integers, or "*" for any length',
                next_step='Write a shape such as [], [3], [28, 28] or ["*"]',
            )
    return tuple(sizes)


def declared_types(schema: Schema | None, casts: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Returns columns and types that a schema file or casts declare; a cast acts behind a schema file."""
    found: dict[str, str] = {}
    for name, column in schema.features.items() if schema is not None else ():
        dtype = column if isinstance(column, str) else column.dtype
        if dtype is not None:
            found[name] = dtype
    return tuple((dict(casts) | found).items())


def declared_type(name: str, declared: Mapping[str, str]) -> str | None:
    """Returns the type of a column in what `declared_types` gave: by its name, or by the last pattern that takes it."""
    patterns = [key for key in declared if fnmatch.fnmatchcase(name, key)]
    return declared.get(name) or (declared[patterns[-1]] if patterns else None)
