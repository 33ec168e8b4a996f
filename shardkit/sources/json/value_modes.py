"""How the values of a feature are written in JSON, which a schema may make another type of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.sources.columns.casting import BadValueError, cast_column
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
