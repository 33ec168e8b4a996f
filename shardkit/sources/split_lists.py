"""Lists of the files of a split: a name a line, as in `ImageSets/Main` of Pascal VOC."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

from shardkit.errors import BadInputError, UsageError
from shardkit.file_types import HEAD_BYTES, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_stream, read_exactly, read_head
from shardkit.sources.split_words import shared_parts, split_in_name, split_in_words
from shardkit.storage import files as storage

_MAX_LIST_BYTES = 2**30
_LISTED = 3
TRAINVAL = "trainval"
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
        return [_plain(words[0].partition("|")[0]) for line in lines if (words := line.split())]
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a list of files is not UTF-8", where=place(file), why=str(error), next_step="Write it as UTF-8"
        ) from error


def split_of_list(file: RawFile) -> str | None:
    """Returns the split whose files a list names, by its own name; None if that tells none.

    `trainval` of Pascal VOC is what is trained on, and `minival` of COCO a validation.
    """
    base = file.name.rpartition("/")[2]
    found = split_in_name(base)
    if found is not None or base.startswith(f"{TRAINVAL}."):
        return found.split if found is not None else "train"
    return "validation" if re.search("[a-z]val(?![a-z])", base) else None


def names_by_split(lists: Sequence[RawFile]) -> dict[str, list[str]]:
    """Returns the names that lists of a split each hold; lists without a name are none.

    Raises:
        BadInputError: If one is not UTF-8.
    """
    found: dict[str, list[str]] = {}
    for file in lists:
        if names := read_names(file):
            found.setdefault(split_of_list(file) or "train", []).extend(names)
    if any(file.name.rpartition("/")[2].startswith(f"{TRAINVAL}.") for file in lists):
        others = {name for split, names in found.items() for name in names if split != "train"}
        found["train"] = [name for name in found.get("train", ()) if name not in others]
    return {split: names for split, names in found.items() if names}


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
    names = _below_root(dict.fromkeys(read_names(listed)), {way for file in files for way in _ways_to_call(file.name)})
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
        names = {name for file in lists for name in read_names(file)}
    except BadInputError:
        # The option that reads the list says why it cannot.
        return ()
    return () if all(not _ways_to_call(file.name).isdisjoint(names) for file in files) else (f"--split {split}",)


def _first_names(file: RawFile) -> list[str]:
    lines = read_head(file, HEAD_BYTES).decode("utf-8", "replace").splitlines()[:_LISTED]
    words = [line.split() for line in lines if line.strip()]
    return [_plain(found[0]) for found in words] if all(len(found) == 1 for found in words) else []


def _plain(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _below_root(names: Collection[str], ways: Collection[str]) -> list[str]:
    """Returns names without the folders that all begin with, as far as these keep any from being a file."""
    found = [name.split("/") for name in names]
    shared = len(shared_parts([parts[:-1] for parts in found])) if found else 0
    starts = (start for start in range(shared + 1) if any("/".join(parts[start:]) in ways for parts in found))
    start = next(starts, 0)
    return ["/".join(parts[start:]) for parts in found]


def _ways_to_call(name: str) -> set[str]:
    parts = name.split("/")
    ways = {"/".join(parts[level:]) for level in range(len(parts))}
    return ways | {way[: -len(suffix)] for way in ways if (suffix := suffix_of(name)) and way.endswith(suffix)}
