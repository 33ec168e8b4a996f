"""What the log of a conversion tells about power cuts: what is published must be on the disk before its name is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_PUBLISHED = ("/data/", "/manifests/")


def unsynced(log: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the published files whose contents, or the names before a manifest, were not made to last. Pure."""
    written: set[str] = set()
    named: set[str] = set()
    found = []
    for line in log:
        name, path = line["name"], line["path"]
        if name in ("open", "write"):
            written.add(path)
        elif name == "sync":
            written.discard(path)
            named = {other for other in named if other.rpartition("/")[0] != path}
        elif name in ("link", "rename") and any(part in path for part in _PUBLISHED):
            if line.get("source") in written:
                found.append(path)
            # A manifest may last only if the names of its shards and of its table do.
            if path.endswith(".json"):
                found += sorted(named)
            named.add(path)
    return found
