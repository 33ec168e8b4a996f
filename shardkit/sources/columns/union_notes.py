"""Columns of several files: those that some lack, and files that share none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from glob import escape

from shardkit.errors import UsageError
from shardkit.messages import printable, shown
from shardkit.sources.file_globs import glob_options

_LISTED_COLUMNS = 5


def check_shared(files: Sequence[tuple[str, Collection[str]]]) -> None:
    """Checks that each of several files shares a column with another.

    Args:
        files: The name and the columns of each.

    Raises:
        UsageError: If one does not; the rows of such a file are often those of another one, as in X.csv and y.csv.
    """
    filled = [(name, columns) for name, columns in files if columns]
    counts = Counter(name for _, columns in filled for name in set(columns))
    alone = next(((name, columns) for name, columns in filled[::-1] if all(counts[c] == 1 for c in columns)), None)
    if alone is None or len(filled) == 1:
        return
    name, columns = alone
    others = [column for other, held in files if other != name for column in held]
    raise UsageError(
        f"{printable(name)} shares no column with the other files",
        why=f"it has {_listed(columns)}, the others have {_listed(list(dict.fromkeys(others)))}",
        next_step=f"Leave it out with {glob_options('--exclude', [escape(name)])}, or convert it apart. If its rows "
        "belong to those of another file, join these first, such as CSV by  paste -d , X.csv y.csv >joined.csv",
    )


def _listed(columns: Collection[str]) -> str:
    more = f" and {len(columns) - _LISTED_COLUMNS:,} more" if len(columns) > _LISTED_COLUMNS else ""
    return ", ".join(map(shown, list(columns)[:_LISTED_COLUMNS])) + more


def union_notes(columns: Sequence[Collection[str]]) -> Iterator[str]:
    """Yields notes on columns that some files lack, and on those whose names differ in case only."""
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
