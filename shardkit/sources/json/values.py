"""Values of JSON on their way to Arrow: the Python types that they are decoded to, and the columns made of these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.messages import shown
from shardkit.sources.columns.casting import BadValueError, cast_column
from shardkit.sources.json.keys import NotFinite, as_words
from shardkit.sources.json.type_inference import flatten

Mode = Literal["native", "string", "written"]

# A few bad rows at the start of a file must not decide.
_NUM_VOTES = 15


def written_modes(features: Features, rows: Iterable[dict[str, Any]]) -> dict[str, Mode]:
    """Returns how each feature is written where that is not the usual way, by most of its first values in some rows.

    The rows must be a sample that depends on the file alone: whether a row fits must not depend on the part of the
    file that it is read with.

    Args:
        rows: Objects; as many as it takes are looked at.
    """
    # A json column is written as it is.
    by_name = {f.name: f for f in features if not f.is_json}
    votes: dict[str, list[Mode]] = {name: [] for name in by_name}
    is_open = set(votes)
    for row in rows:
        for path, value in flatten(row):
            sample = value[0] if isinstance(value, list) and value else value
            is_finite = not isinstance(sample, float) or math.isfinite(sample)
            if path in is_open and sample is not None and is_finite and not isinstance(sample, list):
                mode = _shown_mode(by_name[path], sample)
                if mode == usual_mode(by_name[path]) or _fits(sample, by_name[path]):
                    votes[path].append(mode)
                if len(votes[path]) == _NUM_VOTES:
                    is_open.remove(path)
        if not is_open:
            break
    elected = {name: max(dict.fromkeys(shown), key=shown.count) for name, shown in votes.items() if shown}
    return {name: mode for name, mode in elected.items() if mode != usual_mode(by_name[name])}


def usual_mode(feature: Feature) -> Mode:
    """Returns how a feature is written that was inferred from JSON, or is declared as text that is parsed."""
    if feature.vocabulary is not None or feature.dtype.startswith(("date", "time", "decimal")):
        return "string"
    return "native"


def _shown_mode(feature: Feature, sample: Any) -> Mode:
    takes_text = feature.dtype in ("string", "bytes") or feature.dtype.startswith("decimal")
    if isinstance(sample, str):
        return "native" if feature.dtype in ("string", "bytes") else "string"
    return "written" if takes_text else "native"


def _fits(sample: Any, feature: Feature) -> bool:
    try:
        # Arrow holds no integer beyond uint64; as text it fits.
        is_large = isinstance(sample, int) and not -(2**63) <= sample < 2**63
        cast_column(pa.array([str(sample) if is_large else sample]), feature.with_shape(()))
    except (pa.ArrowInvalid, OverflowError, BadValueError, UsageError):
        return False
    return True


ABSENT = msgspec.Raw(b"null")


def python_type(feature: Feature, mode: Mode, takes_not_finite: bool) -> tuple[Any, Any]:
    """Returns the type that a feature's values are decoded to, and the value of an absent key.

    Args:
        takes_not_finite: Whether the text is `spelled_out`.
    """
    if feature.is_json or len(feature.shape) > 1:
        return msgspec.Raw, ABSENT
    if mode == "written":
        return (msgspec.Raw, ABSENT) if feature.is_scalar else (list[msgspec.Raw] | None, None)
    if mode == "string" or feature.dtype in ("string", "bytes"):
        value: Any = str
    elif feature.dtype == "bool":
        value = bool
    elif feature.dtype.startswith("float"):
        value = int | float | NotFinite if takes_not_finite else int | float
    else:
        value = int
    return (value | None, None) if feature.is_scalar else (list[value | None] | None, None)


def to_arrow(values: Sequence[Any], feature: Feature, mode: Mode) -> pa.Array:
    """Returns decoded values as a column that can be cast to the feature.

    Raises:
        BadValueError: If a value is of another kind than the others.
        pa.ArrowInvalid, pa.ArrowTypeError, OverflowError: If a value has no place in the column.
    """
    if feature.is_json:
        return pa.array((as_words(bytes(value)) for value in values), pa.binary())
    if len(feature.shape) > 1:
        values = [_flattened(bytes(value), feature, row) for row, value in enumerate(values)]
    elif mode == "written":
        values = [_written(v, feature, row) for row, v in enumerate(values)]
    type_: pa.DataType = pa.string()
    if mode == "native" and feature.dtype not in ("string", "bytes"):
        type_ = pa.int64()
        if feature.dtype == "bool":
            type_ = pa.bool_()
        elif feature.dtype.startswith("float"):
            type_ = pa.float64()
        elif feature.dtype == "uint64":
            type_ = pa.uint64()
    type_ = type_ if feature.is_scalar else pa.list_(type_)
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if not feature.dtype.startswith("float"):
            raise
        return pa.array(list(map(_as_floats, values)), type_)


def _flattened(text: bytes, feature: Feature, row: int) -> list[Any] | None:
    # The values of nested lists of the feature's shape, in row-major order.
    value = msgspec.json.decode(text)
    if value is None:
        return None
    if not isinstance(value, list) or feature.shape[0] not in (None, len(value)):
        raise BadValueError(feature.name, row, feature.describe_type(), "lists of other lengths")
    for size in feature.shape[1:]:
        if any(not isinstance(item, list) or size not in (None, len(item)) for item in value):
            raise BadValueError(feature.name, row, feature.describe_type(), "lists of other lengths")
        value = [inner for item in value for inner in item]
    return [_number(item, feature, row) for item in value]


def _number(item: Any, feature: Feature, row: int) -> Any:
    # Arrow would cut decimals in lists to integers.
    is_float = feature.dtype.startswith("float")
    if is_float and isinstance(item, dict):
        return msgspec.convert(item, NotFinite).as_float()
    kinds = (bool,) if feature.dtype == "bool" else (int, float) if is_float else (int,)
    if feature.dtype not in ("string", "bytes") and type(item) not in kinds:
        raise BadValueError(feature.name, row, feature.describe_type(), shown(str(item)))
    return item


def _as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_as_floats, value))
    return value.as_float() if isinstance(value, NotFinite) else value


def _written(value: Any, feature: Feature, row: int) -> Any:
    if value is None or isinstance(value, list):
        return None if value is None else [_written(v, feature, row) for v in value]
    text = as_words(bytes(value))
    if text[:1] in (b'"', b"{", b"["):
        raise BadValueError(feature.name, row, "a number, as before", shown(text.decode("utf-8", "replace")))
    return None if text == b"null" else text.decode()
