"""Rows that do not fit: they are counted, kept if they are wanted, and never more than allowed."""

from __future__ import annotations

import glob
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardkit.conversion.extracted import Extracted
from shardkit.conversion.option_forms import BadLimit
from shardkit.conversion.plan import Plan
from shardkit.dataset.rejected_rows import RejectedRecord, encode_record
from shardkit.errors import BadInputError
from shardkit.file_types import format_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, RejectedRow
from shardkit.sources.file_globs import glob_in_shell
from shardkit.sources.formats import format_named
from shardkit.storage import files as storage
from shardkit.units import format_count, format_number

MAX_SAMPLES = 3
_MAX_REASONS = 100
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|(?<!\w)-?\d[\d,.]*")


def check_bad_rows(plan: Plan, extracted: Sequence[Extracted]) -> None:
    """Checks that no more rows were rejected than the recipe allows, as far as that can be known.

    A recipe without `max_bad` allows a tenth of them, and below 100 half.

    Raises:
        BadInputError: If there were; shows a few of them. Or if a file of unknown length was rejected as a whole.
    """
    limit = BadLimit(plan.recipe.max_bad)
    check_countable(plan, extracted)
    num_damaged = count_damaged(plan, extracted)
    num_bad = num_damaged + sum(sum(part.rejected_by_file.values()) for part in extracted)
    num_rows = num_damaged + sum(sum(part.rows_by_file.values()) for part in extracted)
    if not limit.is_exceeded(num_bad, num_rows):
        return
    of_files = f", {format_number(num_damaged, 'damaged file')} among them" if num_damaged else ""
    is_limited = plan.recipe.max_bad is not None
    allowed = f"--max-bad {limit.text} allows less" if is_limited else "more than a tenth needs --max-bad"
    reason, count = _most_common(extracted)
    often = f", most often ({format_count(count)}): {reason}" if count else ""
    raise BadInputError(
        "too many rows do not fit",
        where="; ".join(sample.removesuffix(f": {reason}") for sample in bad_row_samples(plan, extracted)),
        why=f"{format_count(num_bad)} of {format_number(num_rows, 'row')} are bad{of_files}{often}; {allowed}",
        next_step="Correct them, or raise --max-bad"
        if is_limited
        else "Correct them or the options of reading, or leave so many rows out with --max-bad, such as --max-bad 50%",
    )


def _most_common(extracted: Sequence[Extracted]) -> tuple[str, int]:
    reasons = ReasonCounts()
    for part in sorted(extracted, key=lambda e: e.input_split_index):
        for reason, count in part.rejected_reasons.items():
            reasons.add(reason, count)
    return max(reasons.counts.items(), key=lambda item: item[1], default=("", 0))


class ReasonCounts:
    """Counts rejected rows by reason; reasons that differ in quoted values and numbers alone are one.

    Attributes:
        counts: Rows by the first reason of each kind.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._first_by_kind: dict[str, str] = {}

    def add(self, reason: str, count: int = 1) -> None:
        """Counts rows of one reason."""
        kind = _VALUES.sub("", reason)
        if kind not in self._first_by_kind and len(self._first_by_kind) == _MAX_REASONS:
            return
        first = self._first_by_kind.setdefault(kind, reason)
        self.counts[first] = self.counts.get(first, 0) + count


def check_countable(plan: Plan, extracted: Sequence[Extracted] = ()) -> None:
    """Checks that no file whose rows cannot be counted was rejected as a whole, where the recipe has a limit.

    Raises:
        BadInputError: If one was.
    """
    if plan.recipe.max_bad is None:
        return
    uncounted = {d.file.name: d.reason for d in plan.damaged_files if not _is_one_row(plan, d.file)}
    if not _has_row_a_file(plan):
        uncounted |= {plan.files[i].name: reason for part in extracted for i, reason in part.damage.items()}
    if not uncounted:
        return
    name, reason = min(uncounted.items())
    more = f" and {format_number(len(uncounted) - 1, 'more file')}" if len(uncounted) > 1 else ""
    raise BadInputError(
        "rows are lost that cannot be counted",
        where=f"{printable(name)}{more}",
        why=f"{reason}; how many rows it has is unknown, so --max-bad {plan.recipe.max_bad.strip()} cannot be kept",
        next_step=f"Correct it, leave it out with --exclude {glob_in_shell(glob.escape(name))}, or leave --max-bad out",
    )


def _has_row_a_file(plan: Plan) -> bool:
    source = plan.recipe.source
    return format_named(source.format).has_row_files or (source.format == "text" and source.text_record == "file")


def _is_one_row(plan: Plan, file: RawFile) -> bool:
    # An archive that was refused is among them, and may hold any number.
    return _has_row_a_file(plan) and (file.member is not None or format_of(b"", file.name) == plan.recipe.source.format)


def count_damaged(plan: Plan, extracted: Sequence[Extracted]) -> int:
    """Returns how many files were rejected as a whole, before work started or on the way."""
    return len(plan.damaged_files) + len({i for part in extracted for i in part.damage})


def bad_row_samples(plan: Plan, extracted: Sequence[Extracted]) -> list[str]:
    """Returns the first few bad rows, or damaged files, a sentence each."""
    found = [f"{printable(d.file.name)}: {d.reason}" for d in plan.damaged_files]
    for part in sorted(extracted, key=lambda e: e.input_split_index):
        found += [f"{printable(plan.files[i].name)}: {reason}" for i, reason in part.damage.items()]
        found += part.rejected_samples
        if len(found) >= MAX_SAMPLES:
            break
    return list(dict.fromkeys(found))[:MAX_SAMPLES]


class Quarantine:
    """Stores the rejected rows of one input split in the work folder, whole or not at all."""

    def __init__(self, plan: Plan, input_split_index: int) -> None:
        self._plan = plan
        self._path = rejected_path(plan, input_split_index)
        self._temporary = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.tmp")
        self.samples: list[str] = []
        self.reasons = ReasonCounts()

    def add(self, rows: Sequence[RejectedRow]) -> None:
        """Takes the rejected rows of one batch."""
        if not rows:
            return
        for row in rows:
            self.reasons.add(row.reason)
        records = [record_of(self._plan, row) for row in rows]
        for record in records[: MAX_SAMPLES - len(self.samples)]:
            place = f"{printable(record.file)}, {record.position}" if record.position else printable(record.file)
            self.samples.append(f"{place}: {record.reason}")
        if self._plan.recipe.on_bad_record != "quarantine":
            return
        with storage.translate_os_errors(self._temporary):
            self._temporary.parent.mkdir(parents=True, exist_ok=True)
            with self._temporary.open("ab") as file:
                file.writelines(map(encode_record, records))

    def close(self) -> None:
        """Gives the file its name."""
        with storage.translate_os_errors(self._path):
            self._path.unlink(missing_ok=True)
            if self._temporary.exists():
                self._temporary.replace(self._path)


def rejected_path(plan: Plan, input_split_index: int) -> Path:
    """Returns where the rejected rows of an input split are."""
    return plan.work_path("rejected", f"{input_split_index}.jsonl")


def record_of(plan: Plan, row: RejectedRow) -> RejectedRecord:
    """Returns a rejected row as it is stored."""
    return RejectedRecord(
        file=plan.files[row.file_index].name,
        position=row.position,
        byte=row.first_byte,
        reason=row.reason,
        raw=row.raw,
    )


def rejected_lines(plan: Plan, extracted: Sequence[Extracted]) -> Iterator[bytes]:
    """Yields all that was quarantined: damaged files first, then rows in the order of the inputs."""
    damaged = {d.file.name: d.reason for d in plan.damaged_files}
    damaged |= {plan.files[i].name: reason for part in extracted for i, reason in part.damage.items()}
    for name, reason in sorted(damaged.items()):
        yield encode_record(RejectedRecord(file=name, position="", byte=None, reason=reason, raw=None))
    for part in sorted(extracted, key=lambda e: e.input_split_index):
        if part.rejected_by_file:
            with rejected_path(plan, part.input_split_index).open("rb") as file:
                yield from file
