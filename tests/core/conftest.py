"""Lets the tests import what the fuzzing command stands on."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
