"""Parts of a manifest: documents that refuse unknown fields, paths that stay in the dataset, the accounting of rows."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from shardkit.errors import DamageError, UnsafeError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all stored values."""


class InputInfo(Document, frozen=True, kw_only=True, omit_defaults=True):
    """One raw file and what became of its rows: rows in = examples out + filtered + duplicates + rejected.

    Attributes:
        name: Relative to the common root of all inputs.
        num_bytes: Its size as stored.
        num_rows: Rows in; None, and no rows out, where `damage` keeps them from being counted.
        damage: Why the file was rejected as a whole.
    """

    name: str
    num_bytes: Count
    num_rows: Count | None
    num_examples: Count
    num_filtered: Count = 0
    num_duplicates: Count = 0
    num_rejected: Count = 0
    damage: str | None = None

    def __post_init__(self) -> None:
        out = self.num_examples + self.num_filtered + self.num_duplicates + self.num_rejected
        if (0 if self.num_rows is None else self.num_rows) != out or (self.num_rows is None) != (
            self.damage is not None
        ):
            raise DamageError(
                f"the rows of {self.name!r} do not add up", why=f"{self.num_rows} rows in, {out} accounted for"
            )


class RejectedFile(Document, frozen=True, kw_only=True):
    """A gzip file of JSON Lines with the rejected rows; see `shardkit.dataset.rejected_rows`."""

    path: str
    num_rows: Count
    num_bytes: Count
    sha256: str


class Accounting(Document, frozen=True, kw_only=True, omit_defaults=True):
    """Rows in = examples out + filtered + duplicates + rejected.

    Attributes:
        num_examples: Rows that became examples, or parts of some where rows were packed.
        num_sequences: Examples that rows were packed into; None where each row is one.
        num_damaged_files: Inputs that were rejected as a whole; their rows are in none of the other numbers.
        inputs: The same, file by file.
        rejected_files: Where the rejected rows are, if they were quarantined.
    """

    num_rows: Count
    num_examples: Count
    num_filtered: Count = 0
    num_duplicates: Count = 0
    num_rejected: Count = 0
    num_sequences: Count | None = None
    num_damaged_files: Count = 0
    inputs: tuple[InputInfo, ...] = ()
    rejected_files: tuple[RejectedFile, ...] = ()

    @property
    def num_stored(self) -> int:
        """Examples that the shards hold."""
        return self.num_examples if self.num_sequences is None else self.num_sequences

    def __post_init__(self) -> None:
        out = self.num_examples + self.num_filtered + self.num_duplicates + self.num_rejected
        if self.num_rows != out:
            raise DamageError("the rows do not add up", why=f"{self.num_rows} rows in, {out} accounted for")


# Files of others have names with spaces, such as `part (1).tfrecord`; spaces at the ends would be invisible.
_SAFE_SEGMENT = re.compile(r"(?! )[A-Za-z0-9._=() -]{1,255}(?<! )")


def check_relative_path(path: str, where: str) -> None:
    """Checks that a stored path stays inside the dataset.

    Raises:
        UnsafeError: If it has a segment other than `[A-Za-z0-9._=() -]+`, a `..`, a space at an end of a segment, or is
            longer than 1,024 bytes.
    """
    segments = path.split("/")
    if len(path) > 1024 or not all(_SAFE_SEGMENT.fullmatch(s) and s not in (".", "..") for s in segments):
        raise UnsafeError(f"the path {path[:200]!r} is refused", where=where, why="it may lead out of the dataset")
