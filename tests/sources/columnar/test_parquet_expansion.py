"""Small Parquet files that stand for much: read in bounded memory where they can be, refused by the cap where not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.encoding.parquet_footer import parse_row_groups
from shardkit.errors import BadInputError, DamagedFileError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.columnar.parquet import ParquetSource
from shardkit.sources.columnar.parquet_expansion import pages
from tests.support.examples import draws
from tests.support.files.parquet_makers import read, read_parts, write

PLAIN = {"compression": "zstd", "store_schema": False}

_READ = """
import json, resource, sys
from shardkit.errors import ShardkitError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.columnar.parquet import ParquetSource

source, options = ParquetSource(), SourceOptions(tolerates_bad_rows=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
counts = {}
for path in sys.argv[1:]:
    files, num_rows = list_inputs([path]).files, 0
    try:
        features = source.infer(files, options)
        for split in source.split(files, options):
            for part in source.read(split, files, features, options):
                num_rows += part.batch.num_rows
        counts[path] = num_rows
    except ShardkitError as error:
        counts[path] = str(error)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([counts, (after - before) // 1024]))
"""


def texts(values: list[str], places: np.ndarray) -> pa.Table:
    return pa.table({"text": pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(values))})


def same_texts(value: str, num_values: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_values, np.int32)), pa.array([value]))


def lists(lengths: list[int], values: pa.Array) -> pa.Table:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table({"list": pa.ListArray.from_arrays(pa.array(offsets), values)})


def read_alone(*paths: Path) -> tuple[dict[str, int | str], int]:
    """Returns the rows of each file, or its error, by name, and the MiB that a fresh process needed for them."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, *map(str, paths)], capture_output=True, text=True, timeout=120, check=True
    )
    counts, peak = json.loads(done.stdout)
    return {Path(path).name: count for path, count in counts.items()}, peak


@pytest.mark.full
def test_what_repeats_is_read_in_little_memory(tmp_path):
    num_rows = 65_536
    late = np.r_[np.zeros(100, np.int32), np.ones(num_rows - 100, np.int32)]
    # Twice 76 MiB, 3 GiB, 10 MiB and 1.9 GiB.
    constant = pa.table({"n": np.full(10_000_000, 7)})
    masks = lists([512] * 20_000, pa.array(np.ones(512 * 20_000, np.int8)))
    paths = [
        write(tmp_path, constant, "constant.parquet", row_group_size=10_000_000, **PLAIN),
        write(tmp_path, constant, "plain.parquet", row_group_size=10_000_000, use_dictionary=False, **PLAIN),
        write(tmp_path, texts(["a", "z" * 50_000], late), "late.parquet", **PLAIN),
        write(tmp_path, masks, "masks.parquet", **PLAIN),
        write(tmp_path, lists([1] * 100 + [1000] * 200, same_texts("z" * 10_000, 200_100)), "texts.parquet", **PLAIN),
    ]
    assert sum(path.stat().st_size for path in paths) < 4 * 2**20
    counts, peak = read_alone(*paths)
    assert counts == {
        "constant.parquet": 10_000_000,
        "plain.parquet": 10_000_000,
        "late.parquet": num_rows,
        "masks.parquet": 20_000,
        "texts.parquet": 300,
    }
    assert peak < 400


@pytest.mark.full
def test_a_list_of_much_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path, lists([1, 1, 50_000_000], pa.array(np.zeros(50_000_002, np.int64))), **PLAIN)
    assert path.stat().st_size < 2000
    counts, peak = read_alone(path)
    message = counts["a.parquet"]
    assert "the compressed content is too large in a.parquet, column list.list.element" in message
    assert "--max-expansion" in message
    assert peak < 100


def test_a_list_of_much_is_refused_though_the_header_of_its_page_is_long(tmp_path):
    values = pa.repeat(pa.scalar(b"q" * 3000, pa.binary(3000)), 25_000)
    path = write(tmp_path, lists([25_000], values), **PLAIN)
    assert path.stat().st_size < 20_000
    with pytest.raises(DamagedFileError, match=r"too large in a\.parquet, column list\..*--max-expansion"):
        read(path, max_record_bytes=2**20)


@pytest.mark.full
def test_a_page_of_much_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path, {"b": pa.array(["q" * 150_000_000])}, use_dictionary=False, **PLAIN)
    assert path.stat().st_size < 20_000
    counts, peak = read_alone(path)
    assert "--max-expansion" in counts["a.parquet"]
    assert peak < 100


@pytest.mark.full
def test_the_cap_can_be_raised(tmp_path):
    path = write(tmp_path, {"b": pa.array(["q" * 80_000_000])}, use_dictionary=False, **PLAIN)
    with pytest.raises(DamagedFileError, match="--max-expansion"):
        read(path)
    options = SourceOptions(max_expansion=100_000)
    files = list_inputs([str(path)], options).files
    source = ParquetSource()
    features = source.infer(files, options)
    (split,) = source.split(files, options)
    (part,) = source.read(split, files, features, options)
    assert len(part.batch.column(0)[0].as_py()) == 80_000_000


def test_a_row_of_long_texts_is_too_large_without_being_spelled_out(tmp_path):
    path = write(tmp_path, lists([1] * 100 + [300_000], same_texts("z" * 3000, 300_100)), **PLAIN)
    with pytest.raises(BadInputError, match=r"a row is too large in a\.parquet, row 101: 858 MiB"):
        read(path)
    (good, bad) = read_parts(path, tolerates_bad_rows=True)
    assert (good.batch.num_rows, bad.batch.num_rows) == (100, 0)
    assert [row.position for row in bad.rejected] == ["row 101"]
    assert len(bad.rejected[0].raw) <= 2**20


@settings(max_examples=draws(30), deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1, max_size=200),
    st.sampled_from([None, "zstd"]),
    st.sampled_from(["1.0", "2.0"]),
    st.booleans(),
    st.integers(50, 500),
)
def test_pages_are_those_that_the_writer_counts(tmp_path_factory, values, codec, version, has_dictionary, page_bytes):
    folder = tmp_path_factory.mktemp("pages")
    nested = [[] if value is None else [value] for value in values]
    path = write(
        folder,
        {"a": pa.array(values, pa.string()), "b": pa.array(nested, pa.list_(pa.string()))},
        compression=codec,
        data_page_version=version,
        use_dictionary=has_dictionary,
        data_page_size=page_bytes,
        write_batch_size=10,
    )
    metadata = pq.read_metadata(path)
    with path.open("rb") as raw:
        data = raw.read()
        groups = parse_row_groups(data[-8 - metadata.serialized_size : -8])
        for number, group in enumerate(groups):
            for leaf, chunk in enumerate(group.columns):
                expected = metadata.row_group(number).column(leaf)
                found = list(pages(raw, chunk.start, chunk.num_bytes))
                assert sum(page.num_values for page in found) == expected.num_values == chunk.num_values
                assert sum(page.num_bytes for page in found) < expected.total_compressed_size == chunk.num_bytes
                assert sum(page.num_uncompressed_bytes for page in found) < expected.total_uncompressed_size
                assert chunk.num_uncompressed_bytes == expected.total_uncompressed_size
                assert chunk.has_dictionary == expected.has_dictionary_page
    assert read(path)[1]["a"].to_pylist() == values
