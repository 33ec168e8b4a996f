"""What can be asked of the transformations. Part of the recipe.

The steps apply in this order, whatever the order they are named in:

    cast -> rename -> drop rows with nulls -> map -> select -> Unicode form -> lower case -> tokenize -> images

So `cast` and `rename` speak of columns as the source has them, everything behind of columns as they are by then.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from shardkit.errors import UsageError
from shardkit.storage import files as storage

UnicodeForm = Literal["NFC", "NFD", "NFKC", "NFKD"]
ImageFormat = Literal["jpeg", "png"]

ALL_COLUMNS = "*"


class TransformOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is done to the rows.

    Attributes:
        select: A row-wise SQL statement over the table `rows`.
        map_path: A function of the user's own from batch to batch, `FILE.py:function`.
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


def options_from_texts(
    *,
    select: str | None = None,
    map_reference: str | None = None,
    drop_null: tuple[str, ...] = (),
    rename: tuple[str, ...] = (),
    cast: tuple[str, ...] = (),
    lower: tuple[str, ...] = (),
    unicode_form: tuple[str, ...] = (),
    tokenize: tuple[str, ...] = (),
    image_size: str | None = None,
    image_format: ImageFormat | None = None,
    image_quality: int | None = None,
    apply_exif: bool = True,
) -> TransformOptions:
    """Returns the options that a command line asks for, without hashes.

    Args:
        select: `SELECT ... FROM rows WHERE ...`.
        map_reference: `FILE.py:function`.
        drop_null: Columns, or `*`.
        rename: Texts like `OLD=NEW`.
        cast: Texts like `COLUMN=TYPE`.
        lower: Columns.
        unicode_form: Texts like `COLUMN=NFC`.
        tokenize: Texts like `COLUMN=tokenizer.json`.
        image_size: `HEIGHTxWIDTH`, or one number for both.
        image_format: `jpeg` or `png`.
        image_quality: Of JPEG.
        apply_exif: Whether images are turned upright.

    Raises:
        UsageError: If a text is not of its form.
    """
    parts = {
        "select": select,
        "map_path": map_reference,
        "drop_null": drop_null,
        "rename": [_pair(text, "--rename", "OLD=NEW") for text in rename],
        "cast": [_pair(text, "--cast", "COLUMN=TYPE", at_last=True) for text in cast],
        "lower": lower,
        "unicode_form": [_pair(text, "--unicode-form", "COLUMN=NFC", at_last=True) for text in unicode_form],
        "tokenize": [(*_pair(text, "--tokenize", "COLUMN=tokenizer.json"), "") for text in tokenize],
        "image_size": None if image_size is None else _parse_size(image_size),
        "image_format": image_format,
        "image_quality": image_quality,
        "apply_exif": apply_exif if image_size or image_format or image_quality else None,
    }
    try:
        return msgspec.convert(parts, TransformOptions)
    except msgspec.ValidationError as error:
        raise UsageError(
            "the transformations cannot be used",
            why=str(error),
            next_step="Correct the option that the reason names; shardkit convert --help has all",
        ) from error


def _pair(text: str, option: str, form: str, *, at_last: bool = False) -> tuple[str, str]:
    left, sign, right = text.rpartition("=") if at_last else text.partition("=")
    if not (sign and left and right):
        raise UsageError(f"{option} {text} is not {form}", next_step=f"Write it like {option} {form}")
    return left, right


def _parse_size(text: str) -> tuple[int, int]:
    height, sign, width = text.lower().partition("x")
    sizes = (height, width if sign else height)
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise UsageError(
            f"--image-size {text} is not a size", next_step="Write it like 224, or like 240x320 for height and width"
        )
    return int(sizes[0]), int(sizes[1])


def _check_same(path: str, option: str, expected: str | None, found: str) -> None:
    if expected is not None and expected != found:
        raise UsageError(
            f"the file of {option} is not the one that the recipe was made with",
            where=storage.redact(path),
            why=f"its SHA-256 is {found}, expected {expected}",
            next_step=f"Put the old file back, or name the new one with {option}",
        )
