"""Names and values of the user in messages: escaped where a terminal could not show them, and cut where long."""

from __future__ import annotations

import re

# Of stdout in an error, where files have their paths.
OUTPUT_NAME = "standard output"
_SHOWN_CHARACTERS = 80
_REASON_CHARACTERS = 200


def printable(name: str) -> str:
    """Returns a name as it is, or quoted and escaped if a terminal could not show it."""
    return name if name.isprintable() else repr(name)


def shown(value: object) -> str:
    """Returns a value of the user's data for a message: quoted, escaped, and cut if long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text):,} characters)"


def reason_of(error: Exception) -> str:
    """Returns why a library failed, in its words, without the marks of Python's bytes; cut if long."""
    return re.sub(r"\bb'([^']*)'", r"'\1'", str(error))[:_REASON_CHARACTERS] or type(error).__name__


def visible(text: str) -> str:
    """Returns text with every control character escaped: names and values of users must not steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
