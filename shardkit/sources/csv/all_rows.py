"""Types of CSV columns from all rows, where the first rows are not enough."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import DamagedFileError
from shardkit.messages import shown
from shardkit.sources.base import RawFile, SourceOptions, place
from shardkit.sources.columns.casting import count_rounded
from shardkit.sources.csv.dialect import Dialect
from shardkit.sources.csv.heads import read_csv_head, read_evidence, texts_of_block
from shardkit.sources.csv.leading_zeros import find_line
from shardkit.sources.csv.parser import with_blanks
from shardkit.sources.files.many_files import attempt
from shardkit.sources.text.splits import read_blocks
from shardkit.sources.text.type_inference import USUAL_NULLS, Evidence, decide, examine, unite
from shardkit.units import MiB

_BLOCK_BYTES = 4 * MiB
_LISTED_COLUMNS = 5


class Widened(NamedTuple):
    """A value that the type of the rows before it cannot hold.

    Attributes:
        dtype: The type of the first rows.
        value: As it is written.
        file: That it is in.
        line: 1-based, None if it is not known.
    """

    dtype: str
    value: str
    file: RawFile
    line: int | None


class AllRows(NamedTuple):
    """What all rows tell of each column, and the last value that changed the type of one."""

    evidence: dict[str, Evidence]
    widened: dict[str, Widened]


# Cached: `notes` is asked behind `infer`.
@functools.lru_cache(maxsize=1)
def examine_all_rows(
    written: tuple[tuple[RawFile, Dialect], ...], evidence: tuple[tuple[str, Evidence], ...], options: SourceOptions
) -> AllRows:
    """Returns the evidence of all rows. Columns that hold text already are not looked at again.

    Args:
        written: The files, with how they are written.
        evidence: What the first rows tell of the columns to look at.

    Raises:
        DamagedFileError: If a file is damaged, unless bad rows are tolerated.
    """
    found = AllRows(dict(evidence), {})
    for file, dialect in written:
        damage = attempt(_examine_file, file, dialect, found, options)
        if damage is not None and not options.tolerates_bad_rows:
            raise damage
    return found


def _examine_file(file: RawFile, dialect: Dialect, found: AllRows, options: SourceOptions) -> None:
    nulls, line = with_blanks(options.null_values), dialect.first_line
    blocks = read_blocks(
        file, dialect.rule, options, start=dialect.data_start, stop=0, block_bytes=_BLOCK_BYTES, is_head=False
    )
    for block in blocks:
        texts = texts_of_block(block, dialect, options.null_values)
        for name, before in found.evidence.items():
            if "text" in before.kinds or name not in texts:
                continue
            both = unite((before, _examine(texts[name], before, nulls)))
            if before.kinds and decide(name, both).dtype != decide(name, before).dtype:
                value = _first_beyond(name, texts[name], before, nulls)
                within = find_line(bytes(block.data), dialect, name, value)
                place_of_value = None if within is None else line + within - dialect.first_line
                earlier = found.widened.get(name)
                dtype = decide(name, before).dtype if earlier is None else earlier.dtype
                found.widened[name] = Widened(dtype, value, file, place_of_value)
            found.evidence[name] = both
        line += dialect.rule.count_lines(block.data)


def _examine(values: pa.Array, before: Evidence, nulls: tuple[str, ...]) -> Evidence:
    evidence = examine(values, nulls)
    if evidence.fits_float32 or not before.fits_float32 or not evidence.kinds <= {"int", "float", "nonfinite"}:
        return evidence
    # Of numbers with more digits float32 holds some, such as 1234567; reading counts those that it rounds.
    said = values.unique().drop_null()
    numbers = said.filter(pc.match_substring_regex(said, "[0-9]"))
    numbers = pc.utf8_trim_whitespace(numbers.filter(pc.invert(pc.is_in(numbers, pa.array(nulls, pa.string())))))
    is_rounded = count_rounded(numbers.cast(pa.float64()).to_numpy(zero_copy_only=False), "float32") > 0
    return msgspec.structs.replace(evidence, fits_float32=not is_rounded)


def _first_beyond(name: str, values: pa.Array, before: Evidence, nulls: tuple[str, ...]) -> str:
    # The value from which on the type is that of all values. What a longer prefix tells includes what a shorter one
    # does, so it is found by halving.
    good, bad = 0, len(values)
    dtype = decide(name, unite((before, _examine(values, before, nulls)))).dtype
    while bad - good > 1:
        middle = (good + bad) // 2
        both = unite((before, _examine(values[good:middle], before, nulls)))
        if decide(name, both).dtype == dtype:
            bad = middle
        else:
            good, before = middle, both
    return str(values[good].as_py())


def widened_by_files(
    written: Sequence[tuple[RawFile, Dialect]], columns: Iterable[str], options: SourceOptions
) -> AllRows:
    """Returns what the first rows of files tell together, and the values that the type of the files before cannot hold.

    Raises:
        BadInputError: If a row is bad, unless bad rows are tolerated.
    """
    nulls, found = with_blanks(options.null_values), AllRows(dict.fromkeys(columns, Evidence()), {})
    for file, dialect in written:
        evidence = attempt(read_evidence, file, dialect, options)
        if isinstance(evidence, DamagedFileError):
            continue
        for name, before in found.evidence.items():
            if name not in evidence:
                continue
            both = unite((before, evidence[name]))
            found.evidence[name] = both
            dtype = decide(name, before).dtype
            # Other notes tell of text.
            if before.kinds and decide(name, both).dtype not in (dtype, "string"):
                value = _first_beyond(name, read_csv_head(file, dialect, options).columns[name], before, nulls)
                earlier = found.widened.get(name)
                found.widened[name] = Widened(dtype if earlier is None else earlier.dtype, value, file, None)
    return found


def widened_notes(all_rows: AllRows) -> Iterator[str]:
    """Yields a note on each column whose type is another one than that of its first rows."""
    for name, (before, value, file, line) in list(all_rows.widened.items())[:_LISTED_COLUMNS]:
        after = decide(name, all_rows.evidence[name]).dtype
        cast = f"--cast {shlex.quote(f'{name}={before}')}"
        is_rounded = before.startswith("float") and (after == "float64" or value.strip().lstrip("-").isdigit())
        otherwise = f"{cast} rounds it" if is_rounded else f"{cast} makes it a bad row"
        if after == "string" and (value in USUAL_NULLS or value.isalpha()):
            otherwise = f"--null-value {shlex.quote(value)} takes it for null, and {otherwise}"
        yield (
            f"column {shown(name)} is {after}, and not {before} as in the first rows, because of {shown(value)} "
            f"in {place(file, line=line)}; {otherwise}"
        )
    if len(all_rows.widened) > _LISTED_COLUMNS:
        yield f"{len(all_rows.widened) - _LISTED_COLUMNS:,} more columns have another type than in the first rows"
