"""Raw files of every kind that shardkit reads: which there are, what they are, and the source that reads them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardkit.sources.listing import Listing, list_inputs
    from shardkit.sources.registry import choose_source, source_for, source_of

__all__ = ["Listing", "choose_source", "list_inputs", "source_for", "source_of"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for, so that the help reads `shardkit.sources.formats` without pyarrow.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "listing" if name in ("Listing", "list_inputs") else "registry"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
