"""What can be asked of the transformations, each option stated once. Part of the recipe.

The steps apply in this order, whatever the order they are named in:

    fetch -> source column -> check media -> cast -> rename -> drop rows with nulls -> map -> select -> Unicode form
    -> lower case -> tokenize -> images

So `cast` and `rename` name columns of the source, and every later step names columns after the steps before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from shardkit.errors import UsageError
from shardkit.options import Columns, Named, Option, Pair
from shardkit.storage.locations import redact

ROWS = "Rows and columns"
ALL_COLUMNS = "*"

UnicodeForm = Literal["NFC", "NFD", "NFKC", "NFKD"]
FetchKind = Literal["bytes", "image", "audio", "video"]


class ImageSize(Named):
    """Height and width of images, or one number for both."""

    hint = "int | str | tuple[int, int]"
    joint = "x"
    is_one = True

    def parse(self, text: Any) -> Any:
        """Returns height and width. Raises UsageError if the text is no size."""
        height, sign, width = text.lower().partition("x")
        sizes = (height, width if sign else height)
        if not all(size.isascii() and size.isdigit() for size in sizes):
            raise UsageError(
                f"--image-size {text} is not a size",
                next_step="Write it like 224, or like 240x320 for height and width",
            )
        return int(sizes[0]), int(sizes[1])

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns height and width as one text."""
        return "x".join(map(str, value)) if value else None


class Fetch(Named):
    """A column of web addresses, and what they give."""

    hint = "str | Mapping[str, FetchKind]"
    is_one = True

    def parse(self, text: Any) -> Any:
        """Returns the column and the kind."""
        column, sign, kind = text.rpartition("=")
        return (column, kind) if sign and column and kind in get_args(FetchKind) else (text, "bytes")

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns the column and the kind as one text."""
        return "=".join(value) if value else None


class TransformOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is done to the rows, as each `Option` describes it.

    Attributes:
        map_sha256: Of the content of the file of `map_path`.
        tokenize: Columns with the path of a `tokenizer.json` and its SHA-256.
        apply_exif: None where no images are written anew.
    """

    fetch: Annotated[tuple[str, FetchKind] | None, Option(
        "--fetch",
        "Fetch the web addresses in a column into a new column: image, audio or video where the kind is named, else "
        "content. A row whose address cannot be fetched does not fit.",
        ROWS, "content", form=Fetch("COLUMN[=image|audio|video]"),
    )] = None  # fmt: skip
    fetch_private: Annotated[bool, Option(
        "--fetch-private", "Also fetch from this machine and from hosts of private networks.", ROWS, "content",
    )] = False  # fmt: skip
    fetch_disallowed: Annotated[bool, Option(
        "--fetch-disallowed", "Also fetch what robots.txt of a host or the header X-Robots-Tag disallows.",
        ROWS, "content",
    )] = False  # fmt: skip
    source_column: Annotated[str | None, Option(
        "--source-column", "Add a text column of this name that holds the file of each row.",
        ROWS, "content", form=Named("NAME"),
    )] = None  # fmt: skip
    check_media: Annotated[bool, Option(
        "--check-media",
        "Decode every image, audio file and video once; a row whose file does not decode does not fit.",
        ROWS, "content",
    )] = False  # fmt: skip
    cast: Annotated[tuple[tuple[str, str], ...], Option(
        "--cast",
        "Change the type of a column; repeat for more. COLUMN may be a type (float64=float32), a pattern of names "
        "('price_*=string'), or '*', which is all columns of numbers if TYPE is a number.",
        ROWS, "content", form=Pair("--cast", "COLUMN=TYPE", is_cut_at_last=True), is_common=True,
    )] = ()  # fmt: skip
    rename: Annotated[tuple[tuple[str, str], ...], Option(
        "--rename", "Rename a column; repeat for more.",
        ROWS, "content", form=Pair("--rename", "OLD=NEW"), is_common=True,
    )] = ()  # fmt: skip
    drop_null: Annotated[tuple[str, ...], Option(
        "--drop-null", "Leave out rows that lack one of these columns; '*' means any.",
        ROWS, "content", form=Columns(), is_common=True,
    )] = ()  # fmt: skip
    map_path: Annotated[str | None, Option(
        "--map", "Pass rows through your own function, which takes and returns an Arrow batch.",
        ROWS, "content", form=Named("FILE.py:FUNCTION"), is_common=True,
    )] = None  # fmt: skip
    select: Annotated[str | None, Option(
        "--select",
        'Pass rows through SQL that works row by row: "SELECT a, b*2 AS c FROM rows WHERE a > 0" (extra: sql).',
        ROWS, "content", form=Named("SQL"), is_common=True,
    )] = None  # fmt: skip
    unicode_form: Annotated[tuple[tuple[str, UnicodeForm], ...], Option(
        "--unicode-form", "Bring a text column into the Unicode form NFC, NFD, NFKC or NFKD.", ROWS, "content",
        form=Pair("--unicode-form", "COLUMN=NFC", metavar="COLUMN=FORM", is_cut_at_last=True),
    )] = ()  # fmt: skip
    lower: Annotated[tuple[str, ...], Option(
        "--lower", "Change these text columns to lower case.", ROWS, "content", form=Columns()
    )] = ()  # fmt: skip
    tokenize: Annotated[tuple[tuple[str, str, str], ...], Option(
        "--tokenize",
        "Replace a text column by its token ids, with a tokenizer of the tokenizers library (extra: text).",
        ROWS, "content", form=Pair("--tokenize", "COLUMN=tokenizer.json", more=("",)),
    )] = ()  # fmt: skip
    image_size: Annotated[tuple[int, int] | None, Option(
        "--image-size", "Resize all images to this height and width; boxes in pixels follow.",
        ROWS, "content", form=ImageSize("N|HxW"),
    )] = None  # fmt: skip
    image_format: Annotated[Literal["jpeg", "png"] | None, Option(
        "--image-format",
        "Store all images in this format; JPEG, PNG, WebP, GIF, BMP, TIFF and PNM are read. PNG keeps 8 bits a channel "
        "exactly.", ROWS, "content",
    )] = None  # fmt: skip
    image_quality: Annotated[int | None, Option(
        "--image-quality", "Quality of JPEG. Default: 90.", ROWS, "content", minimum=1, maximum=100
    )] = None  # fmt: skip
    apply_exif: Annotated[bool | None, Option(
        "--apply-exif/--keep-exif", "Turn resized or recoded images upright by their EXIF data.",
        ROWS, "content", shown_default=True,
    )] = None  # fmt: skip
    map_sha256: str | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether rows pass as they are."""
        return msgspec.structs.replace(self, apply_exif=None) == TransformOptions()


def split_reference(reference: str) -> tuple[str, str]:
    """Returns file and function of `FILE.py:function`. Raises UsageError if it is not written so."""
    path, colon, function = reference.rpartition(":")
    if not colon or not path or not function.isidentifier():
        what = f"--map {redact(reference)} names no function"
        raise UsageError(what, next_step="Write it like --map my_rows.py:clean")
    return path, function


def without_secrets(options: TransformOptions) -> TransformOptions:
    """Returns the options with paths as they may be stored and shown."""
    map_path = options.map_path
    if map_path is not None:
        path, function = split_reference(map_path)
        map_path = f"{redact(path)}:{function}"
    tokenize = tuple((column, redact(path), sha256) for column, path, sha256 in options.tokenize)
    return msgspec.structs.replace(options, map_path=map_path, tokenize=tokenize)


def without_places(options: TransformOptions) -> TransformOptions:
    """Returns the options that determine the result: files by their hashes, not by their paths."""
    return msgspec.structs.replace(
        options,
        map_path=None if options.map_path is None else f":{split_reference(options.map_path)[1]}",
        tokenize=tuple((column, "", sha256) for column, _, sha256 in options.tokenize),
    )
