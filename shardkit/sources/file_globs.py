"""Which of the listed files are read, by globs over their names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape
from itertools import takewhile

from shardkit.errors import UsageError
from shardkit.file_types import suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, SourceOptions

_LISTED_FILES = 5
_LISTED_GLOBS = 8
# The end of a name that tells what a file is, as _mask of 1_mask.png.
_MARK = re.compile(r"[^A-Za-z0-9/](?=[A-Za-z])[^/]*$")


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


def glob_options(option: str, globs: Sequence[str]) -> str:
    """Returns an option with each of some globs, the first ones of many."""
    return " ".join(f"{option} {glob_in_shell(glob)}" for glob in globs[:_LISTED_GLOBS])


def glob_in_shell(glob: str) -> str:
    """Returns a glob as a shell reads it, with `?` for each character that a terminal could not show."""
    return shlex.quote("".join(c if c.isprintable() else "?" for c in glob))


def globs_of(files: Sequence[RawFile], others: Sequence[RawFile], marks: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns globs that match some files and none of the others: of their folders, or of parts of their names.

    There are as few as such globs can be; files that no glob tells apart are named.

    Args:
        files: Those that are wanted, one or more.
        marks: Globs that may tell names of files.
    """
    taken = {folder for file in others for folder in _folders_around(file.name)}
    outer: dict[str, None] = {}
    alone: list[str] = []
    for file in files:
        folder = next((folder for folder in _folders_around(file.name) if folder not in taken), None)
        if folder is None:
            alone.append(escape(file.name))
        else:
            outer[folder] = None
    if alone:
        suffix = suffix_with_case(files[0].name)
        end = _common_mark([file.name.removesuffix(suffix) for file in files])
        ends = (*([f"*{escape(end)}{suffix}"] if end else []), *marks, *([f"*{suffix}"] if suffix else []))
        usable = (found for found in ends if _tells(found, files, others))
        if (found := next(usable, None)) is not None:
            return (found,)
    return (*_globs_of_folders(list(outer), taken), *alone)


def _tells(found: str, files: Sequence[RawFile], others: Sequence[RawFile]) -> bool:
    return all(matches(file.name, found) for file in files) and not any(matches(file.name, found) for file in others)


def _globs_of_folders(folders: Sequence[str], taken: Collection[str]) -> list[str]:
    """Returns globs of folders: `*/mask/*` for several that are called so, where none of the others is."""
    by_name: dict[str, list[str]] = {}
    for folder in folders:
        by_name.setdefault(folder.rpartition("/")[2], []).append(folder)
    # Such as train_labels and val_labels.
    end = _common_mark(list(by_name)) if len(by_name) > 1 else ""
    if end and not any(folder.endswith(end) for folder in taken):
        return [f"*{escape(end)}/*"]
    globs: list[str] = []
    for name, alike in by_name.items():
        start = "/" if all("/" in folder for folder in alike) else ""
        if len(alike) > 1 and not any(folder.endswith(f"{start}{name}") for folder in taken):
            globs.append(f"*{start}{escape(name)}/*")
        else:
            globs += [f"{escape(folder)}/*" for folder in alike]
    return globs


def _common_mark(stems: Sequence[str]) -> str:
    """Returns what names without extension end in, from a character on that is no letter or digit."""
    found = _MARK.search(common_end(stems))
    return found[0] if found else ""


def common_end(texts: Sequence[str]) -> str:
    """Returns the characters that all texts end in."""
    turned = [text[::-1] for text in texts]
    # What these two share all texts between them share.
    same = takewhile(
        lambda pair: pair[0] == pair[1], zip(min(turned, default=""), max(turned, default=""), strict=False)
    )
    return "".join(character for character, _ in same)[::-1]


def suffix_with_case(name: str) -> str:
    """Returns the extension of a file as it is written, which globs tell apart from that in other capitals."""
    return name[len(name) - len(suffix_of(name)) :]


def _folders_around(name: str) -> Iterator[str]:
    position = name.find("/")
    while position >= 0:
        yield name[:position]
        position = name.find("/", position + 1)


def folders_of_splits(wanted: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the folders that the globs of one split alone name, such as `new` of `new/*`.

    Args:
        wanted: Splits, each with its glob or list, as for `files_of_splits`.
    """
    named: dict[str, set[str]] = {}
    for split, pattern in wanted:
        for folder in pattern.split("/")[:-1] if not pattern.startswith("@") else ():
            if not re.search(r"[*?\[]", folder):
                named.setdefault(folder, set()).add(split)
    return tuple(sorted(folder for folder, splits in named.items() if folder and len(splits) == 1))
