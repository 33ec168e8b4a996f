"""What a format of an export is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import pyarrow as pa

from shardkit.features import Feature, Features


class Rows(NamedTuple):
    """Rows of one file.

    Attributes:
        features: Of the columns; nullable where nulls are.
        start: Position of the first row in its split.
        batches: The rows, with the schema of the features; lists are flat.
    """

    features: Features
    start: int
    num_rows: int
    batches: Iterator[pa.RecordBatch]


class WrittenFile(NamedTuple):
    """A file of a split that is there: its name, rows and bytes."""

    name: str
    num_rows: int
    num_bytes: int


class ExportFormat(ABC):
    """How rows become files that other tools read. The same rows become the same bytes.

    Attributes:
        notes: What has another form in the files than in the dataset.
        extra: The extra of the package that it needs, and the module; None where it needs none.
        reader: The Python lines that read a split, with places for `{files}`, `{folder}` and `{split}`.
    """

    title: ClassVar[str]
    suffix: ClassVar[str]
    notes: ClassVar[str] = ""
    extra: ClassVar[tuple[str, str] | None] = None
    reader: ClassVar[str]

    def why_not(self, feature: Feature) -> str | None:
        """Returns why the format cannot hold a column, None if it can."""
        return None

    def why_not_all(self, features: Features) -> str | None:
        """Returns why the format cannot hold these columns side by side, None if it can."""
        return None

    def file_name(self, split: str, index: int, num_files: int) -> str:
        """Returns the path of a file below the folder."""
        return f"{split}-{index:05d}-of-{num_files:05d}.{self.suffix}"

    @abstractmethod
    def write(self, path: Path, rows: Rows) -> None:
        """Writes one file, which is empty or not there yet. Raises UsageError if a value does not fit after all."""

    def index_name(self, split: str) -> str | None:
        """Returns the path of the file that lists those of a split, None where tools need none."""
        return None

    def index(self, features: Features, files: Sequence[WrittenFile]) -> bytes:
        """Returns the content of that file; empty where there is none."""
        return b""

    def snippet(self, folder: str, split: str, num_files: int) -> str:
        """Returns the Python lines that read a split."""
        return self.reader.format(files=f"{folder}/{split}-*.{self.suffix}", folder=folder, split=split)
