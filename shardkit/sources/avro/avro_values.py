"""Values of Avro that Arrow has no form for as they are stored."""

from __future__ import annotations

_MAX_DECIMAL_BYTES = 32


def decimal_text(value: bytes, scale: int) -> str:
    """Returns a decimal as digits, or words that are no number if it has more bytes than any type holds.

    Args:
        value: Unscaled, two's complement, big-endian.
        scale: Digits behind the point.
    """
    if len(value) > _MAX_DECIMAL_BYTES:
        return f"a number of {len(value)} bytes"
    number = int.from_bytes(value, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else f"{sign}{digits}"
