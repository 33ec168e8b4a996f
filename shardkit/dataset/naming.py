"""Names that a dataset may hold."""

from __future__ import annotations

import re

from shardkit.errors import UnsafeError

# Files of others have names with spaces, such as `part (1).tfrecord`; at the ends nobody would see them.
_SAFE_SEGMENT = re.compile(r"(?! )[A-Za-z0-9._=() -]{1,255}(?<! )")


def check_relative_path(path: str, where: str) -> None:
    """Checks that a stored path stays inside the dataset.

    Raises:
        UnsafeError: If it has a segment other than `[A-Za-z0-9._=() -]+`, a `..`, a space at an end of a segment, or is
            longer than 1,024 bytes.
    """
    segments = path.split("/")
    if len(path) > 1024 or not all(_SAFE_SEGMENT.fullmatch(s) and s not in (".", "..") for s in segments):
        raise UnsafeError(f"the path {path[:200]!r} is refused", where=where, why="it may lead out of the dataset")
