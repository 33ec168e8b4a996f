"""Labels in words between blanks: the name of a file, and what is known of it, as of CelebA and Oxford Pets."""

from __future__ import annotations

from collections import Counter

from shardkit.errors import BadInputError
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_stream, read_exactly
from shardkit.sources.text.table_signs import even_delimiter
from shardkit.units import MiB, format_size

_MAX_BYTES = 256 * MiB
_MAX_TITLES = 8


def rows_of_words(file: RawFile, head: bytes) -> list[list[str]] | None:
    """Returns the rows of a table whose columns stand between blanks, its names first; None if a file is none.

    All lines have the same number of words, two or more, but for those that begin with `#`, which are left out. Up to
    eight lines of another number may stand above them. The last of these names the columns if it has one word less, as
    that of the names of files is left out.

    Args:
        file: The labels.
        head: Its first bytes.

    Raises:
        BadInputError: If it is too large or not UTF-8.
    """
    texts = head[: head.rfind(b"\n") + 1].splitlines()
    lines = [line.split() for line in texts if line.strip() and not line.startswith(b"#")]
    widths = Counter(map(len, lines))
    if not widths or even_delimiter(head) is not None:
        return None
    width, count = widths.most_common(1)[0]
    first = next(i for i, line in enumerate(lines) if len(line) == width)
    if width < 2 or count < 2 or first > _MAX_TITLES or any(len(line) != width for line in lines[first:]):
        return None
    rows = [line.split() for line in _text(file).splitlines() if line.strip() and not line.startswith("#")]
    title = rows[first - 1] if first else []
    return [["file", *title], *rows[first:]] if len(title) == width - 1 else rows[first:]


def _text(file: RawFile) -> str:
    with open_stream(file) as stream:
        raw = read_exactly(stream, _MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        why = f"it has more than {format_size(_MAX_BYTES)}"
        raise BadInputError("a file of labels is too large", where=place(file), why=why, next_step="Write it as CSV")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a file of labels is not UTF-8", where=place(file), why=str(error), next_step="Write it as UTF-8"
        ) from error
