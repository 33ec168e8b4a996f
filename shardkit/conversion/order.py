"""In which order the work is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shardkit.sources.base import InputSplit, RawFile


def work_order(splits: Sequence[InputSplit], files: Sequence[RawFile]) -> list[InputSplit]:
    """Returns input splits in the order in which they are best begun: the largest first, so that all end together.

    What lies in a compressed tar is reached by decompressing all in front of it. Its members count as one piece of
    work, and come in the order of the archive.

    Args:
        splits: All of them.
        files: What they read.
    """
    pieces: defaultdict[tuple[str, int], list[InputSplit]] = defaultdict(list)
    for split in splits:
        file = files[split.file_start]
        is_in_order = file.member is not None and file.member.archive_compression is not None
        pieces[(file.path, -1) if is_in_order else ("", split.index)].append(split)
    largest_first = sorted(pieces.values(), key=lambda piece: -sum(s.num_bytes for s in piece))
    return [s for piece in largest_first for s in sorted(piece, key=lambda s: _start(s, files))]


def _start(split: InputSplit, files: Sequence[RawFile]) -> int:
    member = files[split.file_start].member
    return 0 if member is None else member.start
