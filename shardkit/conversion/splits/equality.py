"""Equal numbers with equal bits, so that rows are compared by what a user sees and not by how a float is stored.

Of two floats that are equal, 0.0 and -0.0 alone differ in their bits. No NaN equals itself, yet a row that holds one is
what its copy is; which of its 2**52 bit patterns a NaN has is an accident of whoever computed it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shardkit.features import Feature


def with_equal_bits(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns a column in which 0.0 and -0.0, and all NaNs, are the same; the column itself where they are.

    Args:
        column: Of the feature's Arrow type.
        feature: Of the column.
    """
    if not pa.types.is_floating(feature.value_type):
        return column
    if feature.is_scalar:
        return _one_zero_one_nan(column)
    values = column.values
    equal = _one_zero_one_nan(values)
    if equal is values:
        return column
    buffers = column.buffers()[: 2 if pa.types.is_list(column.type) else 1]
    return pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset, children=[equal])


def _one_zero_one_nan(values: pa.Array) -> pa.Array:
    # Nulls come as NaN.
    numbers = values.to_numpy(zero_copy_only=False)
    is_nan = np.isnan(numbers)
    is_negative_zero = (numbers == 0) & np.signbit(numbers)
    if not (is_nan.any() or is_negative_zero.any()):
        return values
    numbers = np.where(is_nan, np.array(np.nan, numbers.dtype), numbers)
    numbers[is_negative_zero] = 0
    is_null = np.asarray(values.is_null()) if values.null_count else None
    return pa.array(numbers, values.type, mask=is_null, from_pandas=False)
