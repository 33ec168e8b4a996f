"""Limits of stores and of the format, each with its source; those of engines stand with the engines."""

from __future__ import annotations

from shardkit.conversion.engines import Limit
from shardkit.conversion.layout_math import MAX_SHARDS
from shardkit.units import GiB, MiB, TiB

SHARDS = Limit(MAX_SHARDS, "shardkit: a shard table has at most a million rows")
MANIFEST = Limit(256 * MiB, "shardkit: a manifest is at most 256 MiB")
# The design's groups: 1,024 of 256 MiB, ordered in memory each.
GROUP = Limit(256 * MiB, "shardkit: 1,024 groups of at most 256 MiB, each of which is ordered in memory")
OBJECT = Limit(5 * TiB, "Amazon S3, Google Cloud Storage: an object is at most 5 TiB")
COUNTS = Limit(2**62, "shardkit: sizes are 64-bit integers")
RECORD = Limit(2 * GiB, "protobuf: a message, and so an example, is smaller than 2 GiB")

# Requests a second that a store takes for one prefix before it asks for patience.
PUTS_PER_S = Limit(3500, "Amazon S3: 3,500 PUT a second and prefix; others take about as many")
GETS_PER_S = Limit(5500, "Amazon S3: 5,500 GET a second and prefix; others take about as many")
