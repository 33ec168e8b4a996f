"""Mixtures: exact proportions for ever, the same batches for any number of workers, every example of a source alike."""

import json
from collections import Counter
from fractions import Fraction
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardkit
from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.mixture_order import MixtureOrder, integer_weights
from shardkit.reading.order import OrderOptions, Worker
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset
from tests.support.examples import draws

ID = make_feature("id", "int64")
BIG, MIDDLE, TINY = range(1000), range(10_000, 10_120), range(20_000, 20_007)


def write(folder, columns, features=(ID,), **options):
    arrays = [pa.array(columns[f.name], f.arrow_type) for f in features]
    batch = pa.record_batch(arrays, arrow_schema(features))
    options = {"num_shards": 2, "block_examples": 6, **options}
    return Splits(write_dataset(folder, features, {"train": batch}, **options))["train"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    return [write(folder / name, {"id": ids}) for name, ids in (("big", BIG), ("middle", MIDDLE), ("tiny", TINY))]


@pytest.fixture(scope="module")
def mixture(sources):
    big, middle, tiny = sources
    return shardkit.mix({big: 0.6, middle: 0.3, tiny: 0.1})


def read_ids(reader):
    return [batch["id"].tolist() for batch in reader]


@st.composite
def orders(draw, num_sources=None, max_turns=3):
    num_turns = draw(st.integers(1, max_turns))
    num_workers = draw(st.integers(1, 4))
    options = OrderOptions(
        global_batch_size=num_workers * draw(st.integers(1, 40)),
        num_lanes=num_workers * num_turns * draw(st.integers(1, 12)),
        num_turns=num_turns,
    )
    count = draw(st.integers(2, 6)) if num_sources is None else num_sources
    weights = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(1, 400), min_size=count, max_size=count))
    return weights, sizes, options, num_workers


def positions(rows):
    return [(source, position) for source, start, stop in rows for position in range(start, stop)]


def distances(weights, options, num_steps, order):
    num_rows = num_steps * options.global_batch_size
    counts = order.num_read(num_steps)
    assert sum(counts) == num_rows
    return [abs(c - Fraction(num_rows * w, sum(weights))) for c, w in zip(counts, weights, strict=True)]


@given(orders(num_sources=2, max_turns=1), st.integers(0, 10**15))
def test_two_sources_are_never_a_row_from_their_proportions(case, num_steps):
    weights, sizes, options, _ = case
    order = MixtureOrder(weights, sizes, options)
    bound = 1 if options.global_batch_size % options.num_lanes else Fraction(1, 2)
    assert max(distances(weights, options, num_steps, order)) <= bound


@given(orders(), st.integers(0, 10**15))
def test_more_sources_stay_within_a_few_rows_of_their_proportions(case, num_steps):
    weights, sizes, options, _ = case
    order = MixtureOrder(weights, sizes, options)
    assert max(distances(weights, options, num_steps, order)) <= 2 * len(weights) + options.num_turns


@given(orders(), st.integers(0, 200), st.integers(0, 2))
@settings(max_examples=draws(60))
def test_any_number_of_workers_gets_the_same_global_batches_of_equal_parts(case, first_step, num_more):
    weights, sizes, options, num_workers = case
    order = MixtureOrder(weights, sizes, options)
    for step in range(first_step, first_step + num_more + 1):
        parts = [positions(order.rows(step, Worker(index=i, num_workers=num_workers))) for i in range(num_workers)]
        assert list(chain.from_iterable(parts)) == positions(order.rows(step, Worker()))
        assert {len(part) for part in parts} == {options.global_batch_size // num_workers}


@given(orders(max_turns=2), st.integers(1, 60))
@settings(max_examples=draws(60), deadline=None)
def test_steps_read_each_row_of_a_source_once_and_count_what_they_read(case, num_steps):
    weights, sizes, options, _ = case
    order = MixtureOrder(weights, sizes, options)
    found = list(chain.from_iterable(positions(order.rows(step, Worker())) for step in range(num_steps)))
    assert len(set(found)) == len(found) == num_steps * options.global_batch_size
    counts = Counter(source for source, _ in found)
    assert [counts[i] for i in range(len(weights))] == order.num_read(num_steps)


@given(orders(num_sources=2, max_turns=1), st.integers(1, 150))
@settings(max_examples=draws(100), deadline=None)
def test_no_example_is_far_ahead_of_another_of_its_source(case, num_steps):
    """A lane is at most one row from its even pace, and all lanes read one sequence of epochs, run beside run."""
    weights, sizes, options, _ = case
    order = MixtureOrder(weights, sizes, options)
    found = chain.from_iterable(positions(order.rows(step, Worker())) for step in range(num_steps))
    times = [Counter(), Counter()]
    for source, position in found:
        times[source][position % sizes[source]] += 1
    for size, counts in zip(sizes, times, strict=True):
        read = [counts[i] for i in range(size)]
        # A round of a source with fewer examples than a batch spans several epochs; a row of each lane may be open.
        slack = 3 if size >= 2 * options.global_batch_size else 3 + 2 * min(options.num_lanes, sum(read)) // size
        assert max(read) - min(read) <= max(slack, 3)


def test_weights_are_the_decimal_numbers_they_are_written_as():
    assert integer_weights([0.7, 0.3]) == [7, 3]
    assert integer_weights([1, 2.5, Fraction(1, 3)]) == [6, 15, 2]
    assert integer_weights([1e-9, 1]) == [1, 10**9]


@pytest.mark.full
def test_what_is_read_has_the_proportions_and_each_example_comes_as_often(mixture):
    reader = mixture.batches(global_batch_size=96, num_steps=150, source_feature="source", seed=2)
    batches = list(reader)
    assert len(batches) == reader.num_steps == 150
    ids = np.concatenate([batch["id"] for batch in batches])
    source = np.concatenate([batch["source"] for batch in batches])
    assert source.dtype == np.int32
    assert (ids // 10_000).tolist() == source.tolist()
    for index, (examples, share) in enumerate(zip((BIG, MIDDLE, TINY), (0.6, 0.3, 0.1), strict=True)):
        own = Counter(ids[source == index].tolist())
        assert abs(sum(own.values()) - share * 96 * 150) <= 3
        assert own.keys() == set(examples)
        assert max(own.values()) - min(own.values()) <= 3
    for batch in batches:
        assert abs((batch["source"] == 0).sum() - 0.6 * 96) <= 4


@given(data=st.data())
@settings(max_examples=draws(15), deadline=None)
def test_workers_and_threads_change_no_global_batch(mixture, data):
    settings_ = {
        "global_batch_size": 12 * data.draw(st.integers(1, 9)),
        "seed": data.draw(st.integers(0, 5)),
        "shuffle": data.draw(st.booleans()),
        "num_lanes": data.draw(st.sampled_from([12, 24, 48])),
        "num_steps": 12,
    }
    whole = read_ids(mixture.batches(**settings_, num_threads=0))
    num_workers = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    parts = [
        read_ids(mixture.batches(**settings_, worker_index=i, num_workers=num_workers, num_threads=2))
        for i in range(num_workers)
    ]
    assert [list(chain.from_iterable(part)) for part in zip(*parts, strict=True)] == whole


def test_a_run_goes_on_with_other_numbers_of_workers_and_in_later_epochs(mixture):
    settings_ = {"global_batch_size": 48, "seed": 5, "num_steps": 25, "num_epochs": 3}
    whole = read_ids(mixture.batches(**settings_))
    assert len(whole) == 75
    found, state = [], None
    for num_workers, num_steps in ((2, 11), (4, 30), (1, 1000)):
        readers = [mixture.batches(**settings_, worker_index=i, num_workers=num_workers) for i in range(num_workers)]
        for reader in readers:
            if state is not None:
                reader.restore(json.loads(state))
        for _, batches in zip(range(num_steps), zip(*readers, strict=True), strict=False):
            found.append([number for batch in batches for number in batch["id"].tolist()])
        states = {json.dumps(reader.state()) for reader in readers}
        assert len(states) == 1
        state = states.pop()
        assert len(state) < 1000
        for reader in readers:
            reader.close()
    assert found == whole


def test_an_epoch_of_a_mixture_goes_on_where_the_last_one_ended(mixture):
    without_end = mixture.batches(global_batch_size=48, seed=1)
    endless = [batch["id"].tolist() for _, batch in zip(range(40), without_end, strict=False)]
    without_end.close()
    assert read_ids(mixture.batches(global_batch_size=48, seed=1, num_steps=20, num_epochs=2)) == endless
    assert read_ids(mixture.batches(global_batch_size=48, seed=1, num_steps=20, epoch=1)) == endless[20:]


def test_far_steps_are_found_without_those_before_them(mixture):
    reader = mixture.batches(global_batch_size=48)
    reader.restore({**reader.state(), "step": 10**13})
    assert len(next(iter(reader))["id"]) == 48
    assert reader.state()["step"] == 10**13 + 1
    reader.close()


@pytest.mark.parametrize("num_turns", [2, 3])
def test_processes_that_take_turns_keep_the_proportions(mixture, num_turns):
    readers = [
        mixture.batches(global_batch_size=32, num_steps=100, turn=turn, num_turns=num_turns)
        for turn in range(num_turns)
    ]
    found = [read_ids(reader) for reader in readers]
    assert [len(part) for part in found] == [len(range(turn, 100, num_turns)) for turn in range(num_turns)]
    ids = list(chain.from_iterable(chain.from_iterable(found)))
    for index, share in enumerate((0.6, 0.3, 0.1)):
        assert abs(sum(number // 10_000 == index for number in ids) - share * 3200) <= 3 + num_turns
    counts = Counter(number for number in ids if number < 1000)
    assert len(counts) == 1000
    assert max(counts.values()) <= 4


def test_epochs_of_a_source_have_orders_of_their_own_unless_stored_order_is_asked_for(sources):
    (_, middle, _) = sources
    mixture = shardkit.mix([(middle, 1)])
    steps = read_ids(mixture.batches(global_batch_size=40, num_steps=6, num_lanes=1))
    first, second = list(chain(*steps[:3])), list(chain(*steps[3:]))
    assert sorted(first) == sorted(second) == list(MIDDLE)
    assert first != second
    stored = read_ids(mixture.batches(global_batch_size=40, num_steps=6, num_lanes=1, shuffle=False))
    assert list(chain(*stored)) == [*MIDDLE, *MIDDLE]


def test_a_split_may_be_in_it_twice_and_is_then_read_in_two_orders(sources):
    (_, middle, _) = sources
    mixture = shardkit.mix([(middle, 1), (middle, 1)])
    batches = list(mixture.batches(global_batch_size=40, num_steps=6, num_lanes=1, source_feature="of"))
    orders = [[i for b in batches for i in b["id"][b["of"] == source].tolist()] for source in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(MIDDLE)
    assert orders[0] != orders[1]


def test_functions_on_batches_of_a_mixture(mixture):
    source = mixture.filter(lambda batch: batch["source"] == 1).map(lambda batch: {"middle": batch["id"]})
    settings_ = {"global_batch_size": 48, "num_steps": 30, "source_feature": "source"}
    found = [number for batch in source.batches(**settings_) for number in batch["middle"].tolist()]
    assert abs(len(found) - 0.3 * 48 * 30) <= 3
    assert set(found) == set(MIDDLE)


def test_a_state_of_another_mixture_is_refused(sources):
    big, middle, tiny = sources
    state = shardkit.mix({big: 1, middle: 2}).batches(global_batch_size=48).state()
    same = shardkit.mix({big: 0.1, middle: 0.2}).batches(global_batch_size=48)
    same.restore(state)
    for other in ({big: 2, middle: 2}, {big: 1, tiny: 2}, {middle: 2, big: 1}):
        with pytest.raises(UsageError, match="dataset was"):
            shardkit.mix(other).batches(global_batch_size=48).restore(state)
    with pytest.raises(UsageError, match="split was 'mixture without end' and is 'mixture in epochs of 9 steps'"):
        shardkit.mix({big: 1, middle: 2}).batches(global_batch_size=48, num_steps=9).restore(state)


def test_sources_must_agree_in_what_is_read(tmp_path):
    label = {"label": [0, 1]}
    features = (ID, make_feature("label", "int64", vocabulary=("cat", "dog")), make_feature("word", "string"))
    others = (
        make_feature("id", "int64", nullable=True),
        make_feature("label", "int64", vocabulary=("dog", "cat")),
        make_feature("extra", "float32"),
    )
    one = write(tmp_path / "one", {"id": [0, 1], "word": ["a", "b"], **label}, features)
    other = write(tmp_path / "other", {"id": [None, 7], "extra": [1.0, 2.0], **label}, others)
    mixture = shardkit.mix({one: 1, other: 1})
    with pytest.raises(UsageError) as caught:
        mixture.batches(global_batch_size=2)
    words = str(caught.value)
    for part in (
        "'label' has vocabulary ('cat', 'dog') in split 'train' of 'one' and ('dog', 'cat') in split 'train' of",
        "split 'train' of 'other' has no 'word'",
        "split 'train' of 'one' has no 'extra'",
        "features=[...]: 'id'",
    ):
        assert part in words
    assert [f.name for f in mixture.features] == ["id"]
    batches = list(mixture.batches(global_batch_size=2, num_steps=4, features=["id"]))
    found = [(i, p) for b in batches for i, p in zip(b["id"].tolist(), b.present["id"].tolist(), strict=True)]
    assert set(found) == {(0, True), (1, True), (7, True), (0, False)}


@pytest.mark.parametrize(
    "weight", [0, -1, float("nan"), float("inf"), "1", True, None, 10**400, pytest.param(10**9999, id="long")]
)
def test_weights_that_cannot_be_are_refused(sources, weight):
    with pytest.raises(UsageError, match="cannot have the weight"):
        shardkit.mix({sources[0]: weight})


def test_what_cannot_be_mixed_is_refused(sources, mixture, tmp_path):
    empty = write(tmp_path / "empty", {"id": []})
    with pytest.raises(UsageError, match="has no examples"):
        shardkit.mix({empty: 1, sources[0]: 1}).batches(global_batch_size=4)
    with pytest.raises(UsageError, match="mixture of nothing"):
        shardkit.mix({})
    for source in (sources[0].map(dict), mixture):
        with pytest.raises(UsageError, match="functions are done to batches"):
            shardkit.mix([(source, 1)])
    for changes, words in (
        ({"num_workers": 5}, "evenly"),
        ({"num_lanes": 10, "num_workers": 4, "global_batch_size": 8, "shuffle": False}, "num_lanes 10 is no multiple"),
        ({"epoch": 1}, "one epoch"),
        ({"num_steps": -1}, "none may be negative"),
        ({"turn": 2}, "no such turn"),
        ({"source_feature": "id"}, "cannot be 'id'"),
        ({"features": []}, "no feature is chosen"),
        ({"features": ["nope"]}, "has no 'nope'"),
    ):
        with pytest.raises(UsageError, match=words):
            mixture.batches(**{"global_batch_size": 48, **changes})


def test_two_workers_read_hardly_any_block_both_of_a_large_source():
    order = MixtureOrder([9, 1], [1000, 120], OrderOptions(global_batch_size=24, num_lanes=24))
    read = []
    for index in range(2):
        worker = Worker(index=index, num_workers=2)
        rows = chain.from_iterable(order.rows(step, worker) for step in range(1000 // 24))
        read.append({position // 6 for source, position in positions(rows) if source == 0 and position < 984})
    assert len(read[0] & read[1]) <= 4
    assert len(read[0] | read[1]) > 100


def test_weights_of_numpy_are_the_numbers_that_they_are_written_as(sources):
    big, middle, _ = sources
    state = shardkit.mix({big: np.float32(0.1), middle: np.int64(1)}).batches(global_batch_size=48).state()
    shardkit.mix({big: 1, middle: 10}).batches(global_batch_size=48).restore(state)
