"""JSON that holds a table in another way than an object a row, as pandas and others write it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from shardkit.errors import UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.json.type_inference import flatten
from shardkit.sources.split_words import split_in_words

_MANY_CELLS = 10
_LISTED = 3
_ARRAY = re.compile(rb"\s*\[\s*[^\s{\]]")
_OBJECT_BEHIND = re.compile(rb"[^\n]*\n\s*\{")
_ARRAY_A_LINE = re.compile(rb"[ \t]*\[[^\n]*\][ \t]*\r?\n\s*\[")
_BULK = re.compile(rb'\{\s*"(?:index|create)"\s*:\s*\{[^\n]*\}\s*\}\s*\n\s*\{')
_SPLIT_KEYS = {"columns", "index", "data"}


def check_not_arrays(head: bytes, file: RawFile) -> None:
    """Checks that a file does not begin with an array of arrays or of single values. Raises UsageError if it does."""
    if _ARRAY.match(head) is None or _OBJECT_BEHIND.match(head) is not None:
        return
    lines = _ARRAY_A_LINE.match(head) is not None
    name = json.dumps(printable(file.path))
    made = f"pandas.read_json({name}, lines=True)" if lines else f"pandas.DataFrame(json.load(open({name})))"
    raise UsageError(
        f"{'a line' if lines else 'the file'} is an array of values without names",
        where=place(file),
        why="a row is an object, whose keys name the columns",
        next_step=_command(f"import json, pandas; {made}.rename(columns=str)", file),
    )


def check_no_bulk(head: bytes, file: RawFile) -> None:
    """Checks that lines do not alternate with those of Elasticsearch's bulk API. Raises UsageError if they do."""
    if _BULK.match(head) is None:
        return
    path = shlex.quote(printable(file.path))
    raise UsageError(
        "every second line is an action of Elasticsearch's bulk API",
        where=place(file),
        why="each action would be a row",
        next_step=f"Leave them out with  grep -vE '^[{{] *\"(index|create)\"' {path} >rows.jsonl  and convert that",
    )


def note_on_columns(rows: Sequence[tuple[str, dict[str, Any]]], files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns a note on an only object whose parts have as many values each, which may be a small table.

    Args:
        rows: With their places.
        files: That they are from.

    Raises:
        UsageError: If they are many, which would be one row of as many columns, or pandas wrote the object with
            `orient='split'`.
    """
    if len(rows) != 1 or any(file.records for file in files):
        return ()
    where, row = rows[0]
    if _is_split(row) and len(files) == 1:
        raise UsageError(
            "the only object holds the columns and the rows of a table apart",
            where=where,
            why="pandas writes it so by orient='split'",
            next_step=_command(
                f'import pandas; pandas.read_json({json.dumps(printable(files[0].path))}, orient="split")', files[0]
            ),
        )
    parts = list(row.values())
    are_objects = all(isinstance(part, dict) and part.keys() == parts[0].keys() for part in parts)
    are_lists = all(isinstance(part, list) and len(part) == len(parts[0]) for part in parts)
    if len(parts) < 2 or not (are_objects or are_lists):
        return ()
    size = f"it has {len(parts)} parts of {len(parts[0])} values each"
    way = "Write an object a row, as pandas does by to_json(PATH, orient='records', lines=True)"
    if len(parts) * len(parts[0]) < _MANY_CELLS:
        return (
            (f"the only object becomes one row, though {size}. If it is a table: {way}",) if len(parts[0]) > 1 else ()
        )
    raise UsageError(
        "the only object looks like a table of columns or of rows by name",
        where=where,
        why=f"{size}, which would become a single row",
        next_step=f"{way}; --records . takes the object as one row",
    )


def way_to_rows_within(row: dict[str, Any], file: RawFile | None) -> tuple[str, str] | None:
    """Returns the column of an only object that holds a list of objects, and how to take these as rows; None without.

    Args:
        file: That it is from; None if that is not known.
    """
    lists = {path: v for path, v in flatten(row) if isinstance(v, list) and any(isinstance(item, dict) for item in v)}
    if not lists:
        return None
    # The fields of a schema are deeper than the rows.
    depth = min(path.count("/") for path in lists)
    outer = [path for path in lists if path.count("/") == depth]
    options = [f"--records {shlex.quote(path.replace('/', '.'))}" for path in outer]
    if len(outer) == 1:
        return outer[0], f"Take its objects as the rows with {options[0]}, or each document as a row with --records ."
    step = (
        f"Take the objects of one list as the rows with {' or '.join(options[:_LISTED])}, which leaves the others "
        "out, or each document as a row with --records ."
    )
    if depth == 0 and file is not None and len({split_in_words(path) for path in outer} - {None}) > 1:
        code = (
            f'import json; [open(name + ".jsonl", "w").writelines(json.dumps(row) + "\\n" for row in rows) '
            f"for name, rows in json.load(open({json.dumps(printable(file.path))})).items() if isinstance(rows, list)]"
        )
        names = " ".join(shlex.quote(f"{path}.jsonl") for path in outer)
        step += f". For all of them run  python -c {shlex.quote(code)}  and convert {names}"
    return outer[0], step


def _is_split(row: dict[str, Any]) -> bool:
    columns, data = row.get("columns"), row.get("data")
    if not {"columns", "data"} <= row.keys() <= _SPLIT_KEYS or not isinstance(columns, list):
        return False
    return isinstance(data, list) and all(isinstance(item, list) and len(item) == len(columns) for item in data)


def _command(made: str, file: RawFile) -> str:
    target = f"{printable(file.path).rpartition('/')[2]}.parquet"
    code = f"{made}.to_parquet({json.dumps(target)})"
    return f"Run  python -c {shlex.quote(code)}  and convert {shlex.quote(target)}"
