"""Copies that editors and systems leave beside tables and texts, and files beside the archive that holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from glob import escape

from shardkit.errors import UsageError
from shardkit.file_types import has_image_suffix, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.file_globs import glob_in_shell
from shardkit.sources.files.streams import open_stored, read_exactly
from shardkit.sources.formats import STREAM_SUFFIXES
from shardkit.units import MiB

# Older versions, as editors keep them.
_BACKUP = re.compile(r"(.+?)(?:~|\.bak|\.orig)", re.IGNORECASE)
# What file managers and browsers call a second copy.
_COPY = re.compile(
    r"(?:Copy of (?P<of>.+)"
    r"|(?P<stem>.+?)(?: - Copy| copy| \(copy\)|(?= \(\d))(?: \(?\d{1,2}\)?)?(?P<suffix>\.[^/ ]+)?)",
    re.IGNORECASE,
)
# What any of them holds: few names do, and there may be a million.
_SIGN = re.compile(r"~$|\.bak$|\.orig$|copy|\(\d", re.IGNORECASE)
_COMPARED_BYTES = MiB
_ARCHIVES = re.compile(r"\.(?:zip|tar|tgz|tbz2?|txz)(?:\.\w+)?$", re.IGNORECASE)


def copies_of_tools(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the names of files that are backups or copies of others beside them, as `a.csv~` and `a - Copy.csv`.

    Images and sounds are numbered that way too, and are no copies.

    Raises:
        UsageError: If a copy has another size or another beginning than the file that it is called after.
    """
    named_so = [file for file in files if _SIGN.search(file.name)]
    by_name = {file.name: file for file in files} if named_so else {}
    found = []
    for file in named_so:
        folder, slash, base = file.name.rpartition("/")
        backup, copy = _BACKUP.fullmatch(base), _COPY.fullmatch(base)
        if backup is not None and f"{folder}{slash}{backup[1]}" in by_name:
            found.append(file.name)
        elif copy is not None and not _is_media(base):
            original = by_name.get(f"{folder}{slash}{copy['of'] or copy['stem'] + (copy['suffix'] or '')}")
            if original is not None:
                _check_same(file, original)
                found.append(file.name)
    return tuple(found)


def _check_same(copy: RawFile, original: RawFile) -> None:
    if copy.num_bytes == original.num_bytes and _head(copy) == _head(original):
        return
    raise UsageError(
        f"{printable(copy.name)} is called like a copy of {printable(original.name)}, and has other content",
        why="it may hold the same rows, or other ones",
        next_step=f"Leave one out with --exclude {glob_in_shell(escape(copy.name))} or --exclude "
        f"{glob_in_shell(escape(original.name))}, or rename the copy",
    )


def _head(file: RawFile) -> bytes:
    with open_stored(file) as stream:
        return read_exactly(stream, _COMPARED_BYTES)


def check_not_unpacked(archives: Iterable[RawFile], files: Sequence[RawFile]) -> None:
    """Checks that no member of an archive is beside it, or in a folder that is called like it.

    Args:
        archives: Whose members are among the files.
        files: Members are called `archive.zip/name`.

    Raises:
        UsageError: If one does.
    """
    names = {file.name for file in files}
    for archive in archives:
        prefix, folder = f"{archive.name}/", archive.name.rpartition("/")[0]
        beside = f"{folder}/" if folder else ""
        places = (beside, f"{_ARCHIVES.sub('', archive.name)}/")
        members = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
        twin = min((f"{at}{m}" for m in members for at in places if f"{at}{m}" in names), default=None)
        if twin is not None:
            raise UsageError(
                "an archive lies beside a file that it holds",
                where=place(archive),
                why=f"{printable(twin)} may hold the same rows, or other ones",
                next_step=f"Leave the archive out with --exclude {glob_in_shell(escape(archive.name))}, or rename it",
            )


def _is_media(name: str) -> bool:
    return has_image_suffix(name) or suffix_of(name) in STREAM_SUFFIXES
