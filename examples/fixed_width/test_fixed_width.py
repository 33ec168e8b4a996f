"""The source keeps the contract of all sources. `pip install pytest`, then `pytest examples/fixed_width`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fixed_width import FixedWidthSource

from shardkit.testing import SourceContract


class TestFixedWidth(SourceContract):
    """Inherits the tests that every source passes."""

    def source(self) -> FixedWidthSource:
        """Returns the source."""
        return FixedWidthSource()

    def row(self, number: int) -> dict[str, Any]:
        """Returns a row as it is read: all values are text, and what is left blank is null."""
        return {"name": f"Ås {number}" if number % 3 else None, "temperature": f"{number / 10:.1f}"}

    def write(self, folder: Path, name: str, rows: Sequence[dict[str, Any] | None]) -> None:
        """Writes a file; a line that ends before the last column is bad."""
        lines = ["short" if row is None else f"{row['name'] or '':10}{row['temperature']:>11}" for row in rows]
        (folder / f"{name}.fwf").write_text("\n".join(["name      temperature", *lines, ""]))

    def may_end_at(self, content: bytes, length: int) -> bool:
        """Returns True: a text may end with any line, and any line may be short."""
        return True
