"""What `--union-by-name` joins: the columns that some files lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from shardkit.messages import shown

_LISTED_COLUMNS = 5


def union_notes(columns: Sequence[Collection[str]]) -> Iterator[str]:
    """Yields notes on columns that some files lack, and on those whose names differ in case only.

    Args:
        columns: Of each file.
    """
    counts = Counter(name for names in columns for name in names)
    lacking = [f"{shown(name)} {len(columns) - n:,}" for name, n in counts.items() if n < len(columns)]
    if lacking:
        more = f" and {len(lacking) - _LISTED_COLUMNS:,} more columns" if len(lacking) > _LISTED_COLUMNS else ""
        yield f"of {len(columns):,} files so many lack a column: {', '.join(lacking[:_LISTED_COLUMNS])}{more}"
    by_folded: dict[str, list[str]] = {}
    for name in counts:
        by_folded.setdefault(name.casefold(), []).append(name)
    for names in by_folded.values():
        if len(names) > 1:
            yield f"columns {' and '.join(map(shown, names))} differ in case only, and stay apart"
