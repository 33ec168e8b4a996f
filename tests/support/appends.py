"""Tables that are appended to a dataset, and what the dataset holds then."""

import math
import random
from pathlib import Path

import msgspec

from shardkit.conversion.option_forms import SplitShare
from tests.support.in_process import read_rows

SPLITS = tuple(
    SplitShare(name=name, fraction=fraction) for name, fraction in (("train", 0.7), ("validation", 0.2), ("test", 0.1))
)
HEADER = "id,x,word,group\n"


def write(path, first, num_rows):
    draw = random.Random(first)
    words = ["red", "green", "blue", ""]
    lines = (f"{i},{draw.random():.9f},{draw.choice(words)},{i // 7}\n" for i in range(first, first + num_rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + "".join(lines))


def more(data):
    write(data / "b.csv", 10_000, 3_000)
    write(data / "later" / "c.csv", 20_000, 1_000)


def rows_by_split(dataset):
    return {s.name: read_rows(dataset, s.name) for s in dataset.manifest.splits}


def split_of(dataset):
    return {row["id"]: name for name, rows in rows_by_split(dataset).items() for row in rows}


def files_of(dataset):
    root = Path(dataset.url, "data", dataset.manifest.fingerprint)
    return {p: (p.stat().st_mtime_ns, p.stat().st_ino, p.read_bytes()) for p in root.iterdir()}


def assert_alike(own, other, where=""):
    """Asserts that statistics are equal, floats but for rounding."""
    if isinstance(own, dict):
        assert own.keys() == other.keys(), where
        for key in own:
            assert_alike(own[key], other[key], f"{where}/{key}")
    elif isinstance(own, float):
        assert math.isclose(own, other, rel_tol=1e-9), (where, own, other)
    else:
        assert own == other, where


def statistics_of(dataset):
    return {s.name: msgspec.to_builtins(s.statistics) for s in dataset.manifest.splits}
