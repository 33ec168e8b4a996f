"""Names of files that may say something of their rows, such as `cats.csv` beside `dogs.csv`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.split_names import split_of
from shardkit.sources.split_words import words_beside_split

_MANY_FILES = 100
_LISTED = 3
_PARTS = frozenset({"part", "parts", "chunk", "shard", "batch", "data", "file", "split", "fold", "page"})
_NUMBERED = re.compile(r"\d")


def name_notes(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns notes on files of one split whose names differ in words, which become no column.

    Words for splits, numbers and parts say nothing of the rows.

    Args:
        files: Of tables, or of texts whose lines are rows.
    """
    groups: dict[str | None, set[str]] = {}
    for file in files:
        if file.shard is None:
            groups.setdefault(split_of(file), set()).add(file.name.rpartition("/")[2])
    few = [bases for bases in groups.values() if 1 < len(bases) <= _MANY_FILES]
    versions = next((pair for bases in few if (pair := _versions(bases)) is not None), None)
    if versions is not None:
        first, second = map(printable, versions)
        return (
            f"{first} and {second} are read together, and one may be a part or another version of the other; "
            f"--exclude {shlex.quote(second)} leaves it out, --source-column NAME tells their rows apart",
        )
    bases = next((bases for bases in few if _differ_in_words(bases)), None)
    if bases is None:
        return ()
    listed = ", ".join(map(printable, sorted(bases)[:_LISTED])) + (", ..." if len(bases) > _LISTED else "")
    return (f"the names {listed} become no column; --source-column NAME gives each row the path of its file",)


def _differ_in_words(bases: Collection[str]) -> bool:
    if any(_NUMBERED.search(base) for base in bases):
        return False
    words = [_words_of(base) for base in bases]
    own = [found - frozenset.intersection(*words) for found in words]
    return len(set(own)) > 1 and all(own)


def _versions(bases: Collection[str]) -> tuple[str, str] | None:
    """Returns two names of which one has all words of the other and more, as `bank.csv` and `bank-full.csv`."""
    words = {base: _words_of(base) for base in sorted(bases)}
    shortest = min(words, key=lambda base: len(words[base]))
    stem = re.compile(rf"(?<![^\W_]){re.escape(shortest.partition('.')[0])}(?![^\W_])", re.IGNORECASE)
    longer = next((base for base, found in words.items() if found > words[shortest] and stem.search(base)), None)
    return None if longer is None else (shortest, longer)


def _words_of(base: str) -> frozenset[str]:
    return frozenset(word.lower() for word in words_beside_split(base) if len(word) > 1) - _PARTS
