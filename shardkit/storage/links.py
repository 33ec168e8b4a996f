"""The rule of all that deletes or replaces in a folder of ours: what is behind a link stays as it is."""

from __future__ import annotations

from itertools import accumulate

from shardkit.errors import UnsafeError
from shardkit.storage.locations import is_local, join, local_path, redact


def refuse_link(root: str, path: str) -> None:
    """Checks that neither a path below a folder nor a folder between the two is a link; the folder itself may be one.

    Raises:
        UnsafeError: If one is: what is behind it may be of another dataset.
    """
    if not is_local(root):
        return
    for part in accumulate(path.split("/"), join):
        if local_path(join(root, part)).is_symlink():
            raise UnsafeError(
                f"{part} is a link, and nothing behind a link is removed or replaced",
                where=redact(join(root, part)),
                state="Nothing was changed",
                next_step="Move the files here in place of the link; only the folder above it may be one",
            )
