"""Which split a file belongs to, by its name: what TensorFlow Datasets, TFX, ImageNet's scripts and people write.

In this order: `NAME-SPLIT.tfrecord-00000-of-00005` of TensorFlow Datasets; a file that is called like a split, or
begins or ends with its name (`train-00000-of-01024`, `mnist_test.tfrecord`); the nearest folder that is called like a
split (`validation/`, `Split-eval/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardkit.conversion.option_forms import SplitShare, parse_shares
from shardkit.errors import UsageError
from shardkit.sources.file_globs import matches

DEFAULT_SPLIT = "train"

_WORDS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "valid",
    "val": "val",
    "dev": "dev",
    "eval": "eval",
    "test": "test",
    "testing": "test",
}
_ORDER = ("train", "validation", "valid", "val", "dev", "eval", "test")
_TFDS = re.compile(r".+-([A-Za-z][A-Za-z0-9_]{0,63})\.tfrecord(?:\.gz)?-\d+-of-\d+", re.ASCII)
_FOLDER = re.compile(r"(?:split[-_])?([a-z]+)", re.IGNORECASE | re.ASCII)
# The text after the first match says how a file is stored, or which part it is.
_STEM_END = re.compile(r"\.|[-_]\d+(?:[-_]of[-_]\d+)?(?:\.|$)", re.ASCII)
_SEPARATOR = re.compile(r"[-_. ]+")


def split_of_name(name: str) -> str | None:
    """Returns the split that a file's name tells, None if it tells none.

    Args:
        name: Path relative to the root of the dataset, with `/`.
    """
    *folders, file_name = name.split("/")
    if match := _TFDS.fullmatch(file_name):
        return _WORDS.get(match.group(1).lower(), match.group(1))
    tokens = _SEPARATOR.split(_stem(file_name).lower())
    for token in (tokens[-1], tokens[0]):
        if token in _WORDS:
            return _WORDS[token]
    for folder in reversed(folders):
        folder_match = _FOLDER.fullmatch(folder)
        if folder_match and folder_match.group(1).lower() in _WORDS:
            return _WORDS[folder_match.group(1).lower()]
    return None


def assign_splits(names: Sequence[str], globs: Sequence[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Returns the split of every file by name, and the files that went to `train` because nothing tells their split.

    Args:
        names: Of the files, relative to the root.
        globs: Split and glob over the names; the first that fits counts. What none fits goes by its name.

    Raises:
        UsageError: If a split cannot have that name, or a glob fits no file.
    """
    # Called for its check of the names only.
    parse_shares([SplitShare(name=split) for split in dict.fromkeys(split for split, _ in globs)], (DEFAULT_SPLIT,))
    chosen: dict[str, str] = {}
    unsplit: list[str] = []
    for name in names:
        split = next((s for s, glob in globs if matches(name, glob)), None) or split_of_name(name)
        if split is None:
            unsplit.append(name)
        chosen[name] = split or DEFAULT_SPLIT
    for split, glob in globs:
        if not any(matches(name, glob) for name in names):
            raise UsageError(
                f"--split {split}={glob} fits no file",
                why=f"the files are called like {names[0]}",
                next_step="Write the glob as the files are called, or as their paths below the folder, in quotes",
            )
    return chosen, unsplit


def order_of_splits(splits: Sequence[str], globs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the names of splits once each: those asked for first, then train, validation, test, and others."""
    asked = [split for split, _ in globs]
    rest = sorted(set(splits), key=lambda s: (_ORDER.index(s) if s in _ORDER else len(_ORDER), s))
    return [s for s in dict.fromkeys((*asked, *rest)) if s in set(splits)]


def _stem(file_name: str) -> str:
    end = _STEM_END.search(file_name, 1)
    return file_name[: end.start()] if end else file_name
