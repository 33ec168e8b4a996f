"""The rows of a JSON document that are in an array below a key, such as `{"data": [...]}`."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from shardkit.encoding.byte_stream import Readable
from shardkit.errors import UsageError
from shardkit.messages import shown
from shardkit.sources.files.transcoding import ConvertedStream

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?P<end>"?)|[\[\]{}:]', re.DOTALL)
_NO_BLANK = re.compile(rb"[^\r\n]")


class _Level(NamedTuple):
    # An array or object that is open, and the key of it that was read last.
    kind: Literal["array", "object"]
    key: str = ""


WHOLE_DOCUMENT = "."
"""In place of a key: the document itself is a row."""


class RecordsStream(ConvertedStream):
    """A JSON document of which all but one array is blank, so that lines and bytes keep their places.

    Args:
        raw: UTF-8.
        key: Of the array; keys of nested objects are joined by dots.
    """

    def __init__(self, raw: Readable, key: str, where: str) -> None:
        super().__init__(raw)
        self._key = key
        self._where = where
        self._levels: list[_Level] = []
        self._last_string = b""
        self._state: Literal["before", "inside", "behind"] = "before"
        self._depth = 0
        self._arrays: list[str] = []
        self._rest = b""

    def _convert(self, data: bytes) -> bytes:
        blanked = self._blanked(self._rest + data)
        if not data and self._state == "before":
            found = ", ".join(map(shown, dict.fromkeys(self._arrays[:5])))
            raise UsageError(
                f"the document has no array {shown(self._key)}",
                where=self._where,
                why=f"its arrays are {found}" if found else "it has no array below a key",
                next_step="Name the key of the array that holds the rows with --records, or leave it out where they "
                "are an array themselves",
            )
        return blanked

    def _blanked(self, data: bytes) -> bytes:
        # A string that is not closed yet is looked at again with the next piece.
        parts: list[bytes] = []
        done, stop = 0, len(data)
        for match in _TOKEN.finditer(data):
            if match["end"] == b"" and not self._is_over:
                stop = match.start()
                break
            before = self._state
            self._follow(match[0])
            if self._state != before:
                cut = match.start() if self._state == "inside" else match.end()
                parts.append(self._as_shown(data[done:cut], before))
                done = cut
        parts.append(self._as_shown(data[done:stop], self._state))
        self._rest = data[stop:]
        return b"".join(parts)

    @staticmethod
    def _as_shown(text: bytes, state: str) -> bytes:
        return text if state == "inside" else _NO_BLANK.sub(b" ", text)

    def _follow(self, token: bytes) -> None:
        if self._state == "inside":
            self._depth += (token in b"[{") - (token in b"]}") if len(token) == 1 else 0
            self._state = "inside" if self._depth else "behind"
        elif token in (b"[", b"{"):
            if token == b"[" and self._state == "before" and self._is_wanted():
                self._state, self._depth = "inside", 1
                return
            if self._state == "behind" and not self._levels:
                raise UsageError(
                    "the file holds several objects, and --records takes the rows of one",
                    where=self._where,
                    next_step="Leave --records out: each object is a row; --drop-columns leaves a list of objects out",
                )
            self._levels.append(_Level("array" if token == b"[" else "object"))
        elif token in (b"]", b"}"):
            del self._levels[-1:]
        elif token == b":":
            if self._levels:
                self._levels[-1] = self._levels[-1]._replace(key=_decoded(self._last_string))
        else:
            self._last_string = token

    def _is_wanted(self) -> bool:
        if not self._levels or any(level.kind == "array" for level in self._levels):
            return False
        path = ".".join(level.key for level in self._levels)
        self._arrays.append(path)
        return path == self._key


def _decoded(string: bytes) -> str:
    try:
        return msgspec.json.decode(string, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return string.decode("utf-8", "replace")
