"""Raw files in, trainable shards out, and a trainer that never waits for them."""

from shardkit._version import __version__

__all__ = ["__version__"]
