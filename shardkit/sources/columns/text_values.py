"""Which texts fit a feature for sure, and which cannot, for whole columns by the form of the texts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.features import Feature

_SPACE = r"[ \t]*"
_DAY = r"(1[0-9]{3}|2[0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
# By the start of a dtype: texts that fit in any case, and texts that may fit.
_SURE = {
    "int64": r"^-?[0-9]{1,18}$",
    "int32": r"^-?[0-9]{1,9}$",
    "int16": r"^-?[0-9]{1,4}$",
    "int8": r"^-?[0-9]{1,2}$",
    "uint64": r"^[0-9]{1,18}$",
    "uint32": r"^[0-9]{1,9}$",
    "uint16": r"^[0-9]{1,4}$",
    "uint8": r"^[0-9]{1,2}$",
    "float": r"^-?[0-9]{1,30}(\.[0-9]{0,30})?$",
    "date": f"^{_DAY}$",
    "timestamp": f"^{_DAY}[ T]{_TIME}$",
}
_POSSIBLE = {
    "int": r"^\s*[-+]?(0[xX][0-9a-fA-F]*|[0-9]+)\s*$",
    "uint": r"^\s*[-+]?(0[xX][0-9a-fA-F]*|[0-9]+)\s*$",
    "float": r"(?i)^\s*[-+]?([0-9.eE+-]+|nan|inf|infinity)\s*$",
    "date": r"^[\s0-9:TtZz.+-]*$",
    "time": r"^[\s0-9:TtZz.+-]*$",
}


def are_suspect(texts: pa.Array, feature: Feature) -> npt.NDArray[np.bool_]:
    if feature.vocabulary is not None:
        sure = pc.is_in(texts, value_set=pa.array(feature.vocabulary, pa.string()))
    else:
        key = next((k for k in _SURE if feature.dtype.startswith(k)), None)
        has_rule = key is not None and feature.dtype != "float16" and feature.timezone is None
        sure = pc.match_substring_regex(texts, _SURE[key]) if has_rule and key else pa.nulls(len(texts), pa.bool_())
    # Null is left to whether the feature takes it.
    sure = pc.if_else(texts.is_null(), feature.nullable, pc.fill_null(sure, False))
    suspect: npt.NDArray[np.bool_] = ~sure.to_numpy(zero_copy_only=False)
    return suspect


def find_impossible(values: pa.Array, feature: Feature) -> list[int]:
    # Positions of values that no number of the feature's kind is written like.
    key = next((k for k in _POSSIBLE if feature.dtype.startswith(k)), None)
    if key is None or feature.vocabulary is not None:
        return []
    possible = pc.match_substring_regex(values, _POSSIBLE[key])
    impossible: list[int] = np.flatnonzero(~pc.fill_null(possible, True).to_numpy(zero_copy_only=False)).tolist()
    return impossible
