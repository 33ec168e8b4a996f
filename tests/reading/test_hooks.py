"""Functions on batches: in order, in threads, resumed with the same random numbers; what they do wrong is said."""

import threading
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.hooks import take_rows
from shardkit.reading.length_buckets import LengthBuckets
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset
from tests.support.examples import draws

FEATURES = (
    make_feature("id", "int64"),
    make_feature("word", "string", nullable=True),
    make_feature("tokens", "int32", (None,)),
)
NUM_ROWS = 300


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    columns = {
        "id": range(NUM_ROWS),
        "word": [None if i % 4 == 0 else f"w{i}" for i in range(NUM_ROWS)],
        "tokens": [[i] * (i % 3) for i in range(NUM_ROWS)],
    }
    arrays = [pa.array(columns[f.name], f.arrow_type) for f in FEATURES]
    batch = pa.record_batch(arrays, arrow_schema(FEATURES))
    folder = tmp_path_factory.mktemp("hooks") / "set"
    return Splits(write_dataset(folder, FEATURES, {"train": batch}, num_shards=3, block_examples=8))["train"]


def double(batch):
    return {"id": batch["id"], "twice": batch["id"] * 2}


def is_odd(batch):
    return batch["id"] % 2 == 1


def with_noise(batch, rng):
    return {**batch, "noise": rng.random(2), "die": rng.integers(1, 7)}


def noise_of(reader):
    """What each example got, by its id."""
    return {
        number: (*noise, die)
        for batch in reader.map(lambda batch: batch if batch.mask is None else take_rows(batch, batch.mask))
        for number, noise, die in zip(batch["id"].tolist(), batch["noise"].tolist(), batch["die"].tolist(), strict=True)
    }


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_functions_work_in_the_order_of_their_calls_and_batches_keep_theirs(train, num_threads):
    settings_ = {"global_batch_size": 30, "seed": 3, "num_threads": num_threads}
    plain = [batch["id"].tolist() for batch in train.batches(**settings_)]
    reader = train.batches(**settings_).map(double).filter(lambda batch: batch["twice"] % 4 == 2)
    for batch, ids in zip(reader.map(lambda batch: {"half": batch["twice"] / 2}), plain, strict=True):
        assert list(batch) == ["half"]
        assert batch["half"].tolist() == [i for i in ids if i % 2]
    other_way = train.batches(**settings_).filter(is_odd).map(double)
    assert [b["twice"].tolist() for b in other_way] == [[2 * i for i in ids if i % 2] for ids in plain]


def test_a_reader_with_a_function_leaves_the_one_it_was_made_of_as_it_was(train):
    reader = train.batches(global_batch_size=30)
    iterator = iter(reader)
    next(iterator)
    mapped = reader.map(double)
    assert mapped.state() == reader.state()
    assert "word" in next(iterator)
    assert "twice" in next(iter(mapped))
    assert mapped.state() == reader.state()
    mapped.close()
    reader.close()


def test_functions_run_in_the_threads_ahead_of_the_consumer(train):
    threads, waiting = set(), threading.Barrier(2, timeout=30)

    def note(batch):
        threads.add(threading.current_thread().name)
        waiting.wait()
        return batch

    assert len(list(train.batches(global_batch_size=30, num_threads=2).map(note))) == 10
    assert threading.current_thread().name not in threads
    assert len(threads) == 2


def test_present_mask_and_lists_stay_with_their_rows(train):
    reader = train.batches(global_batch_size=128, remainder="pad", seed=1)
    plain, odd = list(reader), list(train.batches(global_batch_size=128, remainder="pad", seed=1).filter(is_odd))
    for whole, part in zip(plain, odd, strict=True):
        kept = np.flatnonzero(is_odd(whole))
        assert part["id"].tolist() == whole["id"][kept].tolist()
        assert part["word"].tolist() == whole["word"][kept].tolist()
        assert part.present["word"].tolist() == whole.present["word"][kept].tolist()
        assert [part["tokens"].row(i).tolist() for i in range(len(kept))] == [
            whole["tokens"].row(i).tolist() for i in kept
        ]
        assert (part.mask is None) == (whole.mask is None)
    assert odd[-1].mask.all()
    kept = next(iter(train.batches(global_batch_size=30).map(lambda batch: {"word": batch["word"]})))
    assert list(kept.present) == ["word"]
    renamed = next(iter(train.batches(global_batch_size=30).map(lambda batch: {"other": batch["word"]})))
    assert not renamed.present


def test_a_filter_leaves_the_number_of_steps_as_it_is(train):
    readers = [
        train.batches(global_batch_size=30, worker_index=i, num_workers=2).filter(lambda batch: batch["id"] < 20)
        for i in range(2)
    ]
    found = [[len(batch["id"]) for batch in reader] for reader in readers]
    assert len(found[0]) == len(found[1]) == readers[0].num_steps == 10
    assert sum(map(sum, found)) == 20
    assert 0 in found[0]
    none = next(iter(train.batches(global_batch_size=30).filter(lambda batch: np.zeros(30, bool))))
    assert none["tokens"].num_rows == len(none["word"]) == len(none.present["word"]) == 0


@given(data=st.data())
@settings(max_examples=draws(15), deadline=None)
def test_random_numbers_belong_to_the_example_whatever_reads_it(train, data):
    """Not to the batch, the worker or the thread that it falls to."""
    order = {"seed": data.draw(st.integers(0, 3)), "epoch": data.draw(st.integers(0, 2))}
    whole = noise_of(train.batches(global_batch_size=300, num_threads=0, **order).filter(is_odd).map(with_noise))
    num_workers = data.draw(st.sampled_from([1, 2, 4]))
    found = {}
    for index in range(num_workers):
        reader = train.batches(
            global_batch_size=num_workers * data.draw(st.shared(st.integers(5, 40), key="size")),
            worker_index=index,
            num_workers=num_workers,
            remainder="pad",
            num_threads=data.draw(st.integers(0, 3)),
            **order,
        )
        found |= noise_of(reader.filter(is_odd).map(with_noise))
    assert found == whole
    assert len(whole) == NUM_ROWS // 2


def test_a_resumed_run_goes_on_with_the_same_random_numbers_on_other_workers(train):
    whole = list(train.batches(global_batch_size=24, seed=9).map(with_noise))
    reader = train.batches(global_batch_size=24, seed=9).map(with_noise)
    iterator = iter(reader)
    for _ in range(5):
        next(iterator)
    state = reader.state()
    reader.close()
    parts = []
    for index in range(3):
        other = train.batches(global_batch_size=24, seed=9, worker_index=index, num_workers=3).map(with_noise)
        other.restore(state)
        parts.append([batch["noise"] for batch in other])
    for batch, *own in zip(whole[5:], *parts, strict=True):
        assert np.concatenate(own).tolist() == batch["noise"].tolist()


def test_seed_epoch_and_place_among_the_functions_change_the_random_numbers(train):
    def first(seed=0, epoch=0, num_before=0):
        reader = train.batches(global_batch_size=300, seed=seed, epoch=epoch)
        for _ in range(num_before):
            reader = reader.map(lambda batch: batch)
        return noise_of(reader.map(with_noise))

    values = [first(), first(seed=1), first(epoch=1), first(num_before=1)]
    assert all(len({str(found[number]) for found in values}) == 4 for number in (0, 17, 299))
    noise = np.array([value[:2] for value in values[0].values()])
    assert 0.45 < noise.mean() < 0.55
    assert 0 <= noise.min() < 0.02 < 0.98 < noise.max() < 1
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.2
    assert {value[2] for value in values[0].values()} == {1, 2, 3, 4, 5, 6}


def test_what_a_function_raises_reaches_the_consumer_with_a_note(train):
    def divide(batch):
        return {"id": batch["id"], "x": 1 / 0}

    for num_threads in (0, 2):
        reader = train.batches(global_batch_size=30, num_threads=num_threads, epoch=2).map(divide)
        with pytest.raises(ZeroDivisionError) as caught:
            list(reader)
        assert caught.value.__notes__[0].endswith(".divide, epoch 2, step 0")
        assert caught.value.__notes__[0].startswith("In the map function ")


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("kind", ["map", "filter"])
def test_a_function_cannot_end_the_epoch(train, kind, num_threads):
    """What ends an iterator is an error like any other, be it raised on purpose or by a bare `next`."""

    def takes_too_much(batch):
        return next(iter(()))

    reader = train.batches(global_batch_size=30, num_threads=num_threads)
    with pytest.raises(RuntimeError, match=f"StopIteration in the {kind} function .*takes_too_much, epoch 0, step 0"):
        list(getattr(reader, kind)(takes_too_much))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: None, "returned NoneType, not a Batch or a dict"),
        (lambda batch: {}, "no columns"),
        (lambda batch: {"id": batch["id"].tolist()}, "column 'id' is list, not a NumPy array"),
        (lambda batch: {"id": np.int64(3)}, "column 'id' is int64, not a NumPy array"),
        (lambda batch: {"id": batch["id"], "x": batch["id"][:-1]}, "'id' has 30, column 'x' has 29"),
        (lambda batch: {"word": batch["word"][:9]}, r"column 'word' has 9, present\['word'\] has 30"),
        (lambda batch: Batch({"word": batch["word"][:9]}, {}, np.ones(30, bool)), "'word' has 9, mask has 30"),
    ],
)
def test_a_wrong_result_of_a_map_is_said(train, function, words):
    with pytest.raises(UsageError, match=words) as caught:
        list(train.batches(global_batch_size=30).map(function))
    assert "lambda>, epoch 0, step 0" in str(caught.value)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: batch["id"], r"expected bool \[30\], got int64 \[30\]"),
        (lambda batch: batch["id"][:3] > 1, r"expected bool \[30\], got bool \[3\]"),
        (lambda batch: True, r"expected bool \[30\], got bool \[\]"),
        (lambda batch: None, r"expected bool \[30\], got object \[\]"),
    ],
)
def test_a_wrong_result_of_a_filter_is_said(train, function, words):
    with pytest.raises(UsageError, match=words):
        list(train.batches(global_batch_size=30).filter(function))


def test_what_is_no_function_is_refused_at_once(train):
    with pytest.raises(UsageError, match="str cannot be called"):
        train.batches(global_batch_size=30).map("double")


def test_a_map_may_change_the_rows_if_it_returns_a_batch(train):
    def each_twice(batch):
        return Batch({"id": np.repeat(batch["id"], 2)}, {})

    reader = train.batches(global_batch_size=30, seed=2).map(each_twice).map(with_noise)
    found = list(reader)
    assert [len(batch["noise"]) for batch in found] == [60] * 10
    assert len({tuple(noise) for batch in found for noise in batch["noise"].tolist()}) == 600
    again = list(train.batches(global_batch_size=30, seed=2).map(each_twice).map(with_noise))
    assert [batch["noise"].tolist() for batch in again] == [batch["noise"].tolist() for batch in found]


def test_lists_can_be_made_and_filtered(train):
    def spread(batch):
        return {"id": batch["id"], "lists": Ragged(np.repeat(batch["id"], 2), np.arange(0, 61, 2, dtype=np.int32))}

    for batch in train.batches(global_batch_size=30).map(spread).filter(is_odd):
        assert [batch["lists"].row(i).tolist() for i in range(len(batch["id"]))] == [[i, i] for i in batch["id"]]


def test_functions_on_a_split_are_those_on_its_readers_and_pass_to_another_process(train):
    source = ForkingPickler.loads(ForkingPickler.dumps(train.map(double).filter(is_odd)))
    expected = list(train.batches(global_batch_size=30, seed=4).map(double).filter(is_odd))
    found = list(source.batches(global_batch_size=30, seed=4))
    assert [batch["twice"].tolist() for batch in found] == [batch["twice"].tolist() for batch in expected]


def test_functions_see_batches_of_similar_length_too(train):
    buckets = LengthBuckets(feature="tokens", tokens_per_batch=40, boundaries=(1, 2))
    reader = train.batches(buckets=buckets).filter(is_odd).map(with_noise)
    found = noise_of(reader)
    assert {number % 2 for number in found} == {1}
    again = noise_of(train.batches(buckets=buckets, num_threads=0).filter(is_odd).map(with_noise))
    assert again == found
    assert next(iter(train.batches(buckets=buckets).map(double))).pad_to in (1, 2)
