"""`python -m tests.faults.command ARGUMENTS` is shardkit with the faults of the plan in the environment."""

import os

from tests.faults.injection import install
from tests.support.paths import ROOT

INJECT = ROOT / "tests" / "faults" / "inject"


def main():
    """Runs the command line; the processes that it starts have the faults, too."""
    from shardkit.cli import script

    paths = (str(INJECT), str(ROOT), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    install()
    script()


if __name__ == "__main__":
    main()
