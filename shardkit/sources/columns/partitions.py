"""Columns that are in the names of folders, as Hive and Spark write them: `year=2013/month=1/part.parquet`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, place

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_INT64 = range(-(2**63), 2**63)
_NAMED_DIFFERENCES = 10


def partition_values(file: RawFile) -> dict[str, str | None]:
    """Returns the values in the folders of a file, by column; null where Hive writes it so.

    Raises:
        UsageError: If a column occurs twice, or a name or value is not UTF-8.
    """
    values: dict[str, str | None] = {}
    for folder in file.name.split("/")[:-1]:
        key, equals, value = folder.partition("=")
        if not equals or not key:
            continue
        name = _decode(key, file)
        if name in values:
            raise UsageError(
                f"the folders name column {shown(name)} twice",
                where=place(file),
                next_step="Rename one of the folders NAME=VALUE above the file",
            )
        values[name] = None if value == NULL_PARTITION else _decode(value, file)
    return values


def partition_features(files: Sequence[RawFile]) -> Features:
    """Returns the columns that the folders of all files name: int64 if all values are written like one, else string.

    A number with leading zeros is not: it would not be written so again.

    Raises:
        UsageError: If the folders of two files name different columns; shows the difference.
    """
    if not files:
        return ()
    rows = [partition_values(file) for file in files]
    for file, row in zip(files, rows, strict=True):
        if row.keys() != rows[0].keys():
            raise _differ(files[0], rows[0], file, row)
    return tuple(_feature(name, [row[name] for row in rows]) for name in rows[0])


def _feature(name: str, values: list[str | None]) -> Feature:
    known = {v for v in values if v is not None}
    are_integers = bool(known) and all(_INTEGER.fullmatch(v) and int(v) in _INT64 for v in known)
    return make_feature(name, "int64" if are_integers else "string", nullable=None in values)


def _decode(text: str, file: RawFile) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the folder name {shown(text)} is not UTF-8 behind its %-escapes",
            where=place(file),
            next_step="Rename the folder",
        ) from error


def _differ(
    first: RawFile, columns: dict[str, str | None], other: RawFile, others: dict[str, str | None]
) -> UsageError:
    differences = [
        f"{shown(name)} is only in the folders of {printable(file.name)}"
        for file, here, there in ((first, columns, others), (other, others, columns))
        for name in here
        if name not in there
    ]
    return UsageError(
        f"the folders of {printable(first.name)} and {printable(other.name)} name different columns",
        why="; ".join(differences[:_NAMED_DIFFERENCES]),
        next_step="Convert them one by one, or give all files the same KEY=VALUE folders",
    )
