"""How a list of files that are one row each is cut: into input splits, and these into batches."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.sources.base import InputSplit, RawFile, choose_split_bytes
from shardkit.units import format_size

_MIN_SPLIT_FILES, _MAX_SPLIT_FILES = 512, 4096
_MAX_COLUMN_BYTES = 2**31 - 1  # Arrow counts the bytes of a batch with 32 bits.


def split_files(files: tuple[RawFile, ...], split_bytes: int | None) -> list[InputSplit]:
    """Cuts a list of files into splits of about `split_bytes`; None chooses by the size of all."""
    # The identity of a file is its name, so all files may count here.
    wanted = split_bytes or choose_split_bytes(sum(f.num_bytes for f in files))
    max_files = max(_MIN_SPLIT_FILES, min(len(files) // 32, _MAX_SPLIT_FILES))
    splits: list[InputSplit] = []
    start, num_bytes = 0, 0
    for stop, file in enumerate(files, start=1):
        num_bytes += file.num_bytes
        if num_bytes >= wanted or stop - start == max_files or stop == len(files):
            splits.append(InputSplit(index=len(splits), file_start=start, file_stop=stop, num_bytes=num_bytes))
            start, num_bytes = stop, 0
    return splits


def cut_batches(
    split: InputSplit, files: tuple[RawFile, ...], batch_bytes: int, max_file_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yields the files of a split in batches of about `batch_bytes`, half-open; a file that is too large is alone."""
    start, num_bytes = split.file_start, 0
    for index in range(split.file_start, split.file_stop):
        if files[index].num_bytes > max_file_bytes:
            if index > start:
                yield start, index
            yield index, index + 1
            start, num_bytes = index + 1, 0
            continue
        num_bytes += files[index].num_bytes
        if num_bytes >= batch_bytes:
            yield start, index + 1
            start, num_bytes = index + 1, 0
    if start < split.file_stop:
        yield start, split.file_stop


def max_file_bytes(max_record_bytes: int, batch_bytes: int) -> int:
    """Returns the most bytes of a file that becomes a value, among others in a batch."""
    return min(max_record_bytes, _MAX_COLUMN_BYTES - batch_bytes)


def too_large(limit: int) -> str:
    """Returns why a file is refused."""
    return f"it has more than the {format_size(limit)} that a record may have"
