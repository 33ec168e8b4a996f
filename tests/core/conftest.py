"""Lets the tests import what the fuzzing command stands on, and what several of them make their files with."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
sys.path.append(str(Path(__file__).parent))
