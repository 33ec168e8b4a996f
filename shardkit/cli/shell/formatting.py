"""Single values as a person reads them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from shardkit.features import Feature
from shardkit.file_types import HEAD_BYTES, image_type_of
from shardkit.media.audio_headers import audio_type_of
from shardkit.media.video_headers import video_type_of
from shardkit.messages import visible
from shardkit.units import format_count, format_size

_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MAX_SHOWN_VALUES = 8


def is_temporal(feature: Feature) -> bool:
    """Whether a feature's values are dates, times or spans of time."""
    return feature.dtype == "date" or feature.dtype.startswith(("timestamp", "time[", "duration"))


def format_number_value(value: float | None) -> str:
    """Returns a number with at most four significant digits after the point, integers whole."""
    if value is None:
        return ""
    if isinstance(value, int):
        return _separated(value, 0) if abs(value) < 10**13 else f"{value:.4g}"
    if value == 0 or not 1e-3 <= abs(value) < 1e12:
        return f"{value:.4g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = _separated(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_stored_time(value: float | None, feature: Feature) -> str:
    """Returns a stored date, time or duration, such as `2013-01-01 10:00`."""
    if value is None:
        return ""
    if feature.dtype == "date":
        return _format_moment(round(value) * 86_400)
    kind, _, unit = feature.dtype.rstrip("]").partition("[")
    seconds = value / _SECONDS[unit]
    if kind == "duration":
        return format_span(seconds)
    if kind == "time":
        return str(timedelta(seconds=round(seconds)))
    return _format_moment(round(value) // _SECONDS[unit])


def format_span(seconds: float) -> str:
    """Returns a span of time in the unit that suits it."""
    for name, size in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{format_number_value(seconds / size)} {name}"
    return f"{format_number_value(float(seconds))} s"


def format_class(value: Any, feature: Feature) -> str:
    """Returns a value of a top list or an example's scalar; the name of the class where the feature has classes."""
    if feature.vocabulary is not None and isinstance(value, int) and 0 <= value < len(feature.vocabulary):
        return visible(feature.vocabulary[value])
    if value is None:
        return "(not text)"
    if isinstance(value, str):
        return visible(value) if value.strip() else repr(value)
    return str(value)


def format_share(share: float) -> str:
    """Returns a share as a percentage, with a digit after the point below 1 %."""
    return f"{share:.0%}" if share >= 0.0095 else f"{share:.1%}"


def shorten(text: str, max_length: int) -> str:
    """Returns text of at most so many characters, its end replaced by an ellipsis."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def format_example_value(value: Any, feature: Feature, max_length: int) -> str:
    """Returns the value of one feature of one example on one line."""
    if value is None:
        return "(none)"
    if isinstance(value, list):
        num_shown = 1 if any(isinstance(v, bytes) for v in value[:1]) else _MAX_SHOWN_VALUES
        shown = ", ".join(format_example_value(v, feature, 40) for v in value[:num_shown])
        more = f", … ({format_count(len(value))} values)" if len(value) > num_shown else ""
        return f"[{shown}{more}]"
    if isinstance(value, bytes):
        return f"<{format_size(len(value))} {_media_type(value, feature)}>"
    if feature.vocabulary is not None:
        return f"{value} ({format_class(value, feature)})"
    if feature.dtype in ("float16", "float32"):
        return str(np.float16(value) if feature.dtype == "float16" else np.float32(value))
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    text = format_class(value, feature)
    if len(text) > max_length:
        return f"{shorten(text, max_length)} ({format_count(len(text))} characters)"
    return text


def json_value(value: Any) -> Any:
    """Returns a value of an example as JSON holds it: bytes as their number, times as ISO 8601, NaN as text."""
    if isinstance(value, list):
        return [json_value(v) for v in value]
    if isinstance(value, bytes):
        return {"num_bytes": len(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _separated(value: float, digits: int) -> str:
    # A year looks odd with a separator.
    return f"{value:,.{digits}f}" if abs(value) >= 10_000 else f"{value:.{digits}f}"


def _format_moment(seconds: int) -> str:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return f"{seconds:,} s"
    if (moment.hour, moment.minute, moment.second) == (0, 0, 0):
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%Y-%m-%d %H:%M" if moment.second == 0 else "%Y-%m-%d %H:%M:%S")


def _media_type(value: bytes, feature: Feature) -> str:
    head = value[:HEAD_BYTES]
    found = image_type_of(head) or audio_type_of(head) or video_type_of(head)
    return found if found and feature.media_type else visible(feature.media_type or "bytes")
