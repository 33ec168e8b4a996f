"""`python -m tests.faults.command ARGUMENTS` is shardkit with the faults of the plan in the environment."""

import os
import sys

from tests.faults import read_epochs
from tests.faults.faulty.injection import install
from tests.support.paths import ROOT

READ = "read-epochs"
INJECT = ROOT / "tests" / "faults" / "faulty" / "inject"


def main():
    """Runs the command line; the processes that it starts have the faults, too."""
    from shardkit.cli import script

    paths = (str(INJECT), str(ROOT), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    install()
    if sys.argv[1] == READ:
        sys.exit(read_epochs.main(sys.argv[2]))
    script()


if __name__ == "__main__":
    main()
