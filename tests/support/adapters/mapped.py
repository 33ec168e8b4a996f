"""Functions on batches that a process which is started anew finds again, and a run of ranks over a mixture."""

import json
import sys

import torch.distributed
from torch.utils.data import DataLoader

import shardkit
from shardkit.adapters.torch import BatchDataset


def double(batch, rng):
    return {"id": batch["id"], "twice": batch["id"] * 2, "noise": rng.random()}


def is_odd(batch):
    return batch["id"] % 2 == 1


def main(urls, store, rank, world_size, num_loader_workers, num_steps):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size)
    )
    first, second = (shardkit.open(url)["train"] for url in urls.split(","))
    mixture = shardkit.mix({first: 0.75, second: 0.25})
    dataset = BatchDataset(
        mixture, global_batch_size=24, seed=3, num_steps=int(num_steps), features=["id"], source_feature="source"
    )
    batches = []
    for batch in DataLoader(dataset, batch_size=None, num_workers=int(num_loader_workers)):
        batches.append([batch["id"].tolist(), batch["source"].tolist()])
        total = torch.tensor([len(batch["id"])])
        torch.distributed.all_reduce(total)
        assert total.item() == 24
    print(json.dumps(batches))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
