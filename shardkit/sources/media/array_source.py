"""NumPy arrays that are a file and a row each: `--array-record file`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from shardkit.errors import UsageError
from shardkit.features import Features, Shape, make_feature
from shardkit.messages import printable
from shardkit.sources.arrays.npy_bytes import NpyError, NpyHeader, parse_npy_header, read_npy
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.files.whole_files import read_heads
from shardkit.sources.media.file_source import Found, MediaSource, Words
from shardkit.units import KiB

_HEADER_BYTES = 4 * KiB
_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class ArraySource(MediaSource):
    """`.npy` files of numbers, all of one type and shape, or lists of any length."""

    format: str = "numpy-files"
    words: ClassVar[Words] = Words("an array", "arrays", "the array", "a NumPy array", "no file holds one")
    content: ClassVar[str] = "array"
    numbers: ClassVar[tuple[str, ...]] = ()
    unusable: ClassVar[type[Exception]] = NpyError

    def media_type(self, head: bytes, name: str) -> str | None:
        """Returns the kind of a file by its first bytes, None if it is no `.npy`."""
        return "application/x-npy" if head.startswith(_MAGIC) else None

    def settle(self, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
        """Returns the options with the level of the class folders and the shape of the arrays.

        Raises:
            UsageError: If arrays differ in type or shape, unless bad rows are tolerated; or if none is of numbers.
        """
        leveled = super().settle(files, options)
        return msgspec.structs.replace(leveled, array_shape=_common(files, options)[1])

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of an array and its labels.

        Raises:
            UsageError: As other sources do, and as `settle` does.
            BadInputError: If a file is no array, unless bad rows are tolerated.
        """
        _, *others = super().infer(files, options)
        return (make_feature(self.content, _common(files, options)[0], options.array_shape), *others)

    def examine(self, content: memoryview, name: str, options: SourceOptions) -> Found:
        """Returns the values of an array. Raises NpyError if it is none of numbers, damaged, or of another shape."""
        array = read_npy(content)
        if array.shape != options.array_shape and not (options.array_shape == (None,) and array.ndim == 1):
            raise NpyError(f"an array of shape {list(array.shape)} among those of {list(options.array_shape)}")
        return Found((), array.reshape(-1))


def _common(files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, Shape]:
    """Returns the type and shape of some of the arrays; `(None,)` for lists of several lengths."""
    found: list[tuple[RawFile, NpyHeader]] = []
    fault = "no file holds one"
    some = sample_files(files)
    for file, head in zip(some, read_heads(some, _HEADER_BYTES), strict=True):
        try:
            header = parse_npy_header(head)
        except NpyError as error:
            # Reading names it.
            fault = f"{printable(file.name)} is {error}"
            continue
        if header.shape:
            found.append((file, header))
        else:
            fault = f"{printable(file.name)} holds a single value"
    if not found:
        raise UsageError("there are no arrays of numbers", why=fault, next_step="Save them as arrays of numbers")
    first, header = found[0]
    shapes = {header.shape}
    for file, other in found[1:]:
        is_list = len(header.shape) == len(other.shape) == 1
        if header.dtype == other.dtype and (header.shape == other.shape or is_list):
            shapes.add(other.shape)
        elif not options.tolerates_bad_rows:
            raise UsageError(
                f"{printable(first.name)} and {printable(file.name)} hold arrays of different kinds",
                why=f"{header.dtype} {list(header.shape)} and {other.dtype} {list(other.shape)}",
                next_step="Make them alike, choose some with --include GLOB or --exclude GLOB, or leave those that are "
                "not as the first one out with --on-bad-record skip",
            )
    return header.dtype, header.shape if len(shapes) == 1 else (None,)
