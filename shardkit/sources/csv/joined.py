"""Two tables of the same things, such as features and their labels, which a column of identifiers joins."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import DamagedFileError, UsageError
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.csv.heads import read_csv_head
from shardkit.sources.files.many_files import attempt

_MIN_KEYS, _MIN_SHARE = 3, 0.5
_TARGET = "joined.csv"


def check_not_joined(written: Sequence[tuple[RawFile, Dialect]], options: SourceOptions) -> None:
    """Checks that no two tables share a column of identifiers alone, whose values are unique in each and known to both.

    Args:
        written: The files, with how they are written. Those of several splits, or of more than two, are not asked.

    Raises:
        UsageError: If they do; with a command that joins them.
    """
    if len(written) != 2 or options.has_split_names or options.columns is not None:
        return
    (first, one), (second, other) = written
    shared = set(one.columns) & set(other.columns)
    if len(shared) != 1 or min(len(one.columns), len(other.columns)) < 2:
        return
    name = shared.pop()
    heads = [attempt(read_csv_head, file, dialect, options) for file, dialect in written]
    texts = [head.columns[name] for head in heads if not isinstance(head, DamagedFileError)]
    if len(texts) < 2 or not _are_keys(*texts):
        return
    names = f"{printable(first.name)} and {printable(second.name)}"
    stays = "--union-by-name takes the rows of both as they are, with nulls"
    raise UsageError(
        f"{names} hold other columns of the same rows",
        why=f"they share {shown(name)} alone, whose values are unique in both",
        next_step=f"{_joined(written, name)}. {stays}",
    )


def _are_keys(one: pa.Array, other: pa.Array) -> bool:
    if any(texts.null_count or len(texts) < _MIN_KEYS or len(texts.unique()) < len(texts) for texts in (one, other)):
        return False
    num_common = pc.sum(pc.is_in(one, value_set=other)).as_py()
    return bool(num_common >= _MIN_SHARE * min(len(one), len(other)))


def _joined(written: Sequence[tuple[RawFile, Dialect]], name: str) -> str:
    if any(file.member or file.path.find("://") >= 0 for file, _ in written):
        return f"Join them by {shown(name)} first, and convert the table"
    one, other = (
        f"pandas.read_csv({json.dumps(printable(file.path))}, sep={json.dumps(dialect.delimiter)}, dtype=str, "
        "keep_default_na=False)"
        for file, dialect in written
    )
    # A row that one file lacks stays, with empty cells.
    command = f'{one}.merge({other}, on={json.dumps(name)}, how="outer").to_csv("{_TARGET}", index=False)'
    return f"To have them as columns, run  python -c {shlex.quote(f'import pandas; {command}')}  and convert {_TARGET}"
