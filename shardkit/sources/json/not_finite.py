"""NaN and infinities in JSON: JSON does not know them, Python's `json` writes them, and floats hold them."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
# A key that no document has: a character for private use.
_KEY = "\uf8ff"
_BEGIN = b'{"%s":"' % _KEY.encode()
_SPELLED = re.compile(re.escape(_BEGIN) + rb'(-?\w+)"}')


class NotFinite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename={"name": _KEY}):
    """A float that is not finite, called as Python's `json` calls it."""

    name: Literal["NaN", "Infinity", "-Infinity"]

    def as_float(self) -> float:
        """Returns the float."""
        return float(self.name)


def spelled_out(text: bytes) -> bytes | None:
    """Returns JSON in which floats that are not finite are objects that `NotFinite` takes; None if there are none."""
    spelled = _replaced(text, b'%s%%s"}' % _BEGIN)
    return None if spelled is text else spelled


def with_nulls(text: bytes) -> bytes:
    """Returns JSON with nulls in the place of floats that are not finite."""
    return _replaced(text, b"null")


def as_words(spelled: bytes) -> bytes:
    """Returns what `spelled_out` gave with words in the place of its objects, as `"NaN"`."""
    return _SPELLED.sub(rb'"\1"', spelled) if _BEGIN in spelled else spelled


def _replaced(text: bytes, form: bytes) -> bytes:
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    found = False

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal found
        token = match[0]
        if token[:1] == b'"':
            return token
        found = True
        return form % token if b"%s" in form else form

    replaced = _TOKEN.sub(replace, text)
    return replaced if found else text
