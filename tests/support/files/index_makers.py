"""Files that the tests of indexing write and read."""

import gzip
import itertools
from pathlib import Path

from shardkit.encoding.tfrecord import frame
from shardkit.indexing.listing import IndexOptions
from shardkit.indexing.open import index_tfrecords, list_for_index
from tests.support.files.tfrecord_makers import example


def rows(count, first=0):
    return [
        {"number": i, "weight": i / 8, "word": f"word {i % 7}", "parts": list(range(i % 4))}
        for i in range(first, first + count)
    ]


def framed(items):
    return [frame(example(**row)) for row in items]


def write_plain(path: Path, items) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(framed(items)))
    return path


def write_gzip(path: Path, items, num_members=1, tail=b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    records = framed(items)
    cuts = [len(records) * i // num_members for i in range(num_members + 1)]
    members = [gzip.compress(b"".join(records[a:b])) for a, b in itertools.pairwise(cuts)]
    path.write_bytes(b"".join(members) + tail)
    return path


def index(*patterns, num_threads=1, **options):
    settings = IndexOptions(**options)
    named = [str(p) for p in patterns]
    return index_tfrecords(named, list_for_index(named, settings), settings, num_threads=num_threads)


def contents(folder: Path):
    """Returns bytes and time of every file that is no manifest."""
    return {
        p: (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.parent.name != "manifests"
    }


def plain_values(split):
    """Returns the examples of a split as Python values."""
    return [{name: getattr(v, "tolist", lambda v=v: v)() for name, v in row.items()} for row in split]
