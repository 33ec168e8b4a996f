"""`python -m shardkit`, and the command `shardkit`."""

from shardkit.runtime.early_signals import stop_at_once_on_signals

if __name__ == "__main__":
    stop_at_once_on_signals()

import sys
from pathlib import Path
from typing import NoReturn

from shardkit.runtime.standard_streams import begin_again_with_utf8, open_closed_streams


def main() -> NoReturn:
    """Runs the command line as the whole process."""
    stop_at_once_on_signals()
    open_closed_streams()
    begin_again_with_utf8()
    from shardkit.cli import script

    script()


if __name__ == "__main__":
    # Python puts the current folder first; a train.py that lies there must not pass for the package `train`.
    here, home = Path.cwd(), Path(__file__).resolve().parent.parent
    if here != home:
        sys.path[:] = [entry for entry in sys.path if entry not in ("", str(here))]
    main()
