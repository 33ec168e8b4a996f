"""NumPy arrays that are a file and a row each: `--array-record file`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from shardkit.errors import UsageError
from shardkit.features import Features, Shape, make_feature
from shardkit.messages import printable
from shardkit.sources.arrays.npy_bytes import NpyError, NpyHeader, parse_npy_header, read_npy
from shardkit.sources.base import RawFile, SourceOptions, place
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
            UsageError: If arrays of two dimensions or more differ in shape.
        """
        return msgspec.structs.replace(super().settle(files, options), array_shape=_common(files)[1])

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of an array and its labels.

        Raises:
            UsageError: As other sources do, and if arrays differ in type or shape.
            BadInputError: If a file is no array, unless bad rows are tolerated.
        """
        _, *others = super().infer(files, options)
        return (make_feature(self.content, _common(files)[0], options.array_shape), *others)

    def examine(self, content: memoryview, name: str, options: SourceOptions) -> Found:
        """Returns the values of an array.

        Raises:
            NpyError: If it is none of numbers, damaged, or of another shape.
        """
        array = read_npy(content)
        if array.shape != options.array_shape and not (options.array_shape == (None,) and array.ndim == 1):
            raise NpyError(f"an array of shape {list(array.shape)} among those of {list(options.array_shape)}")
        return Found((), array.reshape(-1))


def _common(files: tuple[RawFile, ...]) -> tuple[str, Shape]:
    """Returns the type and shape of some of the arrays; `(None,)` for lists of several lengths."""
    found: list[tuple[RawFile, NpyHeader]] = []
    some = sample_files(files)
    for file, head in zip(some, read_heads(some, _HEADER_BYTES), strict=True):
        try:
            found.append((file, parse_npy_header(head)))
        except NpyError:
            # Reading names it.
            continue
    if not found:
        return "float32", (None,)
    first, header = found[0]
    for file, other in found[1:]:
        is_list = len(header.shape) == len(other.shape) == 1
        if header.dtype != other.dtype or (header.shape != other.shape and not is_list):
            raise UsageError(
                f"{printable(file.name)} holds {other.dtype}{list(other.shape)}, "
                f"and {printable(first.name)} {header.dtype}{list(header.shape)}",
                where=place(file),
                next_step="Make the arrays alike, or choose some with --include GLOB or --exclude GLOB",
            )
    shapes = {other.shape for _, other in found}
    return header.dtype, header.shape if len(shapes) == 1 and header.shape else (None,)
