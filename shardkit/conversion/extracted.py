"""The result of the extraction of an input split, as the steps after it read it."""

from __future__ import annotations

import msgspec


class Extracted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one input split. Stored beside its runs: a later run that finds it need not read the input again.

    Attributes:
        rows_by_file: Rows in, by position of the file.
        filtered_by_file, duplicates_by_file, rejected_by_file: Those of them that became no example, likewise.
        num_sequences, num_padding: Sequences that rows were packed into, and tokens that fill them up.
        marks_digest: What the first pass said of its rows; see `marks_digest`.
        rejected_samples: The first few rejected rows, a sentence each.
        rejected_reasons: Rejected rows by what is wrong, one reason for those that differ in values alone.
        damage: Why a file cannot be read at all, by its position.
        has_statistics: Whether there are statistics of it, in a separate file.
    """

    input_split_index: int
    versions: tuple[str, ...]
    num_runs: int = 0
    rows_by_file: dict[int, int] = {}
    filtered_by_file: dict[int, int] = {}
    duplicates_by_file: dict[int, int] = {}
    rejected_by_file: dict[int, int] = {}
    num_sequences: int = 0
    num_padding: int = 0
    marks_digest: str = ""
    rejected_samples: tuple[str, ...] = ()
    rejected_reasons: dict[str, int] = {}
    damage: dict[int, str] = {}
    has_statistics: bool


def statistics_name(input_split_index: int) -> str:
    """Returns where the statistics of an input split are, relative to the work folder."""
    return f"statistics/{input_split_index}.msgpack"


def run_names(extracted: Extracted) -> list[str]:
    """Returns the paths of the runs, relative to the work folder."""
    return [f"spool/{extracted.input_split_index}-{i}.run" for i in range(extracted.num_runs)]
