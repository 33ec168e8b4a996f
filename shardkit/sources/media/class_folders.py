"""Files that are one row each, and the folders that say what class they are of."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.errors import UsageError
from shardkit.messages import printable
from shardkit.sources.base import InputSplit, RawFile, SourceOptions, choose_split_bytes, place
from shardkit.sources.split_names import folders_below_split
from shardkit.units import format_count, format_size

_MIN_SPLIT_FILES, _MAX_SPLIT_FILES = 512, 4096
_MAX_COLUMN_BYTES = 2**31 - 1  # Arrow counts the bytes of a batch with 32 bits.


def find_class_level(files: tuple[RawFile, ...], options: SourceOptions) -> int:
    """Returns which folder of each file is its class; see `SourceOptions.class_level`.

    That is the innermost folder that all files have, unless it has the same name everywhere: then the one above. A
    single folder around all files is no class.
    """
    folders = [_folders(f, options) for f in files]
    depth = min(map(len, folders), default=0)
    if depth == 0:
        return 0
    differing = (level for level in reversed(range(depth)) if len({parts[level] for parts in folders}) > 1)
    return next(differing, max(map(len, folders)))


def check_one_folder(files: tuple[RawFile, ...], options: SourceOptions) -> None:
    """Checks that not all files lie in one folder, which may be their only class or hold them all.

    A folder around all of an archive is no class.

    Raises:
        UsageError: If they do, no labels are given, and `--no-labels` is not.
    """
    if options.labels is not None or options.no_labels or all(file.member is not None for file in files):
        return
    innermost = {(_folders(file, options) or [""])[-1] for file in files}
    if len(innermost) == 1 and (only := innermost.pop()) and all(class_of(file, options) is None for file in files):
        raise UsageError(
            f"all files lie in one folder, {printable(only)}",
            why="it may be their only class, or hold them without a class",
            next_step="Add --no-labels to take them without a class, or name a file of labels with --labels",
        )


def class_of(file: RawFile, options: SourceOptions) -> str | None:
    """Returns the folder that is the class of a file, None if it has none."""
    folders = _folders(file, options)
    if options.no_labels:
        return None
    return folders[options.class_level] if len(folders) > options.class_level else None


def classes_of(files: tuple[RawFile, ...], kind: str, options: SourceOptions) -> tuple[str, ...]:
    """Returns the names of the class folders, none if no file has one.

    Args:
        files: The files.
        kind: What one is, for messages, such as `an image`.
        options: How the files are read.

    Raises:
        UsageError: If some files lie in class folders and others do not.
    """
    classes = {class_of(f, options) for f in files}
    if classes == {None}:
        return ()
    if None in classes:
        lost = next(f for f in files if class_of(f, options) is None)
        raise UsageError(
            f"{kind} lies in no class folder, while others do",
            where=place(lost),
            why="the folder of a file is its class, as in cats/1.jpg and dogs/2.jpg",
            next_step="Move it to a folder, name the folder that holds the class folders, or give --labels",
        )
    return tuple(sorted(c for c in classes if c is not None))


def class_notes(files: tuple[RawFile, ...], kinds: str, options: SourceOptions) -> tuple[str, ...]:
    """Returns a note if the files get no label.

    Args:
        files: The files.
        kinds: What they are, such as `images`.
        options: How the files are read.
    """
    if options.no_labels or any(class_of(f, options) is not None for f in files):
        return ()
    only = _folders(files[0], options)[-1:] if files else []
    if not only:
        return (f"the {kinds} lie in no class folders and get no label",)
    what = "the only file lies" if len(files) == 1 else f"all {format_count(len(files))} {kinds} lie"
    return (f"{what} in one folder, {printable(only[0])}: one class is no label; --labels names a file of labels",)


def _folders(file: RawFile, options: SourceOptions) -> list[str]:
    return folders_below_split(file.name) if options.has_split_names else file.name.split("/")[:-1]


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
