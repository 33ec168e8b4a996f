"""Text files that belong together line by line, such as two languages of a translation, or texts and their labels."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from glob import escape
from typing import NamedTuple

from shardkit.errors import BadInputError, UsageError
from shardkit.file_types import COMPRESSED_SUFFIXES, suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.file_globs import glob_in_shell, glob_options
from shardkit.sources.files.streams import open_stream
from shardkit.sources.split_names import split_of
from shardkit.sources.split_words import shared_parts, split_in_words
from shardkit.units import MiB, format_count

_WORD = re.compile(r"[^\W_]+")
_LETTERS = re.compile(r"[^\W\d_]+(?:[-_][^\W\d_]+)?")
_PLAIN_SUFFIXES = frozenset({"", ".txt", ".text", ".log"})
_LOGS = frozenset({"log", "logs", ".log"})
_MOST_FILES = 16
_MAX_COUNTED_BYTES = 512 * MiB
_BLOCK_BYTES = MiB
_LISTED = 4
_MIN_TWINS = 2
# What files of two classes are called, whose lines have nothing to do with each other.
CLASS_PAIRS = (
    {"pos", "neg"}, {"positive", "negative"}, {"spam", "ham"}, {"true", "fake"}, {"real", "fake"},
)  # fmt: skip
_READ_AS = "--header --quote none --delimiter tab"


class _Parallel(NamedTuple):
    """Files of one folder and split that belong together, in order; too large ones have no `num_lines`."""

    files: tuple[RawFile, ...]
    num_lines: int | None


def check_not_parallel(files: Sequence[RawFile]) -> None:
    """Checks that no two texts of a folder have the same number of lines and names that differ in one word.

    Args:
        files: Texts whose lines are rows.

    Raises:
        UsageError: If some do; with a command that makes columns of them.
    """
    groups: dict[tuple[str, str | None, tuple[str, ...]], list[RawFile]] = {}
    for file in files:
        folder, _, base = file.name.rpartition("/")
        groups.setdefault((folder, split_of(file), tuple(re.findall(r"\d+", base))), []).append(file)
    all_found = (parallel for group in groups.values() if (parallel := _parallel_in(group)) is not None)
    # To count the lines of further ones would say no more.
    found = list(itertools.islice(all_found, _LISTED + 1))
    if all(parallel.num_lines == 1 for parallel in found):
        _check_no_twins(files)
        return
    first = max(found, key=lambda parallel: parallel.num_lines or 2)
    lines = "" if first.num_lines is None else f"{format_count(first.num_lines)} lines each: "
    names = ", ".join(printable(file.name) for file in first.files[:_LISTED])
    more = ", ..." if len(first.files) > _LISTED else ""
    all_lines = "--source-column file takes the lines of all files, with a column that tells which file a line is from"
    one_side = f"{_one_side(found)} takes the lines of one side"
    if {word.lower() for word in _columns_of(first)} in CLASS_PAIRS:
        raise UsageError(
            "the names of the text files may be two classes",
            why=f"{lines}{names}{more}",
            next_step=f"{all_lines}; {one_side}",
        )
    raise UsageError(
        "text files may belong together line by line",
        why=f"{lines}{names}{more}",
        next_step=f"{_pasted(found)}. {one_side}; {all_lines}",
    )


def _check_no_twins(files: Sequence[RawFile]) -> None:
    """Checks that texts do not lie beside each other in twos of the same name, as a.txt and a.ann of annotations.

    Raises:
        UsageError: If more than half of them do.
    """
    by_stem: dict[str, list[RawFile]] = {}
    for file in files:
        by_stem.setdefault(file.name.removesuffix(_whole_suffix(file)), []).append(file)
    twins = [alike for alike in by_stem.values() if len(alike) > 1]
    suffixes = sorted({_whole_suffix(file) for alike in twins for file in alike} - {""})
    if len(twins) < _MIN_TWINS or 2 * sum(map(len, twins)) <= len(files) or not 1 < len(suffixes) <= _LISTED:
        return
    ways = " or ".join(glob_options("--include", [f"*{suffix}"]) for suffix in suffixes)
    raise UsageError(
        "text files of the same names lie beside each other",
        why=f"as {' and '.join(printable(file.name) for file in twins[0])} do",
        next_step=f"Take those of one kind with {ways}; --source-column file takes the lines of all, with a column "
        "that tells which file a line is from",
    )


def _parallel_in(group: Sequence[RawFile]) -> _Parallel | None:
    words = {file.name: _words(file) for file in group} if 1 < len(group) <= _MOST_FILES else {}
    # Logs are often cut after the same number of lines.
    if not words or any(_LOGS & set(found) for found in words.values()):
        return None
    pairs = [pair for pair in itertools.combinations(group, 2) if _differ_in_a_word(*(words[f.name] for f in pair))]
    alike = tuple(file for file in group if any(file in pair for pair in pairs))
    if not alike or _count_up([words[file.name] for file in alike]):
        return None
    if sum(file.num_bytes for file in group) > _MAX_COUNTED_BYTES:
        stems = {words[file.name][:-1] for file in alike}
        is_plain = any(words[file.name][-1] in _PLAIN_SUFFIXES for file in alike)
        return None if len(stems) > 1 or is_plain else _Parallel(alike, None)
    try:
        counts = {file.name: _count_lines(file) for file in group}
    except BadInputError:
        return None
    usual, number = Counter(counts[file.name] for file in alike).most_common(1)[0]
    if number < 2 or 2 * number <= len(alike):
        return None
    return _Parallel(tuple(file for file in group if counts[file.name] == usual), usual)


def _words(file: RawFile) -> tuple[str, ...]:
    """Returns the words of a name, and its extension as the last one."""
    base = _base(file)
    suffix = suffix_of(base)
    return (*_WORD.findall(base[: len(base) - len(suffix)]), suffix)


def _base(file: RawFile) -> str:
    base = file.name.rpartition("/")[2]
    packed = suffix_of(base)
    return base[: -len(packed)] if packed in COMPRESSED_SUFFIXES else base


def _differ_in_a_word(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        differing = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
        if len(differing) != 1 or not all(_LETTERS.fullmatch(word.removeprefix(".")) for word in differing[0]):
            return False
        # Names of a letter alone, as a.txt and b.txt, say nothing.
        return len(one) > 2 or one[0] == other[0] or min(map(len, differing[0])) > 1
    # Such as text.txt and text_labels.txt.
    return (
        len(long) - len(short) == 1
        and len(short) > 1
        and any(long[:i] + long[i + 1 :] == short and _LETTERS.fullmatch(long[i]) for i in range(len(long) - 1))
    )


def _count_up(names: Sequence[tuple[str, ...]]) -> bool:
    """Whether words such as `aa` and `ab` number the parts that `split` made of one text."""
    words = {word.removeprefix(".").lower() for name in names for word in name} - {
        word.removeprefix(".").lower() for word in set.intersection(*map(set, names))
    }
    return len({len(word) for word in words}) == 1 and re.fullmatch("x?a+", min(words)) is not None


def _count_lines(file: RawFile) -> int:
    number, last = 0, b"\n"
    with open_stream(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            number += block.count(b"\n")
            last = block[-1:]
    return number + (last != b"\n")


def _pasted(found: Sequence[_Parallel]) -> str:
    """Returns how a table with a header line becomes of the files of each split."""
    paths = [file.path for parallel in found for file in parallel.files]
    is_plain = not any(file.member or suffix_of(file.name) in COMPRESSED_SUFFIXES for p in found for file in p.files)
    if len(found) > _LISTED or not is_plain or any("://" in path for path in paths):
        return f"To have them as columns, make a table of them with paste, and convert it with {_READ_AS}"
    commands, targets = [], set[str]()
    for parallel in found:
        columns, target = _columns_of(parallel), _target_of(parallel)
        while target in targets:
            target += "_2"
        targets.add(target)
        sides = " ".join(shlex.quote(printable(file.path)) for file in parallel.files)
        header = "\\t".join(columns)
        commands.append(f"(printf '{header}\\n'; paste {sides}) >pasted/{target}.tsv")
    return f"To have them as columns, run  mkdir pasted; {'; '.join(commands)}  and convert pasted {_READ_AS}"


def _columns_of(parallel: _Parallel) -> list[str]:
    """Returns the words of the names that differ, as names of columns."""
    names = [_WORD.findall(_base(file)) for file in parallel.files]
    start = len(shared_parts(names))
    rests = [name[start:] for name in names]
    num_shared = len(shared_parts([rest[::-1] for rest in rests]))
    owns = [rest[: len(rest) - num_shared] for rest in rests]
    # text.txt beside text_labels.txt has no part of its own: its column is called text.
    return ["_".join(own or name[: len(name) - num_shared]) for own, name in zip(owns, names, strict=True)]


def _target_of(parallel: _Parallel) -> str:
    """Returns what the names begin with, as the name of a table that tells the split of the files."""
    bases = [_base(file) for file in parallel.files]
    shared = "".join(shared_parts(bases))
    # A word that some go on with is none of all.
    is_cut = any(base[len(shared) : len(shared) + 1].isalnum() for base in bases)
    own = re.sub(r"[^\w.-]", "_", re.sub(r"[^\W_]+$", "", shared) if is_cut else shared).strip("._-")
    split = split_of(parallel.files[0])
    return own if own and split in (None, split_in_words(own)) else f"{own}_{split or 'rows'}".strip("_")


def _one_side(found: Sequence[_Parallel]) -> str:
    """Returns the options that take the first file of each split."""
    suffix = _whole_suffix(found[0].files[0])
    are_alike = all(suffix == _whole_suffix(parallel.files[0]) for parallel in found)
    if suffix and are_alike and suffix not in {_whole_suffix(file) for one in found for file in one.files[1:]}:
        return f"--include {shlex.quote(f'*{suffix}')}"
    if len(found) > _LISTED:
        return "--include GLOB"
    return " ".join(f"--include {glob_in_shell(escape(parallel.files[0].name))}" for parallel in found)


def _whole_suffix(file: RawFile) -> str:
    suffix = suffix_of(_base(file))
    return suffix and file.name[file.name.lower().rindex(suffix) :]
