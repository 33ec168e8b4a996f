"""Blocks of a dataset: each alone, many in threads, always in the order asked for."""

import gzip
import itertools
import signal
import tempfile
import threading
from pathlib import Path

import fsspec
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import map_blocks, read_block
from shardkit.dataset.open import open_dataset
from shardkit.encoding.codec import BLOCK_BYTES
from shardkit.encoding.tfrecord import iter_records
from shardkit.errors import DamageError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset
from tests.support.examples import draws

FEATURES = (make_feature("id", "int64"), make_feature("word", "string"), make_feature("noise", "bytes"))


def write(folder, num_rows, **options):
    noise = [bytes((i * 7919 + k * k) % 251 for k in range(i % 90)) for i in range(num_rows)]
    columns = [range(num_rows), [f"word {i % 5}" for i in range(num_rows)], noise]
    arrays = [pa.array(c, f.arrow_type) for c, f in zip(columns, FEATURES, strict=True)]
    return write_dataset(folder, FEATURES, {"train": pa.record_batch(arrays, arrow_schema(FEATURES))}, **options)


@pytest.fixture(params=["gzip", "none"])
def dataset(request, tmp_path):
    return write(tmp_path / "set", 60, num_shards=3, block_examples=4, compression=request.param)


@pytest.fixture
def remote(dataset):
    store = fsspec.filesystem("memory")
    for path in Path(dataset.url).rglob("*"):
        if path.is_file():
            store.pipe_file(f"/blocks/{path.relative_to(dataset.url)}", path.read_bytes())
    yield open_dataset("memory://blocks")
    store.rm("/blocks", recursive=True)


def all_blocks(dataset):
    return [ref for shard in dataset.shards for ref in list_blocks(shard)]


def framed(dataset, shard):
    content = Path(dataset.shard_url(shard)).read_bytes()
    return gzip.decompress(content) if dataset.manifest.compression == "gzip" else content


def replace_shard(dataset, ref, content):
    path = Path(dataset.url, ref.path)
    path.unlink()
    if content is not None:
        path.write_bytes(content)


@given(
    num_rows=st.integers(0, 40),
    num_shards=st.integers(1, 4),
    block_examples=st.integers(1, 9),
    compression=st.sampled_from(["gzip", "none"]),
    data=st.data(),
)
@settings(max_examples=draws(40), deadline=None)
def test_blocks_are_the_shards(num_rows, num_shards, block_examples, compression, data):
    with tempfile.TemporaryDirectory() as folder:
        options = {"num_shards": num_shards, "block_examples": block_examples, "compression": compression}
        dataset = write(Path(folder, "set"), num_rows, **options)
        for shard in dataset.shards:
            blocks = [read_block(dataset, ref) for ref in list_blocks(shard)]
            assert b"".join(blocks) == framed(dataset, shard)
            for ref, block in zip(list_blocks(shard), blocks, strict=True):
                assert len(list(iter_records(block, "x"))) == ref.num_examples
        refs = all_blocks(dataset)
        asked = data.draw(st.lists(st.sampled_from(refs), max_size=30)) if refs else []
        num_threads, max_ahead = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 9)))
        found = map_blocks(dataset, asked, lambda r, b: (r, b), num_threads=num_threads, max_ahead=max_ahead)
        assert list(found) == [(ref, read_block(dataset, ref)) for ref in asked]


def test_a_block_says_where_it_is(dataset):
    refs = list_blocks(dataset.shards[1])
    assert [(r.split, r.shard_index, r.block_index) for r in refs] == [("train", 1, i) for i in range(5)]
    content = Path(dataset.url, refs[0].path).read_bytes()
    assert refs[0].start == (10 if dataset.manifest.compression == "gzip" else 0)
    for ref, following in itertools.pairwise(refs):
        assert ref.start + ref.num_bytes == following.start
    assert len(content) - refs[-1].start - refs[-1].num_bytes == refs[0].start


@pytest.mark.parametrize("max_ahead", [1, 3, 64])
def test_blocks_of_a_store_are_those_of_the_folder(dataset, remote, max_ahead):
    refs = all_blocks(dataset)
    expected = [read_block(dataset, ref) for ref in refs]
    assert [read_block(remote, ref) for ref in refs] == expected
    for order in (1, -1):
        found = map_blocks(remote, refs[::order], lambda _, b: b, num_threads=2, max_ahead=max_ahead)
        assert list(found) == expected[::order]


@pytest.mark.parametrize("where", ["folder", "store"])
def test_a_cut_off_shard_is_named_in_its_place(dataset, request, where):
    refs = all_blocks(dataset)
    last = list_blocks(dataset.shards[0])[-1]
    if where == "store":
        dataset = request.getfixturevalue("remote")
        path = f"/blocks/{last.path}"
        store = fsspec.filesystem("memory")
        store.pipe_file(path, store.cat_file(path)[: last.start + 1])
    else:
        replace_shard(dataset, last, Path(dataset.url, last.path).read_bytes()[: last.start + 1])
    found = map_blocks(dataset, refs, lambda ref, _: ref, num_threads=3, max_ahead=30)
    assert list(itertools.islice(found, last.block_index)) == refs[: last.block_index]
    with pytest.raises(
        DamageError, match=rf"{last.path}, block {last.block_index}.* is cut off|cut off in .*{last.path}"
    ):
        next(found)
    with pytest.raises(StopIteration):
        next(found)


def test_a_missing_shard_is_named(dataset, remote):
    ref = list_blocks(dataset.shards[2])[0]
    replace_shard(dataset, ref, None)
    fsspec.filesystem("memory").rm(f"/blocks/{ref.path}")
    for opened in (dataset, remote):
        with pytest.raises(DamageError, match=rf"missing in .*{ref.path}, block 0"):
            read_block(opened, ref)
        with pytest.raises(DamageError, match="missing"):
            list(map_blocks(opened, list_blocks(dataset.shards[2]), lambda _, b: b, num_threads=2, max_ahead=8))


def test_a_lying_index_is_damage_and_allocates_nothing(dataset):
    ref = list_blocks(dataset.shards[0])[1]
    for lie in (
        {"num_bytes": 2**60},
        {"num_uncompressed_bytes": 2**62},
        {"num_uncompressed_bytes": 1},
        {"num_bytes": ref.num_bytes - 1},
        {"start": 2**60},
    ):
        with pytest.raises(DamageError, match=rf"{ref.path}, block 1"):
            read_block(dataset, msgspec.structs.replace(ref, **lie))


def test_damaged_bytes_are_named(tmp_path):
    dataset = write(tmp_path / "set", 60, num_shards=1, block_examples=20)
    ref = list_blocks(dataset.shards[0])[2]
    content = bytearray(Path(dataset.url, ref.path).read_bytes())
    content[ref.start] = 0x07  # A final block of a reserved type.
    replace_shard(dataset, ref, bytes(content))
    with pytest.raises(DamageError, match=rf"{ref.path}, block 2"):
        read_block(dataset, ref)


def test_what_the_function_raises_comes_out_in_its_place(dataset):
    refs = all_blocks(dataset)

    def refuse(ref, block):
        if ref is refs[5]:
            raise KeyError("five")
        return ref.start

    found = map_blocks(dataset, refs, refuse, num_threads=4, max_ahead=12)
    assert list(itertools.islice(found, 5)) == [ref.start for ref in refs[:5]]
    with pytest.raises(KeyError, match="five"):
        next(found)


def blocks_threads():
    return [t for t in threading.enumerate() if t.name.startswith("shardkit-blocks")]


@pytest.mark.parametrize("end", ["close", "interrupt", "error", "exhausted"])
def test_threads_end_with_the_iterator(dataset, end):
    refs = all_blocks(dataset)
    num_calls = 0

    def count(ref, block):
        nonlocal num_calls
        num_calls += 1
        return block

    if end == "error":
        found = map_blocks(dataset, refs[:9], lambda _, b: 1 // 0, num_threads=2, max_ahead=6)
        with pytest.raises(ZeroDivisionError):
            next(found)
    elif end == "exhausted":
        found = map_blocks(dataset, refs[:9], count, num_threads=2, max_ahead=6)
        assert len(list(found)) == 9
    else:
        found = map_blocks(dataset, itertools.cycle(refs), count, num_threads=2, max_ahead=6)
        next(found)
        threads = blocks_threads()
        assert threads
        if end == "close":
            found.close()
            # Which Python's collector may do as well: it must not wait.
            for thread in threads:
                thread.join(60)
        else:
            with pytest.raises(KeyboardInterrupt):
                found.throw(KeyboardInterrupt)
    assert not blocks_threads()
    assert num_calls <= 9
    assert next(found, None) is None
    assert not blocks_threads()


def test_an_interrupt_ends_reading(dataset):
    refs = all_blocks(dataset)
    main_thread = threading.get_ident()

    def interrupt(ref, block):
        if ref is refs[7]:
            signal.pthread_kill(main_thread, signal.SIGINT)
            is_over.wait(60)

    is_over = threading.Event()
    found = map_blocks(dataset, itertools.cycle(refs), interrupt, num_threads=2, max_ahead=4)
    # The block that waits ends when the interrupt has reached the consumer.
    handler = signal.signal(signal.SIGINT, lambda *_: (is_over.set(), signal.default_int_handler(signal.SIGINT, None)))
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in found:
                pass
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not blocks_threads()


@pytest.mark.parametrize(("num_threads", "max_ahead"), [(1, 1), (2, 2), (2, 5), (3, 2)])
def test_no_more_is_begun_than_allowed(dataset, num_threads, max_ahead):
    lock, begun, taken, most = threading.Lock(), 0, 0, 0

    def count(ref, block):
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun - taken)

    for _ in map_blocks(dataset, all_blocks(dataset) * 5, count, num_threads=num_threads, max_ahead=max_ahead):
        # What the consumer holds counts until it asks for the next.
        with lock:
            taken += 1
    assert most <= max_ahead + 1
    assert begun == len(all_blocks(dataset)) * 5


def test_blocks_are_worked_on_at_the_same_time(dataset):
    meeting = threading.Barrier(3, timeout=60)
    refs = all_blocks(dataset)[:12]
    found = map_blocks(dataset, refs, lambda *_: meeting.wait(), num_threads=3, max_ahead=6)
    assert sorted(list(found)[:3]) == [0, 1, 2]


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (-1, 5)])
def test_numbers_below_one_are_refused(dataset, numbers):
    with pytest.raises(UsageError, match="at least 1"):
        map_blocks(dataset, [], lambda _, b: b, num_threads=numbers[0], max_ahead=numbers[1])


@pytest.mark.full
def test_blocks_of_a_mebibyte_are_read(tmp_path):
    dataset = write(tmp_path / "set", 30_000, num_shards=1, block_examples=15_000)
    refs = all_blocks(dataset)
    assert refs[0].num_uncompressed_bytes > BLOCK_BYTES
    found = map_blocks(dataset, refs, lambda _, b: b, num_threads=2, max_ahead=2)
    assert b"".join(found) == framed(dataset, dataset.shards[0])


def test_blocks_that_changed_places_are_found(dataset):
    """Shards of the same sizes without compression: nothing but the CRC32C of a block tells one from another."""
    first, other = (refs[0] for refs in map(list_blocks, dataset.shards[:2]))
    path, other_path = Path(dataset.url, first.path), Path(dataset.url, other.path)
    size = min(first.num_bytes, other.num_bytes)
    content = bytearray(path.read_bytes())
    content[first.start : first.start + size] = other_path.read_bytes()[other.start : other.start + size]
    replace_shard(dataset, first, bytes(content))
    with pytest.raises(DamageError, match=f"block is damaged in .*{first.path}, block 0.*CRC32C.*shardkit verify"):
        read_block(dataset, first)
