"""Slurm's short forms: lists of nodes, and tasks a node. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from shardkit.errors import UsageError

_MAX_NODES = 100_000
_NAME = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_nodes(text: str) -> tuple[str, ...]:
    """Returns the names in a list of nodes such as `node[01-03,7],login`, in order.

    Raises:
        UsageError: If it is no such list.
    """
    names: list[str] = []
    for word in _split_outside_brackets(text):
        names += _expand_word(word, text)
        if len(names) > _MAX_NODES:
            raise _bad(text, f"more than {_MAX_NODES:,} nodes")
    return tuple(names)


def expand_tasks(text: str) -> tuple[int, ...]:
    """Returns the number of tasks on each node from a form such as `2(x3),1`.

    Raises:
        UsageError: If it is no such form.
    """
    counts: list[int] = []
    for word in text.split(","):
        found = _TASKS.fullmatch(word.strip())
        times = int(found[2] or 1) if found else 0
        if found is None or not 0 < times <= _MAX_NODES:
            raise _bad(text, "expected a form such as 2(x3),1")
        counts += [int(found[1])] * times
    return tuple(counts)


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, character in enumerate(text + ","):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise _bad(text, "its brackets do not match")
        if character == "," and depth == 0:
            if start == i:
                raise _bad(text, "a name is empty")
            yield text[start:i]
            start = i + 1
    if depth:
        raise _bad(text, "its brackets do not match")


def _expand_word(word: str, text: str) -> list[str]:
    parts: list[list[str]] = []
    for i, part in enumerate(re.split(r"[\[\]]", word)):
        if i % 2:
            parts.append(list(_expand_ranges(part, text)))
        elif _NAME.fullmatch(part):
            parts.append([part])
        else:
            raise _bad(text, f"{part!r} is no part of a name")
    num_names = 1
    for choices in parts:
        num_names *= len(choices)
    if num_names > _MAX_NODES:
        raise _bad(text, f"more than {_MAX_NODES:,} nodes")
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def _expand_ranges(ranges: str, text: str) -> Iterator[str]:
    for word in ranges.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise _bad(text, f"{word!r} is no range")
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < first + _MAX_NODES:
            raise _bad(text, f"{word!r} is no range")
        yield from (f"{number:0{len(found[1])}}" for number in range(first, last + 1))


def _bad(text: str, why: str) -> UsageError:
    shown = text if len(text) <= 80 else text[:80] + "..."
    return UsageError(f"Slurm's environment holds {shown!r}", why=why, next_step="Name the hosts with --hosts instead")
