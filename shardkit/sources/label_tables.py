"""Labels of files that are one row each: columns by the name of the file, and how names are matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.sources.streams import shown

Positions = npt.NDArray[np.int64]
Simplify = Callable[[str], str]

_LISTED_NAMES = 3


class LabelColumns(Protocol):
    """What is known of some files."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the files, each once."""
        ...

    @property
    def features(self) -> Features:
        """What the columns hold."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know, one sentence each."""
        ...

    def take(self, positions: Positions) -> dict[str, pa.Array]:
        """Returns the columns of some of the names by their positions; null where that is -1."""
        ...


class LabelTable(NamedTuple):
    """Labels that are held as columns.

    Attributes:
        names: Names of the files, each once.
        features: What the columns hold.
        columns: By name of the feature.
        notes: What a user should know.
    """

    names: Sequence[str]
    features: Features
    columns: dict[str, pa.Array]
    notes: tuple[str, ...] = ()

    def take(self, positions: Positions) -> dict[str, pa.Array]:
        """Returns the columns of some of the names by their positions; null where that is -1."""
        wanted = pa.array(positions, mask=positions < 0)
        return {name: column.take(wanted) for name, column in self.columns.items()}


class Matching(NamedTuple):
    """Which label each file has.

    Attributes:
        positions: Of the label of each file, -1 where there is none.
        num_unused: Labels that belong to no file.
        notes: On files without labels, and labels without files.
    """

    positions: Positions
    num_unused: int
    notes: tuple[str, ...]


def match_names(files: Sequence[str], labels: Sequence[str], where: str, kinds: str) -> Matching:
    """Returns which label each file has.

    Names may be written as the files are called below the input, or by their last part, or without its extension:
    whichever of these finds the most files; the fuller name where they find equally many.

    Args:
        files: Names of the files below the input.
        labels: Names in the labels.
        where: Place of the labels, for messages.
        kinds: What the files are, such as `images`.

    Raises:
        UsageError: If no label belongs to a file, or one belongs to several.
    """
    best: tuple[int, Positions] | None = None
    for simplify in (_path, _last_part, _stem):
        by_name: dict[str, int] = {}
        for position, name in enumerate(labels):
            by_name.setdefault(simplify(name), position)
        positions = np.fromiter((by_name.get(simplify(f), -1) for f in files), np.int64, len(files))
        num_found = int((positions >= 0).sum())
        if num_found > (best[0] if best is not None else 0):
            best = (num_found, positions)
            _check_once(files, labels, positions, simplify, where)
        if num_found == len(files):
            break
    if best is None:
        example = f"{shown(labels[0])} and {shown(files[0])}" if labels and files else "there are none"
        raise UsageError(
            f"none of the labels belongs to one of the {kinds}",
            where=where,
            why=f"the names are written like {example}",
            next_step="Give the labels of these files, or correct the names in them",
        )
    positions = best[1]
    is_used = np.zeros(len(labels), np.bool_)
    is_used[positions[positions >= 0]] = True
    unused = np.flatnonzero(~is_used)
    notes = (
        *_some(
            [files[i] for i in np.flatnonzero(positions < 0)[:_LISTED_NAMES]], (positions < 0).sum(), kinds, "label"
        ),
        *_some([labels[i] for i in unused[:_LISTED_NAMES]], len(unused), "labels", "file among the inputs"),
    )
    return Matching(positions, len(unused), notes)


def _check_once(
    files: Sequence[str], labels: Sequence[str], positions: Positions, simplify: Simplify, where: str
) -> None:
    name, count = Counter(positions[positions >= 0].tolist()).most_common(1)[0]
    if count > 1:
        clash = [files[i] for i in np.flatnonzero(positions == name)[:2]]
        raise UsageError(
            f"the label {shown(labels[name])} belongs to {count} files",
            where=where,
            why=f"among them {shown(clash[0])} and {shown(clash[1])}",
            next_step="Write the names in the labels with their folders",
        )
    counts = Counter(map(simplify, labels))
    twice = {name for name, count in counts.items() if count > 1}
    clashes = sorted(twice & set(map(simplify, files))) if twice else []
    if clashes:
        raise UsageError(
            f"several labels are for {shown(clashes[0])}",
            where=where,
            why="their names differ in the folder or the extension only",
            next_step="Write the names in the labels as the files are called",
        )


def _some(names: list[str], count: int, kinds: str, what: str) -> tuple[str, ...]:
    if not count:
        return ()
    more = ", ..." if count > len(names) else ""
    verb = "has" if count == 1 else "have"
    return (
        f"{count:,} {kinds if count > 1 else kinds.removesuffix('s')} {verb} no {what}: "
        f"{', '.join(map(shown, names))}{more}",
    )


def _path(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")


def _last_part(name: str) -> str:
    return _path(name).rpartition("/")[2]


def _stem(name: str) -> str:
    last = _last_part(name)
    stem, dot, suffix = last.rpartition(".")
    # An identifier may hold a point; an extension is short.
    return stem if dot and stem and 1 <= len(suffix) <= 5 and not suffix.isdigit() else last
