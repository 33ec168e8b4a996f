"""Splits that the names of files tell: `train/cats/1.jpg`, `data_test.csv`.

The rules are those of Hugging Face `datasets`: a word for a split that is alone in the name of a folder or a file,
between characters that are no letters, at any level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from glob import escape

import msgspec

from shardkit.errors import UsageError
from shardkit.file_types import COMPRESSED_PATTERN
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.file_globs import glob_in_shell, matches
from shardkit.sources.split_lists import files_in_list
from shardkit.sources.split_words import SPLIT_WORDS, split_in_name, split_in_unusual_words, split_in_words
from shardkit.units import format_count, format_number

SPLITS = ("train", "validation", "test")

_RANKS = {split: rank for rank, split in enumerate(SPLITS)}
_LISTED = 3
_FEW_FILES = 16


def split_of(file: RawFile) -> str | None:
    """Returns the split of a file: the one that a list or an option names, else the one that its path tells."""
    if file.split is not None:
        return file.split
    split_part = split_in_name(file.name)
    return split_part.split if split_part is not None else None


def with_splits_of_siblings(files: Sequence[RawFile]) -> tuple[RawFile, ...]:
    """Returns the files, with the split `train` for each `adult.data` beside an `adult.test`, as UCI calls the two."""
    names = {file.name for file in files}
    return tuple(
        msgspec.structs.replace(file, split="train")
        if split_of(file) is None and file.name.endswith(".data") and f"{file.name[:-5]}.test" in names
        else file
        for file in files
    )


def split_for_word(word: str | None, names: Collection[str]) -> str | None:
    """Returns the split that a value of a column names: one of the names, or that whose word it holds, as `val_set`."""
    if word is None or word.strip() in names:
        return word and word.strip()
    split = split_in_words(word)
    return split if split in names else None


def splits_in_names(files: Sequence[RawFile]) -> tuple[str, ...]:
    """Returns the splits that the names of all files tell; none if one tells none, or all tell the same.

    Of the files of a dataset these are all of its splits.
    """
    found: set[str] = set()
    for file in files:
        split = split_of(file)
        if split is None:
            return ()
        found.add(split)
    is_dataset = any(file.shard is not None for file in files)
    return in_order(found) if len(found) > 1 or is_dataset else ()


def in_order(splits: Collection[str]) -> tuple[str, ...]:
    """Returns splits in the order of a dataset: `train`, `validation`, `test`, and others by name."""
    return tuple(sorted(splits, key=_rank))


def check_all_tell_splits(files: Sequence[RawFile], needs_union: Callable[[tuple[RawFile, ...]], bool]) -> None:
    """Checks that no file is of no split where folders or files are called by nothing but the words of two or more.

    Where at least half of the files tell two or more, other letters may be in their names, as in `qa_train.jsonl`.

    Args:
        needs_union: Whether some files are read with `--union-by-name` alone, because their columns differ.

    Raises:
        UsageError: If one is: whether it belongs to one of them, or all are one split, nothing tells.
    """
    alone = {part.partition(".")[0].lower(): part for file in files for part in file.name.split("/")}
    called = [part for word, part in alone.items() if word in SPLIT_WORDS]
    silent = [file for file in files if split_of(file) is None]
    found = {split for file in files if (split := split_of(file)) is not None}
    has_splits = len({split_in_words(part) for part in called}) > 1
    if not has_splits and len(found) > 1 and 2 * len(silent) <= len(files):
        called, has_splits = [file.name for file in files if split_of(file) is not None], True
    if not silent or not has_splits:
        return
    telling = {file.name.rpartition("/")[0] for file in files if split_of(file) is not None}
    parents = {parent for folder in telling for parent in _with_parents(folder)}
    beside = [file for file in silent if file.name.rpartition("/")[0] in parents]
    known = {file.name for file in beside}
    others = [file.name.rpartition("/")[0] for file in silent if file.name not in known]
    # The outermost folder without files that tell.
    folders = {next(f for f in (*_with_parents(folder)[1:], folder) if f not in parents) for folder in others}
    globs = [f"{escape(folder)}/*" for folder in sorted(folders)] + [escape(file.name) for file in beside]
    kept = tuple(file for file in files if split_of(file) is not None)
    chosen = _options("--exclude", globs)
    if len(kept) <= _LISTED < len(globs) and not any("/" in file.name for file in kept):
        chosen = _options("--include", [escape(file.name) for file in kept])
    if needs_union(kept):
        first = min(kept, key=lambda file: _rank(split_of(file) or ""))
        chosen += " --union-by-name, which makes columns null that a file lacks, or take one split alone with "
        chosen += _options("--include", [escape(first.name)])
    number = f"{format_number(len(silent), 'file')} of {format_count(len(files))}"
    raise UsageError(
        "some files belong to splits by their names, and others to none",
        why=f"{', '.join(map(printable, called[:_LISTED]))} name splits; {number} tell none, such as "
        f"{printable(silent[0].name)}",
        next_step=f"Leave these out with {chosen}, give every split a --split NAME=GLOB, or add "
        "--split train=1 to take all files as one split",
    )


def check_no_unusual_splits(files: Sequence[RawFile], *, are_rows: bool = False) -> None:
    """Checks that no folders or few files beside each other may be splits though not all are called so.

    They may be if all are called like one, as `train` and `holdout` or `tr` and `tt`, if both `train` and `test` are
    among a few, or if one is and another one holds folders of the same names, as `train/cat` and `new/cat`.

    Args:
        are_rows: Whether each is a row, which may have a folder as its class.

    Raises:
        UsageError: If some may be.
    """
    if splits_in_names(files):
        return
    held: dict[str, dict[str, set[str]]] = {}
    for folder in {file.name.rpartition("/")[0] for file in files} - {""}:
        parts = folder.split("/")
        for level, part in enumerate(parts):
            held.setdefault("/".join(parts[:level]), {}).setdefault(part, set()).update(parts[level + 1 : level + 2])
    for file in files if len(files) <= _FEW_FILES else ():
        held.setdefault(file.name.rpartition("/")[0], {}).setdefault(file.name.rpartition("/")[2], set())
    found = {outer: inner for outer, inner in held.items() if _may_be_splits(inner)}
    if not found:
        return
    outer, inner = min(found.items())
    start = "*/" if len(found) > 1 else f"{escape(outer)}/" if outer else ""
    chosen: dict[str, str] = {}
    for name, folders in sorted(inner.items()):
        own = re.sub(r"\W+", "_", name.partition(".")[0]).lower()
        split = split_in_unusual_words(name.partition(".")[0]) or own
        is_file = not folders and not any(file.name.startswith(f"{outer}/{name}/".lstrip("/")) for file in files)
        chosen[own if split in chosen else split] = f"{start}{escape(name)}" if is_file else f"{start}{escape(name)}/*"
    options = " ".join(f"--split {split}={glob_in_shell(glob)}" for split, glob in chosen.items())
    # Without folders below them the splits would be the classes.
    options += " --no-labels" if are_rows and not any(inner.values()) else ""
    raise UsageError(
        f"{', '.join(map(printable, sorted(inner)[:_LISTED]))} may be splits, and not all are called so",
        next_step=f"Add {options} if they are, or --split train=1 to take all files as one split",
    )


def _may_be_splits(inner: dict[str, set[str]]) -> bool:
    """Whether some names beside each other may be those of splits, with the folders that each holds."""
    meant = {name: split_in_unusual_words(name.partition(".")[0]) for name in inner}
    if None not in meant.values() and "train" in meant.values() and len(set(meant.values())) > 1:
        return True
    if len(inner) > _FEW_FILES:
        return False
    # Languages are called tr and te.
    known = [name for name in inner if meant[name] in ("train", "test") and len(name) > 2]
    others = [name for name in inner if meant[name] is None]
    are_both = len({meant[name] for name in known}) > 1
    return are_both or any(inner[one] & inner[other] for one in known for other in others)


def check_no_further_split(files: Sequence[RawFile], are_read: Callable[[], bool]) -> None:
    """Checks that no few files beside those of one split may be those of another, as `TREC_10` beside `train_5500`.

    Of many files some are called after a split by chance, and `dev` and `val` are more than splits.

    Args:
        files: Tables or texts.
        are_read: Whether they can be read together.

    Raises:
        UsageError: If some may be.
    """
    names = {file.name for file in files}
    telling = [file for file in files if split_of(file) is not None]
    telling = telling or [file for file in files if _without_t(file.name) in names]
    splits = {split_of(file) or "test" for file in telling}
    if splits not in ({"train"}, {"test"}) or len(telling) == len(files) or len(files) > _FEW_FILES or not are_read():
        return
    split = splits.pop()
    known = {file.name for file in telling}
    silent = next(file for file in files if file.name not in known)
    listed = [escape(file.name) for file in telling] if len(telling) <= _LISTED else ["GLOB"]
    chosen = " ".join(f"--split {split}={glob_in_shell(name)}" for name in listed)
    raise UsageError(
        f"the names of some files tell the split {split}, and others none",
        why=f"such as {printable(telling[0].name)}, and {printable(silent.name)}",
        next_step=f"Add {chosen} --split {'test' if split == 'train' else 'train'} if these are of two splits, or "
        "--split train=1 to take all files as one split",
    )


def _without_t(name: str) -> str | None:
    """Returns the name of the file that `a9a.t` tests the training of, as libsvm's data are called; None for others."""
    found = re.fullmatch(f"(.+)\\.t((?:{COMPRESSED_PATTERN})?)", name)
    return f"{found[1]}{found[2]}" if found else None


def _options(option: str, globs: Sequence[str]) -> str:
    return " ".join(f"{option} {glob_in_shell(glob)}" for glob in globs)


def check_one_dataset(files: Sequence[RawFile], *, are_documents: bool) -> None:
    """Checks that no two folders beside each other hold a whole dataset each: files of the same two splits or more.

    Folders `key=value` are parts of one dataset. So are classes, which hold several texts of a split each.

    Args:
        files: Tables or texts.
        are_documents: Whether the folders may be classes of texts.

    Raises:
        UsageError: If they do.
    """
    splits: dict[str, dict[str, int]] = {}
    for file in files:
        found = split_in_name(file.name)
        if file.shard is None and found is not None and found.level:
            folder = "/".join(file.name.split("/")[: found.level])
            counts = splits.setdefault(folder, {})
            counts[found.split] = counts.get(found.split, 0) + 1
    whole = {folder: counts for folder, counts in splits.items() if len(counts) > 1 and "=" not in folder}
    is_one = are_documents and any(number > 1 for counts in whole.values() for number in counts.values())
    if len(whole) < 2 or is_one:
        return
    first = sorted(whole)[0]
    raise UsageError(
        f"{format_count(len(whole))} folders hold the files of {' and '.join(in_order(whole[first]))} each",
        why=f"{', '.join(map(printable, sorted(whole)[:_LISTED]))} may be datasets by themselves",
        next_step=f"Convert one alone with --include {glob_in_shell(f'{escape(first)}/*')}, or take them as one "
        "dataset with --source-column file, a column that tells their rows apart",
    )


def _with_parents(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[:level]) for level in range(len(parts) + 1)]


def _rank(split: str) -> tuple[int, str]:
    return _RANKS.get(split, len(_RANKS)), split


def folders_below_split(name: str) -> list[str]:
    """Returns the folders of a path without the one that tells its split."""
    split_part = split_in_name(name)
    folders = name.split("/")[:-1]
    return folders if split_part is None else [*folders[: split_part.level], *folders[split_part.level + 1 :]]


def files_of_splits(
    files: Sequence[RawFile],
    wanted: Sequence[tuple[str, str]],
    rest: str | None = None,
    *,
    may_be_empty: bool = False,
) -> tuple[tuple[RawFile, ...], tuple[str, ...]]:
    """Returns the files with the split that each belongs to, and notes on names in lists that no file has.

    Args:
        wanted: Splits, each with a glob over names of files, or `@` and the path of a list of them. A name in a list
            may lack its folder or its extension.
        rest: The split of all other files; None allows none.
        may_be_empty: Whether a split may get no file, as where files are appended.

    Raises:
        UsageError: If a file belongs to no split or to two, or a split gets no file.
    """
    found: dict[str, str] = {}
    notes: list[str] = []
    for split, pattern in wanted:
        if not pattern.startswith("@"):
            named = [f for f in files if matches(f.name, pattern)]
        else:
            named, unknown = files_in_list(files, pattern[1:])
            if unknown:
                number = format_number(len(unknown), "name")
                notes.append(f"{number} of {printable(pattern[1:])} without a file: {', '.join(unknown[:3])}")
        if not named and not may_be_empty:
            raise UsageError(
                f"--split {split}={pattern} names no file of the inputs",
                why=f"the files are called like {printable(files[0].name)}",
                next_step="Write it as a file is called, or as its path below the folder that was named",
            )
        for file in named:
            if found.setdefault(file.name, split) != split:
                raise UsageError(
                    f"{printable(file.name)} belongs to the splits {found[file.name]} and {split}",
                    next_step="Change one of the two --split",
                )
    lost = [file.name for file in files if file.name not in found]
    if lost and rest is None:
        raise UsageError(
            f"{format_number(len(lost), 'file')} of {format_count(len(files))} belong to no split",
            why=", ".join(map(printable, lost[:3])),
            next_step="Leave these out with --exclude GLOB, or add a --split NAME alone, which takes the rest",
        )
    return tuple(msgspec.structs.replace(file, split=found.get(file.name, rest)) for file in files), tuple(notes)
