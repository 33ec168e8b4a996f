"""A part of the rows of a writer: rows and batches go to Arrow files, and a mark says whether they are whole."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from shardkit.conversion.memory.arrow_file import ArrowFile, unite_files
from shardkit.conversion.memory.batches import (
    BATCH_BYTES,
    BATCH_ROWS,
    batch_of_rows,
    batches_of,
    checked_row,
    size_of_row,
    with_schema,
)
from shardkit.errors import UsageError
from shardkit.storage import files as storage


class Part:
    """Some of the rows of a writer, which it has once the part is closed.

    Args:
        schema: Of all rows; None takes that of the values.
        destination: Of the writer.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema | None, destination: str) -> None:
        self._target = folder / f"{name}.arrow"
        # Two processes may write one part, where the first seems lost.
        own = folder / f"{name}.{secrets.token_hex(4)}"
        self._file, self._mark = ArrowFile(own), own.with_name(f"{own.name}.begun")
        with storage.translate_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._mark.write_text(destination, encoding="utf-8")
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._num_bytes = 0
        self._is_closed = False
        self._lock = threading.RLock()

    def write(self, row: Mapping[str, Any]) -> None:
        """Takes in a row: values by column. Raises UsageError if the part is closed."""
        checked = checked_row(row)
        with self._lock:
            self._check_open()
            self._rows.append(checked)
            self._num_bytes += size_of_row(checked)
            if len(self._rows) >= BATCH_ROWS or self._num_bytes >= BATCH_BYTES:
                self._flush()

    def write_batch(self, batch: Any) -> None:
        """Takes in several rows. Raises UsageError if the part is closed."""
        with self._lock:
            self._check_open()
            self._flush()
            for part in batches_of(batch):
                self._file.write(part if self._schema is None else with_schema(part, self._schema))

    def close(self) -> None:
        """Ends the part, which takes no rows afterwards."""
        with self._lock:
            if self._is_closed:
                return
            self._flush()
            if paths := self._file.close():
                unite_files(paths, self._target)
            if self._mark.exists():
                self._mark.replace(self._target.with_suffix(".done"))
            self._is_closed = True

    def discard(self) -> None:
        """Removes the part; a commit then does not miss it."""
        self._drop_rows()
        self._mark.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Its mark stays, so that no commit leaves its rows out in silence.
            self._drop_rows()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the part is closed", next_step="Write all its rows before it is closed, or another part")

    def _drop_rows(self) -> None:
        with self._lock:
            self._is_closed = True
            for path in self._file.close():
                path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            # Rows of which one does not fit stay, and with them the error: none is lost in silence.
            self._file.write(batch_of_rows(self._rows, self._schema))
            self._rows, self._num_bytes = [], 0
