"""Reads a dataset onto two devices of one host and prints what lay where."""

import json
import sys
from itertools import chain

import jax
import numpy as np

import shardkit
from shardkit.adapters.jax import batches


def main(url, remainder):
    sharding = jax.NamedSharding(jax.make_mesh((2,), ("data",)), jax.P("data"))
    train = shardkit.open(url)["train"]
    run = batches(train, global_batch_size=24, sharding=sharding, seed=3, remainder=remainder, features=["id", "point"])
    found = []
    total = jax.jit(lambda ids: ids.sum())
    for batch in run:
        parts = [np.asarray(shard.data).tolist() for shard in batch["id"].addressable_shards]
        assert len(batch["id"].sharding.device_set) == 2
        assert int(total(batch["id"])) == sum(map(sum, parts))
        assert batch["point"].shape == (24, 2)
        mask = np.asarray(batch["mask"]).tolist() if "mask" in batch else [True] * 24
        found.append([number for number, is_real in zip(chain.from_iterable(parts), mask, strict=True) if is_real])
    print(json.dumps({"batches": found, "len": len(run), "state": run.reader.state()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
