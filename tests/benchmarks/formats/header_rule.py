"""How often the first line of a CSV file is taken for what it is not, on real tables with and without their header.

    python -m tests.benchmarks.formats.header_rule FOLDER [--cases 400] [--seed 1]

Every table with at least four rows gives cases: some of its columns, some of its rows from a random place on, once with
the line of names and once without. A table of which one column is text only, without a name that people use, may be
left undecided; no row may be lost.
"""

import argparse
import csv
import random
from pathlib import Path

import pyarrow as pa

from shardkit.sources.csv.header import read_header

# Without a header, or no table.
LEFT_OUT = ("no_header", "bad", "blanks", "null_byte", "README", "sort_ints_nulls", "ragged", "skip_lines", "latin1")
MAX_ROWS = 1000


def tables(folder):
    """Yields the name, the header and the rows of every table with unique names."""
    for path in sorted(folder.rglob("*.csv")):
        if any(word in path.name for word in LEFT_OUT):
            continue
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                lines = [row for _, row in zip(range(4 * MAX_ROWS), csv.reader(file), strict=False) if row]
        except (UnicodeDecodeError, csv.Error):
            continue
        rows = [row for row in lines[1:] if len(row) == len(lines[0])]
        if len(rows) >= 4 and len(set(lines[0])) == len(lines[0]) and all(lines[0]):
            yield path.relative_to(folder).as_posix(), lines[0], rows


def cases(found, number, rng):
    """Yields the name of a table, whether it has its header, and its lines."""
    for index in range(number // 2):
        name, header, rows = found[index % len(found)]
        is_whole = index < len(found)
        chosen = range(len(header))
        if not is_whole:
            chosen = sorted(rng.sample(chosen, rng.randint(min(2, len(header)), len(header))))
        start = 0 if is_whole else rng.randrange(max(1, len(rows) - 50))
        picked = [[row[i] for i in chosen] for row in rows[start : start + rng.choice((5, 30, 200, MAX_ROWS))]]
        yield name, True, [[header[i] for i in chosen], *picked]
        yield name, False, picked


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    found = list(tables(arguments.folder))
    counts = {
        True: dict.fromkeys(("names", "values", "undecided"), 0),
        False: dict.fromkeys(("names", "values", "undecided"), 0),
    }
    for name, has_header, lines in cases(found, arguments.cases, random.Random(arguments.seed)):
        columns = [pa.array([row[i] or None for row in lines[1:]], pa.string()) for i in range(len(lines[0]))]
        reading = read_header(lines[0], columns)
        counts[has_header][reading.kind] += 1
        if arguments.verbose and reading.kind != ("names" if has_header else "values"):
            print(name, has_header, reading, lines[:3])
    print(f"{len(found)} tables")
    print(f"{'':12} {'names':>10} {'values':>10} {'undecided':>10}")
    for has_header, row in counts.items():
        print(f"{'with' if has_header else 'without':12}" + "".join(f" {n:>10}" for n in row.values()))
    print(f"rows lost: {counts[False]['names']}, names read as values: {counts[True]['values']}")


if __name__ == "__main__":
    main()
