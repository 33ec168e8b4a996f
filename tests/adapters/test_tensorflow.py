"""TensorFlow: the tensors of the reader are those that TensorFlow itself parses from the same shards."""

import numpy as np
import pytest
import tensorflow as tf

from shardkit.adapters.tensorflow import batches, dataset, to_tensors
from shardkit.adapters.tfdata import load_split
from shardkit.errors import UsageError
from shardkit.reading.batch import Batch

pytestmark = pytest.mark.full


def as_rows(tensors, mask=None):
    """Rows of tensors as sortable Python values."""
    columns = {
        name: t.to_list() if isinstance(t, tf.RaggedTensor) else t.numpy().tolist() for name, t in tensors.items()
    }
    num_rows = len(columns["id"])
    kept = range(num_rows) if mask is None else np.flatnonzero(mask)
    return [tuple((name, repr(columns[name][i])) for name in sorted(columns)) for i in kept]


def test_every_tensor_is_the_one_that_tensorflow_parses(splits):
    tfdata_batches = load_split(splits.dataset, "train", batch_size=64, with_presence=True)
    expected = []
    for values, present in tfdata_batches:
        expected += as_rows({**values, **{f"{name}/present": bools for name, bools in present.items()}})
    found = []
    for tensors in batches(splits["train"], global_batch_size=64, remainder="pad"):
        mask = tensors.pop("mask", None)
        found += as_rows(tensors, None if mask is None else mask.numpy())
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("piece_bytes", [1, 40, 1000, 1 << 30])
def test_strings_that_are_copied_piece_by_piece_are_the_same(splits, piece_bytes):
    for batch in splits["train"].batches(global_batch_size=64, decodes_text=False, remainder="pad"):
        whole, found = to_tensors(batch), to_tensors(batch, piece_bytes)
        assert as_rows(found) == as_rows(whole)
        assert {n: t.shape.as_list() for n, t in found.items()} == {n: t.shape.as_list() for n, t in whole.items()}


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_a_dataset_gives_the_batches_of_the_reader_every_time(splits, remainder):
    settings = {"global_batch_size": 64, "seed": 4, "num_epochs": 2, "remainder": remainder}
    read = dataset(splits["train"], **settings)
    expected = [tensors["id"].numpy().tolist() for tensors in batches(splits["train"], **settings)]
    for _ in range(2):
        found = list(read)
        assert [tensors["id"].numpy().tolist() for tensors in found] == expected
    assert read.cardinality().numpy() == len(expected)
    if remainder == "pad":
        assert sum(int(tf.reduce_sum(tf.cast(t["mask"], tf.int32))) for t in found) == 2 * len(splits["train"])


def test_features_and_workers_are_chosen(splits):
    read = dataset(splits["train"], global_batch_size=64, features=["point", "id"], worker_index=1, num_workers=2)
    assert {name: spec.shape.as_list() for name, spec in read.element_spec.items()} == {"point": [32, 2], "id": [32]}
    assert len(next(iter(read))["id"]) == 32


def test_the_tfdata_engine_gives_the_same_batches_in_the_stored_order(splits):
    settings = {"global_batch_size": 64, "shuffle": False}
    tfdata_batches = dataset(splits["train"], engine="tfdata", **settings)
    found, expected = list(tfdata_batches), list(batches(splits["train"], **settings))
    assert tfdata_batches.cardinality().numpy() == len(expected) == len(found)
    assert [as_rows(tensors) for tensors in found] == [as_rows(tensors) for tensors in expected]
    one, other = (dataset(splits["train"], engine=engine, **settings).element_spec for engine in ("tfdata", "reader"))
    assert {name: spec.dtype for name, spec in one.items()} == {name: spec.dtype for name, spec in other.items()}


def test_the_tfdata_engine_shuffles_by_seed_and_epoch(splits):
    def ids(**settings):
        read = dataset(splits["train"], global_batch_size=50, engine="tfdata", features=["id"], **settings)
        return [tensors["id"].numpy().tolist() for tensors in read]

    assert ids(seed=1) == ids(seed=1)
    assert ids(seed=1) != ids(seed=2) != ids(seed=2, epoch=1)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"num_workers": 2}, "num_workers"), ({"remainder": "pad"}, "pad"), ({"global_batch_size": None}, "not given")],
)
def test_what_the_tfdata_engine_cannot_do_is_refused(splits, settings, word):
    with pytest.raises(UsageError, match=word):
        dataset(splits["train"], engine="tfdata", **{"global_batch_size": 50, **settings})


@pytest.mark.parametrize(
    ("global_batch_size", "reason"), [(501, "no batch of split 'train' is full"), (0, "at least 1")]
)
def test_all_engines_refuse_the_same_batch_sizes(splits, global_batch_size, reason):
    for engine in ("reader", "tfdata"):
        with pytest.raises(UsageError, match=reason):
            dataset(splits["train"], engine=engine, global_batch_size=global_batch_size)


def test_an_engine_that_is_not_there_is_refused(splits):
    with pytest.raises(UsageError, match=r"no engine 'tf'.*'reader', 'tfdata'"):
        dataset(splits["train"], engine="tf", global_batch_size=50)


def test_a_model_trains_on_the_dataset(splits):
    read = dataset(splits["train"], global_batch_size=50, num_epochs=2, features=["point", "id"])
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="sgd")
    history = model.fit(read.map(lambda t: (t["point"] / 500, tf.cast(t["id"], tf.float32) / 500)), verbose=0)
    assert np.isfinite(history.history["loss"][0])


def test_numbers_are_taken_over_without_a_copy(splits):
    batch = next(iter(splits["train"].batches(global_batch_size=64, decodes_text=False)))
    tensor = to_tensors(batch)["point"]
    batch["point"][0, 0] = 77
    assert tensor[0, 0].numpy() == 77


def test_memory_that_is_not_aligned_is_copied():
    column = np.zeros(4097, np.uint8)[1:]
    assert to_tensors(Batch({"x": column}, {}))["x"].shape == 4096
