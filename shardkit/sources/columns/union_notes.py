"""Columns of several files: those that some lack, and files that share none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from glob import escape

from shardkit.errors import UsageError
from shardkit.messages import printable, shown
from shardkit.sources.file_globs import glob_options

_LISTED_COLUMNS = _LISTED_FILES = 5


def check_shared(
    files: Sequence[tuple[str, Collection[str]]], way_to_join: Callable[[], str | None] = lambda: None
) -> None:
    """Checks that files share columns: each with another one, and these with the rest.

    Args:
        files: The name and the columns of each.
        way_to_join: Returns the command that joins the rows of files that share none, if there is one.

    Raises:
        UsageError: If some do not; the rows of such files are often those of others, as in X.csv and y.csv.
    """
    held = {name: frozenset(columns) for name, columns in files if columns}
    groups = _groups(set(held.values()))
    if len(groups) < 2:
        return
    # Labels are fewer columns than what they are the labels of.
    fewest = min(groups[::-1], key=lambda group: len(group))
    alone = [name for name, columns in held.items() if columns <= fewest]
    others = [column for name, columns in files if name not in alone for column in columns]
    one = len(alone) == 1
    it = "it" if one else "them"
    excluded = glob_options("--exclude", list(map(escape, alone)))
    raise UsageError(
        f"{', '.join(map(printable, alone[:_LISTED_FILES]))}{', ...' if len(alone) > _LISTED_FILES else ''} "
        f"share{'s' if one else ''} no column with the other files",
        why=f"{'it has' if one else 'they have'} {_listed(sorted(fewest))}, the others have "
        f"{_listed(list(dict.fromkeys(others)))}",
        next_step=way_to_join()
        or f"Leave {it} out with {excluded}, or convert {it} apart. If the rows belong to those of another file, join "
        "these first, such as CSV by  paste -d , X.csv y.csv >joined.csv",
    )


def _groups(columns: Collection[frozenset[str]]) -> list[frozenset[str]]:
    """Returns the columns of the files that share some, each group once."""
    groups: list[frozenset[str]] = []
    for own in sorted(columns, key=sorted):
        joined = own.union(*(group for group in groups if group & own))
        groups = [*(group for group in groups if not group & own), joined]
    return groups


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
