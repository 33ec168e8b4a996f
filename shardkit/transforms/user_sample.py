"""A made-up row, for functions that do not tell their columns from a batch without rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa

from shardkit.features import Feature, Features, arrow_schema

# A white PNG of one pixel: what opens images by their content takes it for any of them.
_IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63f8"
    "0f0001010100b138f6140000000049454e44ae426082"
)


def sample_batch(features: Features) -> pa.RecordBatch:
    """Returns one row of zeros, empty texts, and images of one pixel."""
    columns = [_sample_column(feature) for feature in features]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features))


def _sample_column(feature: Feature) -> pa.Array:
    value = pa.array([_sample_value(feature)], feature.value_type)
    if feature.is_scalar:
        return value
    size = feature.num_values
    if size is None:
        return pa.array([[]], feature.arrow_type)
    return pa.FixedSizeListArray.from_arrays(pa.concat_arrays([value] * size), type=feature.arrow_type)


def _sample_value(feature: Feature) -> Any:
    if feature.dtype == "bytes":
        return _IMAGE if (feature.media_type or "").startswith("image/") else b""
    if feature.dtype == "bool":
        return False
    if feature.dtype.startswith("decimal"):
        return Decimal(0)
    return "" if feature.dtype == "string" else 0
