"""Large JSON arrays are cut, which changes neither rows nor what is said of damage."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import DamagedFileError
from shardkit.features import make_feature
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.json.array_source import JsonArraySource
from tests.support.files.json_array_makers import PROPERTY, read, write


def layouts(rows):
    yield json.dumps(rows)
    yield json.dumps(rows, indent=2)
    yield "\ufeff " + json.dumps(rows, separators=(",", ":")) + "\n[] [\n]"
    yield "\n".join(json.dumps(row, indent=1) for row in rows)
    yield f"{json.dumps(rows[: len(rows) // 2])}\n{json.dumps(rows[len(rows) // 2 :])}"
    yield f"{json.dumps(rows[0])} {json.dumps(rows[1:])}"


@pytest.mark.full
@PROPERTY
@given(
    texts=st.lists(st.one_of(st.text('[]{}",\\ \n\u00e9', max_size=9), st.none()), min_size=1, max_size=12),
    split_bytes=st.integers(8, 120),
    block_bytes=st.integers(1, 60),
    bad=st.sets(st.integers(0, 11), max_size=3),
)
def test_cuts_change_neither_rows_nor_what_is_said_of_bad_ones(tmp_path, texts, split_bytes, block_bytes, bad):
    features = (make_feature("i", "int64"), make_feature("s", "string", nullable=True))
    rows = [{"i": i if i not in bad else "x", "s": text} for i, text in enumerate(texts)]
    for text in layouts(rows):
        path = write(tmp_path, text)
        files, options = list_inputs([str(path)]).files, SourceOptions(tolerates_bad_rows=True)
        cut = JsonArraySource(split_bytes=split_bytes, batch_bytes=block_bytes)
        splits = cut.split(files, options)
        assert sum(s.num_bytes for s in splits) == files[0].num_bytes
        _, whole_rows, whole_bad = read(path, features, JsonArraySource(split_bytes=10**6), tolerates_bad_rows=True)
        _, cut_rows, cut_bad = read(path, features, cut, tolerates_bad_rows=True)
        assert cut_rows == whole_rows == [row for row in rows if row["i"] != "x"]
        assert cut_bad == whole_bad
        assert [r.position.split(",")[0] for r in cut_bad] == [f"row {i + 1}" for i in sorted(bad) if i < len(rows)]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_large_array_is_many_splits_and_a_compressed_one_is_one(tmp_path, indent):
    rows = [{"i": i, "s": "[{" * (i % 5)} for i in range(5_000)]
    text = json.dumps(rows, indent=indent)
    source = JsonArraySource(split_bytes=20_000)
    path = write(tmp_path, text)
    files = list_inputs([str(path)]).files
    splits = source.split(files, SourceOptions())
    assert len(splits) >= len(text) // 40_000
    assert all(s.num_bytes < 40_000 for s in splits)
    assert read(path, source=source)[1] == rows
    packed = write(tmp_path, gzip.compress(text.encode()), "b.json")
    assert len(source.split(list_inputs([str(packed)]).files, SourceOptions())) == 1


def test_damage_in_an_array_that_is_cut_is_found_before_work(tmp_path):
    rows = ",".join(json.dumps({"i": i}) for i in range(2_000))
    path = write(tmp_path, f"[{rows},{rows}")
    with pytest.raises(DamagedFileError, match="the text ends within an array"):
        read(path, source=JsonArraySource(split_bytes=1_000))
    path = write(tmp_path, f"[{rows} {rows}]")
    with pytest.raises(DamagedFileError, match="not valid JSON"):
        JsonArraySource(split_bytes=1_000).split(list_inputs([str(path)]).files, SourceOptions())


def outcome(path: Path, features, source, **options):
    """Returns the rows and what was rejected, or that the file is damaged."""
    try:
        _, rows, rejected = read(path, features, source, tolerates_bad_rows=True, **options)
    except DamagedFileError:
        return "damaged"
    return rows, rejected


def mutated(rng: random.Random) -> bytes:
    rows = [{"i": i, "s": rng.choice(["x", '"', "[{", "\\", "}]", None])} for i in range(rng.randrange(1, 30))]
    data = bytearray(rng.choice(list(layouts(rows))).encode())
    for _ in range(rng.randrange(0, 4)):
        at, kind = rng.randrange(len(data)), rng.randrange(4)
        if kind == 0:
            data[at] = rng.choice(b'[]{}",:\\ \n0x\xff\0')
        elif kind == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randrange(1, 30)]
        else:
            del data[at:]
        data = data or bytearray(b"[")
    return bytes(data)


def check_mutation(folder: Path, rng: random.Random) -> bool:
    path = write(folder, mutated(rng))
    features = (make_feature("i", "int64", nullable=True), make_feature("s", "string", nullable=True))
    allows = rng.random() < 0.3
    cut = JsonArraySource(split_bytes=rng.randrange(8, 200), batch_bytes=rng.randrange(1, 80))
    whole = outcome(path, features, JsonArraySource(split_bytes=10**6), allows_duplicate_keys=allows)
    assert outcome(path, features, cut, allows_duplicate_keys=allows) == whole, path.read_bytes()
    return whole == "damaged"


@pytest.mark.full
def test_mutated_files_read_the_same_however_they_are_cut(tmp_path):
    rng = random.Random(7)
    num_damaged = sum(check_mutation(tmp_path, rng) for _ in range(300))
    assert 30 < num_damaged < 270
