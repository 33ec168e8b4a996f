"""Lists of the files of a split: a name a line, as in `ImageSets/Main` of Pascal VOC."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from shardkit.errors import BadInputError, UsageError
from shardkit.file_types import HEAD_BYTES, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_stream, read_exactly, read_head
from shardkit.sources.split_words import split_in_words
from shardkit.storage import files as storage

_MAX_LIST_BYTES = 2**30
_LISTED = 3
_CAPITAL = re.compile("(?<=[a-z])(?=[A-Z])")


def read_names(file: RawFile) -> list[str]:
    """Returns the names in a list of files: the first word of each line, as in `ImageSets/Main` of Pascal VOC.

    A bar ends a name too, as in the tables of LJSpeech.

    Raises:
        BadInputError: If the file is not UTF-8.
    """
    with open_stream(file) as stream:
        raw = read_exactly(stream, _MAX_LIST_BYTES)
    try:
        lines = raw.decode("utf-8-sig").split("\n")
        return [words[0].partition("|")[0] for line in lines if (words := line.split())]
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a list of files is not UTF-8", where=place(file), why=str(error), next_step="Write it as UTF-8"
        ) from error


def files_in_list(files: Sequence[RawFile], path: str) -> tuple[list[RawFile], list[str]]:
    """Returns the files that the list at a path names, and the names in it that no file has.

    Raises:
        UsageError: If there is no list.
    """
    listed = RawFile(path=storage.normalize(path), name=path, num_bytes=0, version="")
    if not storage.exists(listed.path):
        raise UsageError(
            f"there is no list {printable(path)}",
            next_step="Write --split NAME=@FILE with the path of a file that names a file of the inputs a line",
        )
    names = dict.fromkeys(name.removeprefix("./") for name in read_names(listed))
    known: set[str] = set()
    named = []
    for file in files:
        if ways := _ways_to_call(file.name).intersection(names):
            known |= ways
            named.append(file)
    return named, [printable(name) for name in names if name not in known]


def list_notes(files: Sequence[RawFile], passed: Sequence[RawFile], *, is_asked: bool) -> tuple[str, ...]:
    """Returns a note on texts that are passed over and list files of a split each.

    Args:
        is_asked: Whether the splits are known otherwise.
    """
    options = () if is_asked else list_options(files, passed)
    return (f"if these list the files of splits, add {' '.join(options)}",) if options else ()


def list_options(files: Sequence[RawFile], others: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the options for the splits that texts list which are called after them; none if there is none.

    Args:
        others: Further files. One is a list if its first lines are a word each, and one of them is a file.
    """
    named_so = [f for f in others if f.member is None and suffix_of(f.name) == ".txt"]
    # Of several lists of a split, as train1.txt to train10.txt of DTD, the first of each goes with those of the others.
    named_so.sort(key=lambda f: (len(f.name), f.name), reverse=True)
    # Those of Flickr8k are called such as trainImages.txt.
    words = {f: _CAPITAL.sub(" ", f.name.rpartition("/")[2]) for f in named_so}
    lists = {split: f for f in named_so if (split := split_in_words(words[f])) is not None}
    first = {split: _first_names(f) for split, f in lists.items()}
    wanted = {name for names in first.values() for name in names}
    known = {way for f in files for way in _ways_to_call(f.name) if way in wanted} if wanted else set()
    found = {split: lists[split] for split, names in sorted(first.items()) if not known.isdisjoint(names)}
    rest = _option_for_rest(files, tuple(found.values()), "rest" if "train" in found else "train") if found else ()
    return (*(f"--split {split}=@{printable(shlex.quote(f.path))}" for split, f in found.items()), *rest)


def _option_for_rest(files: Sequence[RawFile], lists: Sequence[RawFile], split: str) -> tuple[str, ...]:
    """Returns the option that takes the files that no list names; none if there is none."""
    try:
        names = {name.removeprefix("./") for file in lists for name in read_names(file)}
    except BadInputError:
        # The option that reads the list says why it cannot.
        return ()
    return () if all(not _ways_to_call(file.name).isdisjoint(names) for file in files) else (f"--split {split}",)


def _first_names(file: RawFile) -> list[str]:
    lines = read_head(file, HEAD_BYTES).decode("utf-8", "replace").splitlines()[:_LISTED]
    words = [line.split() for line in lines if line.strip()]
    return [found[0].removeprefix("./") for found in words] if all(len(found) == 1 for found in words) else []


def _ways_to_call(name: str) -> set[str]:
    parts = name.split("/")
    ways = {"/".join(parts[level:]) for level in range(len(parts))}
    return ways | {way[: -len(suffix)] for way in ways if (suffix := suffix_of(name)) and way.endswith(suffix)}
