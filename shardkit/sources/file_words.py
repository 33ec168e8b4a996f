"""Names of files that may say something of their rows, such as `cats.csv` beside `dogs.csv`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.split_words import words_beside_split

_MANY_FILES = 100
_LISTED = 3
_PARTS = frozenset({"part", "parts", "chunk", "shard", "batch", "data", "file", "split", "fold", "page"})
_NUMBERED = re.compile(r"\d")


def name_notes(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns a note on files whose names differ in words, which become no column.

    Words for splits, numbers and parts say nothing of the rows.

    Args:
        files: Of tables, or of texts whose lines are rows.
    """
    bases = {file.name.rpartition("/")[2] for file in files if file.shard is None}
    if not 1 < len(bases) <= _MANY_FILES or any(_NUMBERED.search(base) for base in bases):
        return ()
    words = {base: {word.lower() for word in words_beside_split(base)} for base in bases}
    shared = set.intersection(*words.values()) | _PARTS
    own = [frozenset(word for word in found - shared if len(word) > 1) for found in words.values()]
    if len(set(own)) < 2 or not all(own):
        return ()
    listed = ", ".join(map(printable, sorted(bases)[:_LISTED])) + (", ..." if len(bases) > _LISTED else "")
    return (f"the names {listed} become no column; --source-column NAME gives each row the path of its file",)
