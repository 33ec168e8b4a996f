"""The one family of errors that a user can meet.

ShardkitError
├── DamageError       1  what was written does not match its manifest
├── UsageError        2  the request itself is wrong
├── BadInputError     3  an input row or file does not fit
├── ConflictError     4  the destination already holds something
├── StorageError      5  a store or a worker process kept failing
├── OutOfSpaceError   6  no room for the spool or for the shards
└── UnsafeError       7  refused: a path that leads out, a link in place of our folder, overlapping members

The number is the exit code of the command line. Every error says what happened, where (file, row, byte), why,
what state the destination is in, and what to do next; parts that do not apply are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self


class ShardkitError(Exception):
    """Base of all errors that are shown to the user as one message, without a traceback.

    Args:
        what: What went wrong, starting in lower case, without a full stop.
        where: File, and row, byte or member if known, such as `data/a.csv, row 17`.
        why: The reason, usually expected against got.
        table: Lines that are shown below these, as they are.
        state: What the destination holds now.
        next_step: What to run or change.
    """

    code: ClassVar[str] = "SK-E000"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        table: tuple[str, ...] = (),
        state: str | None = None,
        next_step: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.table = table
        self.state = state
        self.next_step = next_step
        super().__init__(what)

    def __str__(self) -> str:
        head = self.what if self.where is None else f"{self.what} in {self.where}"
        if self.why is not None:
            head = f"{head}: {self.why}"
        sentences = [head, "; ".join(" ".join(line.split()) for line in self.table), self.state, self.next_step]
        return " ".join(s if s.endswith((".", "?", "!")) else f"{s}." for s in sentences if s)

    def to_dict(self) -> dict[str, str | None]:
        """Returns the parts and the class name, so that an error can cross a process border."""
        return {
            # A class of another module is known on the other side by the one here that it is of.
            "type": next(c.__name__ for c in type(self).__mro__ if c.__module__ == __name__),
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "table": "\n".join(self.table) or None,
            "state": self.state,
            "next_step": self.next_step,
        }

    @staticmethod
    def from_dict(parts: dict[str, str | None]) -> ShardkitError:
        """Returns the error that `to_dict` described."""
        kinds: tuple[type[ShardkitError], ...] = (*ShardkitError.__subclasses__(), *BadInputError.__subclasses__())
        kinds += (UnsafeFileError,)
        family = {c.__name__: c for c in kinds}
        kind = family.get(parts.get("type") or "", ShardkitError)
        return kind(
            parts.get("what") or "unknown error",
            where=parts.get("where"),
            why=parts.get("why"),
            table=tuple((parts.get("table") or "").splitlines()),
            state=parts.get("state"),
            next_step=parts.get("next_step"),
        )

    def with_state(self, state: str, next_step: str | None = None) -> Self:
        """Returns the same error, with the state of the destination (and a next step) where none is known yet."""
        self.state = self.state or state
        self.next_step = self.next_step or next_step
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (ShardkitError.from_dict, (self.to_dict(),))


class DamageError(ShardkitError):
    """What was written does not match its manifest."""

    code = "SK-E100"
    exit_code = 1


class UsageError(ShardkitError):
    """The request itself is wrong: an option, a path, a schema, a missing extra."""

    code = "SK-E200"
    exit_code = 2


class DifferentSchemasError(UsageError):
    """Files of one table have columns whose types do not go together, which `columns` names."""

    columns: tuple[str, ...] = ()


class BadInputError(ShardkitError):
    """An input row or file does not fit."""

    code = "SK-E300"
    exit_code = 3


class NarrowTypesError(BadInputError):
    """A value does not fit a type that the first rows of the inputs have."""


class DamagedFileError(BadInputError):
    """An input file of which not even the rows can be counted."""


class UnsafeInputError(BadInputError):
    """An input file as no honest tool makes it."""

    code = "SK-E700"
    exit_code = 7


class UnsafeFileError(UnsafeInputError, DamagedFileError):
    """One of which nothing is trusted: it is rejected as a whole where bad rows are tolerated."""


class NoRowsError(BadInputError):
    """The inputs hold not one row."""

    def __init__(self, what: str = "there are no rows", **parts: Any) -> None:
        parts["next_step"] = parts.get("next_step") or "Add --allow-empty to make a dataset without examples"
        super().__init__(what, **parts)


class ConflictError(ShardkitError):
    """The destination already holds something that would have to be replaced."""

    code = "SK-E400"
    exit_code = 4


class StorageError(ShardkitError):
    """A store or a worker process kept failing."""

    code = "SK-E500"
    exit_code = 5


class OutOfSpaceError(ShardkitError):
    """No room for the spool or for the shards."""

    code = "SK-E600"
    exit_code = 6


class UnsafeError(ShardkitError):
    """Refused: a path that leads out of its folder, a link in place of a folder of ours, a table of impossible size."""

    code = "SK-E700"
    exit_code = 7


def missing_extra(extra: str, package: str) -> UsageError:
    """Returns the error for a command whose optional packages are not installed."""
    return UsageError(
        f"this needs the package {package}, which is not installed",
        next_step=f"Run: pip install 'shardkit[{extra}]'",
    )


def place_is_taken(where: str) -> ConflictError:
    """Returns the error for a command that makes something new where something is."""
    return ConflictError(
        "there is something already",
        where=where,
        state="It is untouched",
        next_step="Remove it, or name another place",
    )


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns the sentence that offers the nearest known word, with a space before it; empty if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
