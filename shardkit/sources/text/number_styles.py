"""Columns of text that could be plainer: 1,000 and 2,5 and $3.50 and 12 % are numbers, and a blank leads all values."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from shardkit.messages import shown

_GROUPED = r"(\d+|\d{1,3}(,\d{3})+)(\.\d+)?"
_STYLED = rf"^[-+]?[$€£¥]? ?[-+]?{_GROUPED} ?%?$"
_DECIMAL_COMMA = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?$"
_REMOVED = ("$", "€", "£", "¥", "%", ",", " ")


def number_style_note(name: str, values: pa.Array) -> str | None:
    """Returns a note on a column of text that could be numbers, with the option that makes it so; None for others.

    Args:
        name: Of the column.
        values: Texts, of which the nulls count as nothing.
    """
    said = values.drop_null()
    if not len(said):
        return None
    number = name
    if _all_match(said, _STYLED):
        for character in _REMOVED:
            if pc.any(pc.match_substring(said, character)).as_py():
                number = f"REPLACE({number}, '{character}', '')"
    elif _all_match(said, _DECIMAL_COMMA):
        if pc.any(pc.match_substring(said, ".")).as_py():
            number = f"REPLACE({number}, '.', '')"
        number = f"REPLACE({number}, ',', '.')"
    if number == name:
        return None
    sql = f"SELECT * REPLACE (CAST({number} AS DOUBLE) AS {name}) FROM rows".replace("$", r"\$")
    # A name that SQL has to quote would have to be quoted for the shell again.
    option = f'--select "{sql}"' if name.isidentifier() else "a --select that casts them"
    values_are = f"column {shown(name)} is text because its values are written like {shown(said[0].as_py())}"
    return f"{values_are}; {option} makes numbers of them"


def blank_note(columns: Mapping[str, pa.Array]) -> str | None:
    """Returns a note on columns whose values all begin with a blank, with the option that takes it off; None for none.

    Args:
        columns: Texts by column, of which the nulls count as nothing.
    """
    said = {name: values.drop_null() for name, values in columns.items()}
    names = [name for name, values in said.items() if len(values) > 1 and _all_match(values, "^ ")]
    if not names:
        return None
    trimmed = ", ".join(f"trim({name}) AS {name}" for name in names)
    sql = f'--select "SELECT * REPLACE ({trimmed}) FROM rows"'
    option = sql if all(name.isidentifier() for name in names) else "a --select that trims them"
    values_are = f"the values of {', '.join(map(shown, names))} begin with a blank"
    return f"{values_are}; {option} takes it off"


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())
