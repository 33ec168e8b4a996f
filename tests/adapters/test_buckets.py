"""Length buckets in every framework: batches differ in size and shape, and hold every example once."""

import numpy as np
import pytest

from shardkit import LengthBuckets

pytestmark = pytest.mark.full

NUM_ROWS = 500
PLAIN = LengthBuckets(feature="tokens", tokens_per_batch=24, boundaries=(1, 2), num_groups=2)
PADDED = LengthBuckets(feature="tokens", tokens_per_batch=24, boundaries=(1, 2), num_groups=2, padded=("tokens",))
SHAPES = {(24, 1), (12, 2)}


def ids_of(batch):
    ids = np.asarray(batch["id"])
    return (ids[np.asarray(batch["mask"])] if "mask" in batch else ids).tolist()


@pytest.mark.parametrize("num_loader_workers", [0, 2])
def test_torch_ranks_and_loader_workers_share_an_epoch(splits, num_loader_workers):
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from shardkit.adapters.torch import BatchDataset

    seen, shapes = [], []
    for rank in range(2):
        dataset = BatchDataset(splits["train"], buckets=PADDED, rank=rank, world_size=2, remainder="pad")
        loader = DataLoader(dataset, batch_size=None, num_workers=num_loader_workers)
        found = list(loader)
        assert len(found) == len(dataset)
        seen += [number for batch in found for number in ids_of(batch)]
        shapes.append([tuple(batch["tokens"].shape) for batch in found])
        assert all(batch["tokens/length"].tolist() == [i % 3 for i in ids_of(batch)] for batch in found[:-1])
    assert sorted(seen) == list(range(NUM_ROWS))
    assert shapes[0] == shapes[1]
    assert set(shapes[0]) == {(rows // 2, width) for rows, width in SHAPES}


def test_tensorflow_has_a_dataset_of_any_number_of_rows(splits):
    tf = pytest.importorskip("tensorflow")
    from shardkit.adapters.tensorflow import batches, dataset

    found = dataset(splits["train"], buckets=PADDED, remainder="pad", num_epochs=2)
    seen = [(tuple(batch["tokens"].shape), ids_of(tf.nest.map_structure(dense_of, batch))) for batch in found]
    assert len(seen) == int(found.cardinality())
    assert {shape for shape, _ in seen} == SHAPES
    assert sorted(number for _, ids in seen for number in ids) == sorted([*range(NUM_ROWS)] * 2)
    ragged = dataset(splits["train"], buckets=PLAIN, features=["id", "tokens"])
    assert len(list(ragged)) == len(batches(splits["train"], buckets=PLAIN))


def dense_of(tensor):
    return tensor.numpy()


def test_jax_holds_padded_lists_on_the_device(splits):
    jax = pytest.importorskip("jax")
    from shardkit.adapters.jax import batches
    from shardkit.errors import UsageError

    sharding = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P("data"))
    found = batches(splits["train"], buckets=PADDED, sharding=sharding, features=["id", "tokens"], remainder="pad")
    assert len(found) == found.reader.num_steps
    made = list(found)
    assert {batch["tokens"].shape for batch in made} == SHAPES
    assert sorted(number for batch in made for number in ids_of(batch)) == list(range(NUM_ROWS))
    with pytest.raises(UsageError, match="'tokens'"):
        batches(splits["train"], buckets=PLAIN, sharding=sharding, features=["id", "tokens"])
