"""Text in other encodings, read as UTF-8 piece by piece."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from shardkit.encoding.byte_stream import ByteStream, Readable
from shardkit.errors import DamagedFileError, UsageError
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.units import KiB, MiB

_PIECE_BYTES = 256 * KiB
_MAX_HELD_BYTES = MiB
_MAX_COMMENT = 8
_COMMENT = re.compile(f"[!#-\\x7e \\t]{{1,{_MAX_COMMENT}}}")
_UTF8 = frozenset({"utf-8", "utf-8-sig"})
# They write names of hosts and literals of programs, not files, and some cannot be read piece by piece.
_NO_FILES = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "unicode_escape"})


def with_text_options(files: Iterable[RawFile], options: SourceOptions) -> tuple[RawFile, ...]:
    """Returns files that are read as text in an encoding, without comments and first lines, as the options ask.

    Raises:
        UsageError: If there is no such encoding, or what begins comments is no short ASCII.
    """
    found = None if options.encoding is None else find_encoding(options.encoding)
    comment = options.comment
    if comment is not None and not _COMMENT.fullmatch(comment):
        step = f"Give 1 to {_MAX_COMMENT} characters of ASCII without quotes, such as --comment '#'"
        raise UsageError(f"{comment!r} cannot begin comments", next_step=step)
    if found is None and comment is None and not options.skip_lines and options.records is None:
        return tuple(files)
    changes = {
        "encoding": found, "comment": comment, "skip_lines": options.skip_lines, "records": options.records
    }  # fmt: skip
    return tuple(msgspec.structs.replace(f, **changes) for f in files)


def find_encoding(name: str) -> str | None:
    """Returns the one name of an encoding that has many, None for UTF-8, which needs no conversion.

    Raises:
        UsageError: If there is no such encoding.
    """
    found: str | None
    try:
        found = codecs.lookup(name).name
        codecs.getincrementaldecoder(name)
        # Refuses codecs that are no encoding of text, such as rot13.
        "".encode(name)
    except (LookupError, ValueError):
        found = None
    if found is None or found in _NO_FILES:
        raise UsageError(
            f"{name!r} is not a text encoding",
            next_step="Name it as Python does, such as utf-16, utf-32, latin-1, cp1252, shift_jis, gb18030 or koi8-r",
        )
    return None if found in _UTF8 else found


class ConvertedStream(ByteStream, ABC):
    """A stream whose bytes are converted piece by piece."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self._ready = memoryview(b"")
        self._is_over = False

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to `num_bytes` bytes, none at the end.

        Raises:
            DamagedFileError, UsageError: If the bytes before cannot be converted.
        """
        while not self._ready and not self._is_over:
            data = self._raw.read(_PIECE_BYTES)
            self._is_over = not data
            self._ready = memoryview(self._convert(data))
        taken, self._ready = self._ready[:num_bytes], self._ready[num_bytes:]
        return bytes(taken)

    @abstractmethod
    def _convert(self, data: bytes) -> bytes:
        """Returns what some more bytes become, perhaps nothing yet; without bytes the rest of what was held."""


class TranscodedStream(ConvertedStream):
    """A stream of text in one encoding, as UTF-8.

    Args:
        encoding: As `find_encoding` has it.
    """

    def __init__(self, raw: Readable, encoding: str, where: str) -> None:
        super().__init__(raw)
        self._encoding = encoding
        self._where = where
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._num_decoded = 0

    def _convert(self, data: bytes) -> bytes:
        held = len(self._decoder.getstate()[0])
        start = self._num_decoded - held
        try:
            text = self._decoder.decode(data, not data)
        except UnicodeDecodeError as error:
            got = bytes(error.object[error.start : error.end][:8])
            raise self._damaged(start + error.start, f"{got!r}: {error.reason}") from error
        except UnicodeError as error:
            # The byte order is not guessed.
            raise DamagedFileError(
                f"the text is not {self._encoding}",
                where=self._where,
                why="it does not begin with a byte order mark",
                next_step=f"Name its byte order too: --encoding {self._encoding}-le or {self._encoding}-be",
            ) from error
        self._num_decoded += len(data)
        if len(self._decoder.getstate()[0]) > _MAX_HELD_BYTES:
            raise self._damaged(start, "a sequence that begins there does not end")
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            num_before = len(text[: error.start].encode(self._encoding))
            raise self._damaged(start + num_before, "half of a surrogate pair") from error

    def _damaged(self, position: int, why: str) -> DamagedFileError:
        return DamagedFileError(
            f"the text is not {self._encoding}",
            where=self._where,
            why=f"not {self._encoding} at byte {position} ({why})",
            next_step="Name its encoding with --encoding",
        )


class UncommentedStream(ConvertedStream):
    """A stream of delimited text in which lines are empty that are no data, so that other lines keep their numbers.

    A line inside of a quoted field is data.

    Args:
        raw: UTF-8.
        skip_lines: Lines at the start that are emptied.
        comment: Lines that begin with it are emptied; None leaves all.
    """

    def __init__(self, raw: Readable, skip_lines: int, comment: str | None) -> None:
        super().__init__(raw)
        self._num_to_skip = skip_lines
        self._comment = None if comment is None else comment.encode()
        self._is_quoted = False
        self._rest = b""

    def _convert(self, data: bytes) -> bytes:
        # A line may go on in the next piece.
        whole, self._rest = _up_to_last_line_end(self._rest + data) if data else (self._rest, b"")
        return b"".join(map(self._emptied, whole.splitlines(keepends=True)))

    def _emptied(self, line: bytes) -> bytes:
        if self._num_to_skip:
            self._num_to_skip -= 1
            return _line_end(line)
        if self._comment is not None and not self._is_quoted and line.startswith(self._comment):
            return _line_end(line)
        self._is_quoted ^= bool(line.count(b'"') % 2)
        return line


def _up_to_last_line_end(data: bytes) -> tuple[bytes, bytes]:
    # A return at the very end may be half of a line end.
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
    return data[:end], data[end:]


def _line_end(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]
