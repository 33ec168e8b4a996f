"""`python -m shardkit`, the same as `shardkit`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the current folder first; a train.py that lies there must not pass for the package `train`.
    here, home = Path.cwd(), Path(__file__).resolve().parent.parent
    if here != home:
        sys.path[:] = [entry for entry in sys.path if entry not in ("", str(here))]

    from shardkit.cli import script

    script()
