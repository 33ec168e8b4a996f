"""Memory of this process, as Linux counts it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from shardkit.units import KiB

_STATUS = Path("/proc/self/status")


class PeakMemory:
    """The most memory that this process takes from now on, beyond the memory that it takes now."""

    def __init__(self) -> None:
        # Resets the system's peak, so that freed memory does not count.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _status_bytes("VmRSS")

    def num_bytes(self) -> int | None:
        """Returns it in bytes, None where the system does not tell."""
        now = _status_bytes("VmHWM")
        return None if now is None or self._before is None else max(0, now - self._before)


def _status_bytes(name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * KiB if found else None
