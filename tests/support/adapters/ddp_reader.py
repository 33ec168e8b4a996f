"""One rank of a run of `torch.distributed`: prints the ids of each of its batches, and what all ranks read together."""

import json
import sys

import torch.distributed
from torch.utils.data import DataLoader

import shardkit
from shardkit.adapters.torch import BatchDataset


def main(url, store, rank, world_size, num_loader_workers, remainder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size)
    )
    dataset = BatchDataset(shardkit.open(url)["train"], global_batch_size=24, seed=3, remainder=remainder)
    loader = DataLoader(dataset, batch_size=None, num_workers=int(num_loader_workers))
    batches = []
    for batch in loader:
        ids = batch["id"]
        batches.append(ids[batch["mask"]].tolist() if "mask" in batch else ids.tolist())
        total = torch.tensor([len(ids)])
        torch.distributed.all_reduce(total)
        assert total.item() == 24
    everyone = [None] * int(world_size)
    torch.distributed.all_gather_object(everyone, batches)
    print(json.dumps({"mine": batches, "all": everyone, "len": len(loader)}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
