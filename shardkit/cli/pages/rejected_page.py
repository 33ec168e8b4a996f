"""The page of `shardkit inspect --rejected`. Names and values of users are never read as markup."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from shardkit.dataset.rejected_rows import RejectedRecord
from shardkit.messages import visible

_RAW_SHOWN_BYTES = 300


def print_rejected(records: Iterator[RejectedRecord], num_shown: int) -> None:
    """Prints rows that were rejected, the first so many."""
    console = Console(highlight=False)
    num_rows = 0
    for num_rows, record in enumerate(records, start=1):
        if num_rows > num_shown:
            continue
        where = visible(f"{record.file}, {record.position}" if record.position else record.file)
        console.print(Text.assemble((where, "bold"), f"  {visible(record.reason)}"), soft_wrap=True)
        if record.raw is not None:
            raw = record.raw[:_RAW_SHOWN_BYTES]
            rest = "" if len(record.raw) <= _RAW_SHOWN_BYTES else f" and {len(record.raw) - len(raw):,} bytes more"
            console.print(Text(f"  {visible(raw.decode(errors='backslashreplace'))}{rest}"), soft_wrap=True)
    if num_rows > num_shown:
        console.print(f"and {num_rows - num_shown:,} more; --json has all of them")
