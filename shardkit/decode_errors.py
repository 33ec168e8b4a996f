"""What msgspec raises at bytes that are no JSON or MessagePack of the wanted type.

Its own error does not cover text that is not UTF-8, nor arrays nested too deeply.
"""

from __future__ import annotations

import msgspec

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
