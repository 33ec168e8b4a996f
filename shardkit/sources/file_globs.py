"""Which of the listed files are read, by globs over their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from shardkit.errors import UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile, SourceOptions

_LISTED_FILES = 5


def matches(name: str, glob: str) -> bool:
    """Whether a glob fits a name below the common root, or its last part; `*` stands for `/` too."""
    return fnmatchcase(name, glob) or fnmatchcase(name.rpartition("/")[2], glob)


def without_excluded(files: Sequence[RawFile], options: SourceOptions) -> list[RawFile]:
    """Returns the files that no glob excludes."""
    if not options.exclude:
        return list(files)
    return [f for f in files if not any(matches(f.name, glob) for glob in options.exclude)]


def choose_files(named: Sequence[tuple[str, RawFile]], num_excluded: int, options: SourceOptions) -> list[RawFile]:
    """Returns the files that the globs leave.

    Args:
        named: Each file with the name of the archive that it lies in, or its own: a glob that an archive is called by
            includes all its members.
        num_excluded: Files that are left out already.

    Raises:
        UsageError: If a glob to include matches no file, or none is left.
    """
    if named:
        _check_included(named, options)
    included = [
        file
        for outer, file in named
        if not options.include or any(matches(file.name, glob) or matches(outer, glob) for glob in options.include)
    ]
    files = without_excluded(included, options)
    num_found = len(named) + num_excluded
    if num_found and not files:
        raise UsageError(
            "no file is left",
            why=f"all of {num_found:,} are left out by --include and --exclude",
            next_step="Correct the globs",
        )
    return files


def choice_notes(num_left: int, num_found: int) -> tuple[str, ...]:
    """Returns how many files were left out, if any."""
    if num_left == num_found:
        return ()
    num_out = num_found - num_left
    were = "was" if num_out == 1 else "were"
    return (f"{num_out:,} of {num_found:,} files {were} left out by --include and --exclude",)


def _check_included(named: Sequence[tuple[str, RawFile]], options: SourceOptions) -> None:
    for glob in options.include:
        if any(matches(file.name, glob) or matches(outer, glob) for outer, file in named):
            continue
        more = ", ..." if len(named) > _LISTED_FILES else ""
        names = ", ".join(printable(file.name) for _, file in named[:_LISTED_FILES])
        raise UsageError(
            f"--include {glob!r} matches no file",
            why=f"the files{' that are not excluded' if options.exclude else ''} are {names}{more}",
            next_step="Write it as a file is called, such as '*.csv', or as its path below the folder that was named",
        )
