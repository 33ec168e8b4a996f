"""One record as Python values by protobuf alone: what the decoders of shardkit are compared with."""

import struct
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from shardkit.encoding.example import parse_record, python_value, stored_values
from shardkit.errors import DamageError
from shardkit.features import Feature, Features

_BITS, _FLOAT = struct.Struct("<I"), struct.Struct("<f")


def decode_record(record: bytes, features: Features, where: str) -> dict[str, Any]:
    """Returns one example as Python values by feature name, None where absent; logical dtypes restored.

    Raises:
        DamageError: If it is no `tf.train.Example` or does not have the features' kinds and shapes.
    """
    stored = parse_record(record, where)
    return {f.name: _logical_value(stored, f, where) for f in features}


def _logical_value(stored: Any, feature: Feature, where: str) -> Any:
    values = stored_values(stored, feature, where)
    if values is None:
        return None
    if feature.stored_as == "little_endian_bytes":
        logical: list[Any] = np.frombuffer(values[0], np.dtype(feature.dtype).newbyteorder("<")).tolist()
    else:
        logical = [_logical_scalar(v, feature, where) for v in values]
    return logical[0] if feature.is_scalar else logical


def _logical_scalar(value: Any, feature: Feature, where: str) -> Any:
    type_ = feature.value_type
    try:
        if feature.dtype == "bytes":
            return value
        if feature.stored_as == "float_list":
            return _FLOAT.unpack(_BITS.pack(value))[0]
        if feature.stored_as == "bytes_list":
            text = value.decode()
            return Decimal(text) if pa.types.is_decimal(type_) else text
        if feature.dtype == "uint64":
            return value % 2**64
        if pa.types.is_temporal(type_):
            width = pa.int32() if type_.bit_width == 32 else pa.int64()
            return python_value(pa.array([value], width).view(type_)[0])
        return bool(value) if feature.dtype == "bool" else value
    except (UnicodeDecodeError, InvalidOperation, pa.ArrowException, OverflowError) as error:
        raise DamageError(f"feature {feature.name!r} cannot be read", where=where, why=str(error)) from error
