"""Classes that the names of files may begin with, as `cat.0.jpg` and `0_george_1.wav`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from shardkit.messages import shown
from shardkit.sources.base import RawFile
from shardkit.sources.split_names import split_of

_MAX_NAMES = 10_000
_MAX_CLASSES = 1000
_FIRST_WORD = re.compile(r"([A-Za-z0-9]+)([_.-])")
_LAST_NUMBER = re.compile(r"[_.-][0-9]+$")
_LONG_NUMBER = re.compile(r"[0-9]{3}")


def advice_on_named_classes(files: Sequence[RawFile]) -> str:
    """Returns the options that make a column of the classes in the names of files; empty where these may hold none.

    They may if all names begin with a word and go on behind the same character, and the words repeat: twice on average.
    The class is the first word, or, where names have different numbers of words, all before the last number. The test
    files may lack it.
    """
    sample = files[:: max(1, len(files) // _MAX_NAMES)]
    train = [file for file in sample if split_of(file) == "train"]
    in_all = _found_in(sample)
    found = in_all or (_found_in(train) if len(train) < len(sample) else None)
    if found is None:
        return ""
    column = f"regexp_extract(filename, '{found.pattern}', 1)"
    column = column if in_all else f"nullif({column}, '')"
    examples = " and ".join(map(shown, sorted(found.words)[:2]))
    select = f"SELECT *, {column} AS label FROM rows"
    return f'if the names begin with classes, as {examples}, --no-labels --select "{select}" makes a column of these'


class _Found(NamedTuple):
    pattern: str
    words: Collection[str]


def _found_in(files: Sequence[RawFile]) -> _Found | None:
    stems = [file.name.rpartition("/")[2].rpartition(".")[0] for file in files]
    found = [_FIRST_WORD.match(stem) for stem in stems]
    if not all(found):
        return None
    separators = {match[2] for match in found if match is not None}
    words = Counter(match[1] for match in found if match is not None)
    if len(separators) != 1 or any(_LONG_NUMBER.search(word) for word in words):
        return None
    (separator,) = separators
    pattern = f"([^/{separator}]+)[{separator}][^/]*[.][^/.]*$"
    if len({stem.count(separator) for stem in stems}) > 1 and all(map(_LAST_NUMBER.search, stems)):
        words = Counter(_LAST_NUMBER.sub("", stem) for stem in stems)
        pattern = "([^/]+)[_.-][0-9]+[.][^/.]*$"
    if not 1 < len(words) <= min(_MAX_CLASSES, len(stems) // 2):
        return None
    return _Found(pattern, words)
