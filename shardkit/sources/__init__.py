"""Raw files of every kind that shardkit reads: which there are, what they are, and the source that reads them."""

from __future__ import annotations

from shardkit.sources.listing import Listing, list_inputs
from shardkit.sources.registry import choose_source, source_for

__all__ = ["Listing", "choose_source", "list_inputs", "source_for"]
