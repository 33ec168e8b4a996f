"""Places that tests look at: the checkout, and the real data that may lie beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
