"""Raw files in, trainable shards out, and a trainer that never waits for them."""

from __future__ import annotations

from shardkit._version import __version__

TYPE_CHECKING = False  # As in typing, whose import takes as long as all else here; type checkers know the name.
if TYPE_CHECKING:
    from shardkit.reading.dataset import Splits

__all__ = ["__version__", "open"]


def open(url: str, version: int | None = None) -> Splits:
    """Returns the splits of a dataset by name; reads its manifest and nothing else.

    Args:
        url: Local folder or address in a store.
        version: None means the newest.

    Raises:
        UsageError: If there is no dataset, or no such version, or a newer shardkit wrote it.
        DamageError: If the manifest is damaged.
    """
    # Here, so that `import shardkit` stays light for the command line.
    from shardkit.reading.dataset import open_splits

    return open_splits(url, version)
