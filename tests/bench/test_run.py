"""What is counted while a reader is measured: batches and turns. Never how long it takes."""

import itertools

import pyarrow as pa
import pytest

from shardkit.bench.rates import Window, measure, summarize, take_turns
from shardkit.bench.run import BenchOptions, plan_work, read_batches
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

FEATURES = (make_feature("x", "int64"), make_feature("word", "string", nullable=True))


class Source:
    """Batches that are counted."""

    def __init__(self):
        self.num_opened = self.num_given = self.num_closed = 0

    def __call__(self):
        self.num_opened += 1
        try:
            for number in itertools.count():
                self.num_given += 1
                yield number
        finally:
            self.num_closed += 1


def dataset_of(folder, num_rows=100, **settings):
    columns = [pa.array(range(num_rows), pa.int64()), pa.array([None, "a"] * (num_rows // 2), pa.string())]
    batch = pa.record_batch(columns, schema=arrow_schema(FEATURES))
    return write_dataset(folder, FEATURES, {"train": batch}, **settings)


def test_the_first_batch_and_the_warm_up_are_not_counted():
    source = Source()
    window = measure(source, 0.01)
    assert source.num_given >= window.num_batches + 2
    assert window.num_batches >= 1
    assert source.num_opened == source.num_closed == 1


def test_the_slowest_reader_still_gives_one_batch():
    source = Source()
    assert measure(source, 0.0).num_batches == 1


def test_readers_take_turns_and_none_is_always_first():
    lines = []
    sources = {name: Source() for name in ("a", "b")}
    found = take_turns(sources, num_rounds=3, seconds=0.0, tell=lines.append)
    assert {name: len(windows) for name, windows in found.items()} == {"a": 3, "b": 3}
    assert [text[-1] for text in lines] == ["a", "b", "b", "a", "a", "b"]
    assert all(source.num_closed == 3 for source in sources.values())


def test_a_rate_is_the_median_of_its_rounds():
    windows = [Window(0.5, 10, 1.0, 2.0), Window(0.1, 30, 1.0, 2.0), Window(0.2, 40, 2.0, 1.0)]
    rate = summarize(windows, batch_size=1000, record_bytes=500)
    assert rate.examples_per_s == 20_000
    assert rate.examples_per_cpu_s == 15_000
    assert rate.record_mb_per_s == 10
    assert rate.first_batch_s == 0.2


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_come_epoch_after_epoch_as_the_reader_gives_them(tmp_path, shuffle):
    dataset = dataset_of(tmp_path / "set")
    options = BenchOptions(num_threads=1, batch_size=50, features=("word", "x"), shuffle=shuffle)
    work = plan_work(dataset, dataset.manifest.splits[0], options)
    batches = read_batches(work)
    found = list(itertools.islice(batches, 6))
    batches.close()
    assert [list(batch) for batch in found] == [["word", "x"]] * 6
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert sorted([*first["x"].tolist(), *second["x"].tolist()]) == list(range(100))
    assert (found[0]["x"].tolist() == list(range(50))) is not shuffle
    assert set(found[0]["word"]) == {b"a", b""}
