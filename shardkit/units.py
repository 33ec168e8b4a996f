"""Sizes as people write and read them."""

from __future__ import annotations

import re
from fractions import Fraction

from shardkit.errors import UsageError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB
PiB = 1024 * TiB
EiB = 1024 * PiB

_UNITS = {
    "": 1, "b": 1,
    "k": KiB, "kib": KiB, "m": MiB, "mib": MiB, "g": GiB, "gib": GiB, "t": TiB, "tib": TiB,
    "p": PiB, "pib": PiB, "e": EiB, "eib": EiB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15, "eb": 10**18,
}  # fmt: skip
_SHOWN = ((EiB, "EiB"), (PiB, "PiB"), (TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB"))
_DURATION = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhdwSMHDW]?)\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Returns the number of bytes that text such as `128MiB`, `1.5 GB` or `4096` names.

    `MiB` and `M` are powers of 1024, `MB` powers of 1000.

    Raises:
        UsageError: If the text is not a positive size.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    num_bytes = int(Fraction(match.group(1)) * unit) if match and unit else 0
    if num_bytes < 1:
        raise UsageError(f"{text!r} is not a size", next_step="Write it like 128MiB, 1.5GB or 4096")
    return num_bytes


def parse_duration(text: str) -> float:
    """Returns the seconds that text such as `7d`, `12h`, `30m`, `90s` or `0` names.

    Raises:
        UsageError: If the text is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None or (not match.group(2) and float(match.group(1))):
        raise UsageError(f"{text!r} is not a duration", next_step="Write it like 7d, 12h, 30m or 90s")
    return float(match.group(1)) * _SECONDS[match.group(2).lower() or "s"]


def format_size(num_bytes: float) -> str:
    """Returns a size with three significant digits and a binary unit, such as `1.5 MiB`."""
    # 1023.5 KiB and more would be rounded to 1024 KiB.
    unit, name = next((u for u in _SHOWN if abs(num_bytes) >= u[0] * (1023.5 / 1024)), (1, "B"))
    if unit == 1:
        return f"{num_bytes:.0f} B"
    value = num_bytes / unit
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {name}"


def format_count(count: int) -> str:
    """Returns a count with thousands separators."""
    return f"{count:,}"


def format_number(count: int, noun: str) -> str:
    """Returns a count with its noun, such as `1 shard` or `1,024 shards`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_duration(seconds: float) -> str:
    """Returns a duration such as `0.4 s`, `3 min 20 s` or `2 h 5 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
