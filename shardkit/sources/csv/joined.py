"""Tables of the same rows, such as features and their labels, which their order or a column of identifiers joins."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import DamagedFileError, UsageError
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.csv.heads import read_csv_head
from shardkit.sources.files.many_files import attempt
from shardkit.sources.split_names import split_of

_MIN_KEYS, _MIN_SHARE = 3, 0.5
_MAX_TABLES = 8
_TARGET = "joined"

Tables = Sequence[tuple[RawFile, Dialect]]


class _Parts(NamedTuple):
    # Files of one split that hold columns of the same rows; without a key these stand in the same order.
    split: str | None
    tables: Tables
    key: str | None


def check_not_joined(written: Tables, options: SourceOptions) -> None:
    """Checks that no tables of a split share a column of identifiers alone, whose values are unique in each and known
    to both. `--union-by-name` takes the rows of both where the names tell no split.

    Args:
        written: The files, with how they are written.

    Raises:
        UsageError: If some do; with a command that joins them.
    """
    if options.columns is not None:
        return
    found = [parts for parts in _parts(written, options) if parts.key is not None]
    if not found or (options.union_by_name and found[0].split is None):
        return
    split, tables, key = found[0]
    names = " and ".join(printable(file.name) for file, _ in tables)
    way = _joined(found, written, options) or f"Join them by {shown(key)} first, and convert the table"
    stays = "" if split is not None else ". --union-by-name takes the rows of both as they are, with nulls"
    raise UsageError(
        f"{names} hold other columns of the same rows",
        why=f"they share {shown(key)} alone, whose values are unique in {'both' if len(tables) == 2 else 'all'}",
        next_step=f"{way}{stays}",
    )


def way_to_join(written: Tables, options: SourceOptions) -> str | None:
    """Returns the command that joins tables which share no column, row by row; None if there is none."""
    return _joined([parts for parts in _parts(written, options) if parts.key is None], written, options)


def _parts(written: Tables, options: SourceOptions) -> Iterator[_Parts]:
    """Yields the tables of each split whose columns differ, but for one of identifiers at most."""
    by_split: dict[str | None, list[tuple[RawFile, Dialect]]] = {}
    for file, dialect in written if len({dialect.columns for _, dialect in written}) > 1 else ():
        by_split.setdefault(split_of(file), []).append((file, dialect))
    for split, tables in by_split.items():
        columns = [set(dialect.columns) for _, dialect in tables]
        shared = set.intersection(*columns)
        num_own = sum(len(own - shared) for own in columns)
        if not 1 < len(tables) <= _MAX_TABLES or num_own != len(set.union(*columns) - shared):
            continue
        if not shared:
            yield _Parts(split, tables, None)
        elif len(shared) == 1 and all(own - shared for own in columns):
            key = shared.pop()
            heads = [attempt(read_csv_head, file, dialect, options) for file, dialect in tables]
            texts = [head.columns[key] for head in heads if not isinstance(head, DamagedFileError)]
            if len(texts) == len(tables) and all(_are_keys(texts[0], other) for other in texts[1:]):
                yield _Parts(split, tables, key)


def _are_keys(one: pa.Array, other: pa.Array) -> bool:
    if any(texts.null_count or len(texts) < _MIN_KEYS or len(texts.unique()) < len(texts) for texts in (one, other)):
        return False
    num_common = pc.sum(pc.is_in(one, value_set=other)).as_py()
    return bool(num_common >= _MIN_SHARE * min(len(one), len(other)))


def _joined(found: Sequence[_Parts], written: Tables, options: SourceOptions) -> str | None:
    """Returns the command that joins tables, with what it leaves out; None if there are none or none can."""
    names = [name for _, tables, _ in found for file, _ in tables for name in (file.name, file.path)]
    is_elsewhere = any(file.member or "://" in file.path for file, _ in written)
    is_altered = options.skip_lines or options.comment is not None or options.encoding is not None
    # The line `sep=;` is above the header.
    is_below = any(dialect.first_line > 2 for _, dialect in written)
    if not found or is_elsewhere or is_altered or is_below or not all(map(str.isprintable, names)):
        return None
    commands = [
        f"{_expression(tables, key)}.to_csv({json.dumps(f'{_TARGET}/{split or _TARGET}.csv')}, index=False)"
        for split, tables, key in found
    ]
    reader = "r = functools.partial(pandas.read_csv, dtype=str, keep_default_na=False)"
    code = "; ".join(["import functools, pandas", reader, *commands])
    apart = [printable(file.name) for file, _ in written if file.name not in names]
    rest = f", which leaves out {', '.join(apart[:_MAX_TABLES])}" if apart else ""
    return (
        f"To have them as columns, run  mkdir {_TARGET} && python -c {shlex.quote(code)}  and convert {_TARGET}{rest}"
    )


def _expression(tables: Tables, key: str | None) -> str:
    first, *others = tables
    text = _read(*first, key)
    for other in others:
        read = _read(*other, key)
        # A row that one file lacks stays, with empty cells. Without a key as many rows are needed: pandas checks that.
        way = f'merge({read}, on={json.dumps(key)}, how="outer")' if key else f"set_axis((t := {read}).index).join(t)"
        text = f"{text}.{way}"
    return text


def _read(file: RawFile, dialect: Dialect, key: str | None) -> str:
    quotes = "" if dialect.has_quotes else ", quoting=3"
    text = f"r({json.dumps(file.path)}, sep={json.dumps(dialect.delimiter)}{quotes})"
    if key not in dialect.unnamed:
        return text
    return f'{text}.rename(columns={{"Unnamed: {dialect.columns.index(key)}": {json.dumps(key)}}})'
