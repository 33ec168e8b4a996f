"""Notes on columns of text files whose values may be something else, with the options that read them so."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import DifferentSchemasError
from shardkit.messages import shown
from shardkit.sources.text.type_inference import USUAL_NULLS, Evidence, decide, examine

_SPACES = " \u00a0\u202f'\u2019"
"""What stands between thousands in some countries; Excel writes the second and the third one."""

_CURRENCIES = ("$", "€", "£", "¥", "EUR", "USD", "CHF", "GBP")
_CURRENCY = rf"(?:{'|'.join(map(re.escape, _CURRENCIES))})"


def _styled(group: str, point: str) -> str:
    """Returns a pattern of numbers with thousands, a currency or a percent sign."""
    blank = f"[{_SPACES}]?"
    digits = rf"(?:\d+|[1-9]\d{{0,2}}(?:[{group}{_SPACES}]\d{{3}})+)(?:[{point}]\d+)?"
    return rf"^[-+]?{_CURRENCY}?{blank}[-+]?{digits}{blank}(?:{_CURRENCY}|%)?$"


STYLED, DECIMAL_COMMA = _styled(",", "."), _styled(".", ",")
"""Numbers as people write them, by what stands before the decimals."""

_REMOVED = (*_CURRENCIES, "%", *_SPACES)
_GROUPED_BY_POINTS = r"^[-+]?(0|[1-9]\d{0,2}(\.\d{3})*)$"


def column_notes(
    columns: Mapping[str, pa.Array],
    evidence_by_name: Mapping[str, Evidence],
    null_spellings: Sequence[str],
    dotted: Collection[str] = (),
) -> list[str]:
    """Returns notes on columns that are read as strings although nearly all of their values are something else, and on
    numbers whose texts may be no numbers.

    Args:
        columns: Text values by column.
        evidence_by_name: What `examine` says of them.
        null_spellings: What counts as null already.
        dotted: Columns whose values end with a dot in other files, see `dotted_columns`.
    """
    notes: list[str] = []
    by_spelling: dict[tuple[str, ...], list[str]] = {}
    for name, values in columns.items():
        evidence = evidence_by_name[name]
        dtype = decide(name, evidence).dtype
        if dtype.startswith("float") and (number := _number_of_two_texts(values)) is not None:
            keeps = f"--cast {shlex.quote(f'{name}=string')} keeps them apart, as those of versions"
            notes.append(f"column {shown(name)} is {dtype}, and {number} and {number}0 in it are one number; {keeps}")
        if dtype != "string" or not evidence.kinds:
            continue
        if evidence.num_leading_zeros:
            notes.append(f"column {shown(name)} has numbers with leading zeros and is read as strings")
        without = examine(values, [*null_spellings, *USUAL_NULLS])
        if without.kinds and decide(name, without).dtype != "string":
            found = {v for v in values.unique().to_pylist() if v in USUAL_NULLS}
            by_spelling.setdefault(tuple(sorted(found)), []).append(shown(name))
        elif (note := number_style_note(name, values)) is not None:
            notes.append(note)
    texts = {name: values for name, values in columns.items() if decide(name, evidence_by_name[name]).dtype == "string"}
    if (note := blank_note(texts, dotted)) is not None:
        notes.append(note)
    for spellings, names in by_spelling.items():
        columns_are = "column {} is" if len(names) == 1 else "columns {} are"
        options = " ".join(f"--null-value {shlex.quote(s)}" for s in spellings)
        notes.append(f"{columns_are.format(', '.join(names))} read as strings; nulls and other types with {options}")
    return notes


def check_points(columns: Mapping[str, pa.Array], declared: Collection[str], where: str) -> None:
    """Checks that no column holds numbers like 7 and 1.234 alone, which may be 1234, where another has decimal commas.

    Args:
        columns: Text values by column.
        declared: Columns whose types a user declared.
        where: The file, for the error.

    Raises:
        DifferentSchemasError: If one does, and is not declared.
    """
    said = {name: values.drop_null() for name, values in columns.items()}
    said = {name: values for name, values in said.items() if len(values)}
    comma = next((name for name, values in said.items() if _has_decimal_commas(values)), None)
    grouped = [name for name in said if name not in declared and _may_be_thousands(said[name])]
    if comma is None or not grouped:
        return
    number, other = (
        next(v for v in said[name].to_pylist() if mark in v) for name, mark in ((grouped[0], "."), (comma, ","))
    )
    as_float, as_text = (shlex.quote(f"{grouped[0]}={dtype}") for dtype in ("float32", "string"))
    sql = f"SELECT * REPLACE (CAST(REPLACE({grouped[0]}, '.', '') AS BIGINT) AS {grouped[0]}) FROM rows"
    select = f'--select "{sql}"' if grouped[0].isidentifier() else "a --select that takes its points away"
    error = DifferentSchemasError(
        f"the point in column {shown(grouped[0])} may be a decimal point or one between thousands",
        where=where,
        why=f"its values are written like {shown(number)}, and those of column {shown(comma)} like {shown(other)}",
        next_step=f"--cast {as_float} takes it as a decimal point; --cast {as_text} {select} as one between thousands",
    )
    error.columns = tuple(grouped)
    raise error


def point_notes(columns: Mapping[str, pa.Array]) -> Iterator[str]:
    """Yields a note on each column of numbers like 1.234 alone, whose points may stand between thousands."""
    for name, values in columns.items():
        if _may_be_thousands(values.drop_null()):
            example = next(value for value in values.to_pylist() if value and "." in value)
            keeps = f"--cast {shlex.quote(f'{name}=string')} keeps it as text"
            yield f"column {shown(name)} has decimal points, as in {example}; {keeps}"


def _may_be_thousands(said: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring(said, ".")).as_py()) and _all_match(said, _GROUPED_BY_POINTS)


def _has_decimal_commas(values: pa.Array) -> bool:
    has_comma = bool(pc.any(pc.match_substring(values, ",")).as_py())
    return has_comma and _all_match(values, DECIMAL_COMMA) and not _all_match(values, STYLED)


def _number_of_two_texts(values: pa.Array) -> str | None:
    """Returns the first number that a column holds with a further zero too, as 1.1 and 1.10 of versions."""
    texts = values.unique()
    ends = pc.filter(texts, pc.match_substring_regex(texts, r"^\d+\.\d*[1-9]0$"))
    shorter = pc.utf8_rtrim(ends, "0")
    found = shorter.filter(pc.is_in(shorter, value_set=texts))
    return str(found[0]) if len(found) else None


def number_style_note(name: str, values: pa.Array) -> str | None:
    """Returns a note on a column of text that could be numbers, with the option that makes it so; None for others.

    Args:
        values: Texts, of which the nulls count as nothing.
    """
    said = values.drop_null()
    if not len(said):
        return None
    number = name
    is_styled = _all_match(said, STYLED)
    if is_styled or _all_match(said, DECIMAL_COMMA):
        for character in (*_REMOVED, "," if is_styled else "."):
            if pc.any(pc.match_substring(said, character)).as_py():
                number = f"REPLACE({number}, {_written(character)}, '')"
        if not is_styled and pc.any(pc.match_substring(said, ",")).as_py():
            number = f"REPLACE({number}, ',', '.')"
    if number == name:
        return None
    sql = f"SELECT * REPLACE (CAST({number} AS DOUBLE) AS {name}) FROM rows".replace("$", r"\$")
    # A name that SQL has to quote would have to be quoted for the shell again.
    option = f'--select "{sql}"' if name.isidentifier() else "a --select that casts them"
    values_are = f"column {shown(name)} is text because its values are written like {shown(said[0].as_py())}"
    return f"{values_are}; {option} makes numbers of them"


def _written(character: str) -> str:
    """Returns a string of SQL; characters that a shell or a terminal may change are written by their number."""
    return f"'{character}'" if character.isascii() and character != "'" else f"chr({ord(character)})"


def blank_note(columns: Mapping[str, pa.Array], dotted: Collection[str] = ()) -> str | None:
    """Returns a note on columns whose values all begin with a blank, or end with a dot in some files alone, with the
    option that takes it off; None for none.

    Args:
        columns: Texts by column, of which the nulls count as nothing.
        dotted: Columns whose values end with a dot in other files.
    """
    said = {name: values.drop_null() for name, values in columns.items()}
    blank = [name for name, values in said.items() if len(values) > 1 and _all_match(values, "^ ")]
    ended = [name for name in said if name in dotted]
    if not blank and not ended:
        return None
    trimmed = {name: f"trim({name})" for name in blank}
    trimmed |= {name: f"rtrim({trimmed.get(name, name)}, '.')" for name in ended}
    sql = f'--select "SELECT * REPLACE ({", ".join(f"{t} AS {name}" for name, t in trimmed.items())}) FROM rows"'
    option = sql if all(name.isidentifier() for name in trimmed) else "a --select that trims them"
    found = [f"the values of {', '.join(map(shown, blank))} begin with a blank"] if blank else []
    found += [f"those of {', '.join(map(shown, ended))} end with a dot in some files alone"] if ended else []
    return f"{', and '.join(found)}; {option} takes it off"


def dotted_columns(files: Sequence[Mapping[str, pa.Array]]) -> tuple[str, ...]:
    """Returns the columns whose values in one file are some of those in another with a dot behind them.

    UCI writes the classes of `adult.test` so, which makes two classes of each.

    Args:
        files: Text values by column, of each file.
    """
    pairs = list(itertools.permutations(files, 2))
    names = dict.fromkeys(name for file in files for name in file)
    return tuple(n for n in names if any(n in a and n in b and _are_dotted(a[n], b[n]) for a, b in pairs))


def _are_dotted(values: pa.Array, others: pa.Array) -> bool:
    said, known = (pc.utf8_trim_whitespace(texts).unique().drop_null() for texts in (values, others))
    is_ended = len(said) > 0 and pc.all(pc.ends_with(said, ".")).as_py()
    return bool(is_ended and pc.all(pc.is_in(pc.utf8_slice_codeunits(said, 0, -1), value_set=known)).as_py())


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())
