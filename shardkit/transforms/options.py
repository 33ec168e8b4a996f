"""What can be asked of the transformations. Part of the recipe.

The steps apply in this order, whatever the order they are named in:

    cast -> rename -> drop rows with nulls -> map -> select -> Unicode form -> lower case -> tokenize -> images

So `cast` and `rename` speak of columns as the source has them, everything behind of columns as they are by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

from shardkit.errors import UsageError
from shardkit.media.image_codec import ImageFormat
from shardkit.storage import files as storage

UnicodeForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

ALL_COLUMNS = "*"


class TransformOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is done to the rows.

    Attributes:
        select: A row-wise SQL statement over the table `rows`.
        map_path: A user's function from batch to batch, `FILE.py:function`.
        map_sha256: Of that file's content.
        drop_null: Columns that a row must have all of; `*` alone means every column.
        rename: Old and new names, all applied at once.
        cast: Columns with the dtype that they become; a value that does not fit exactly makes the row a bad one.
        lower: Columns of text to be lower-cased, each code point by its simple mapping.
        unicode_form: Columns of text with the normal form that they get (Unicode Standard Annex 15).
        tokenize: Columns of text that become token ids; with the path of a `tokenizer.json` and its SHA-256.
        image_size: Height and width that all images are resized to, without keeping their ratio.
        image_format: What all images become.
        image_quality: Of JPEG, 1 to 100; None means 90.
        apply_exif: Whether images that are written anew are turned upright; None where none are.
    """

    select: str | None = None
    map_path: str | None = None
    map_sha256: str | None = None
    drop_null: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    cast: tuple[tuple[str, str], ...] = ()
    lower: tuple[str, ...] = ()
    unicode_form: tuple[tuple[str, UnicodeForm], ...] = ()
    tokenize: tuple[tuple[str, str, str], ...] = ()
    image_size: tuple[int, int] | None = None
    image_format: ImageFormat | None = None
    image_quality: int | None = None
    apply_exif: bool | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether rows pass as they are."""
        return msgspec.structs.replace(self, apply_exif=None) == TransformOptions()


def split_reference(reference: str) -> tuple[str, str]:
    """Returns file and function of `FILE.py:function`.

    Raises:
        UsageError: If it is not written so.
    """
    path, colon, function = reference.rpartition(":")
    if not colon or not path or not function.isidentifier():
        raise UsageError(f"--map {reference} names no function", next_step="Write it like --map my_rows.py:clean")
    return path, function


def with_hashes(options: TransformOptions) -> TransformOptions:
    """Returns the options with absolute paths and the hashes of the files they name.

    Raises:
        UsageError: If a file cannot be read, or is not the one of which the options hold a hash.
    """
    changes: dict[str, object] = {}
    if options.map_path is not None:
        path, function = split_reference(options.map_path)
        path = storage.normalize(path)
        found = sha256_of(read_user_file(path, "--map"))
        _check_same(path, "--map", options.map_sha256, found)
        changes = {"map_path": f"{path}:{function}", "map_sha256": found}
    tokenize = []
    for column, given_path, sha256 in options.tokenize:
        path = storage.normalize(given_path)
        found = sha256_of(read_user_file(path, "--tokenize"))
        _check_same(path, "--tokenize", sha256 or None, found)
        tokenize.append((column, path, found))
    return msgspec.structs.replace(options, **changes, tokenize=tuple(tokenize))


def without_places(options: TransformOptions) -> TransformOptions:
    """Returns what of the options determines the result: files by their hashes, not by where they lie."""
    return msgspec.structs.replace(
        options,
        map_path=None if options.map_path is None else f":{split_reference(options.map_path)[1]}",
        tokenize=tuple((column, "", sha256) for column, _, sha256 in options.tokenize),
    )


def read_user_file(path: str, option: str, sha256: str | None = None) -> bytes:
    """Returns the content of a file that an option names.

    Args:
        path: Of the file.
        option: For messages.
        sha256: What its content must hash to; None takes whatever is there.

    Raises:
        UsageError: If it cannot be read or is another one.
    """
    try:
        content = storage.read_bytes(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(
            f"the file of {option} cannot be read",
            where=storage.redact(path),
            why=reason,
            next_step="Check the path, and that the file may be read",
        ) from error
    if sha256 is not None:
        _check_same(path, option, sha256, sha256_of(content))
    return content


def sha256_of(content: bytes) -> str:
    """Returns the SHA-256 of some bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def make_options(parts: Mapping[str, object]) -> TransformOptions:
    """Returns the options that a command line asks for, without hashes.

    Args:
        parts: Values by field.

    Raises:
        UsageError: If one does not fit its field.
    """
    changes_images = any(parts.get(name) for name in ("image_size", "image_format", "image_quality"))
    try:
        return msgspec.convert(
            {**parts, "apply_exif": parts.get("apply_exif", True) if changes_images else None}, TransformOptions
        )
    except msgspec.ValidationError as error:
        raise UsageError(
            "the transformations cannot be used",
            why=str(error),
            next_step="Correct the option that the reason names; shardkit convert --help has all",
        ) from error


def _check_same(path: str, option: str, expected: str | None, found: str) -> None:
    if expected is not None and expected != found:
        raise UsageError(
            f"the file of {option} is not the one that the recipe was made with",
            where=storage.redact(path),
            why=f"its SHA-256 is {found}, expected {expected}",
            next_step=f"Put the old file back, or name the new one with {option}",
        )
