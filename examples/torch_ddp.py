"""Trains a small regression on a shardkit dataset with PyTorch DDP: two processes, each with two loader workers.

    torchrun --standalone --nproc-per-node 2 examples/torch_ddp.py out/flights arr_delay dep_delay distance

Label and features are numbers. After each epoch it prints the loss, how many examples all processes saw, and the sum of
their labels: both are those of the split, as every example comes once.
"""

import argparse

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import shardkit
from shardkit.adapters.torch import BatchDataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("label")
    parser.add_argument("features", nargs="+")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=256)
    return parser.parse_args()


def main() -> None:
    asked = parse_arguments()
    dist.init_process_group("gloo")  # "nccl" on GPUs; torchrun has set addresses and ranks.
    splits = shardkit.open(asked.dataset)
    # Each rank reads its own part, in as many steps: "pad" fills the last batch up with rows that `mask` leaves out.
    settings = {"seed": 1, "remainder": "pad", "features": [asked.label, *asked.features]}
    batches = BatchDataset(splits["train"], global_batch_size=asked.global_batch_size, **settings)
    loader = DataLoader(batches, batch_size=None, num_workers=2)  # None: batches come whole.
    statistics = splits.manifest.split("train").statistics  # Means and deviations are in the manifest already.

    def scale(batch: dict[str, torch.Tensor], name: str) -> torch.Tensor:
        scaled = (batch[name].float() - statistics[name].mean) / (statistics[name].std or 1.0)
        is_present = batch.get(f"{name}/present", torch.tensor(True))
        return torch.where(is_present & ~scaled.isnan(), scaled, 0.0)  # A null is the mean.

    torch.manual_seed(0)
    layers = (torch.nn.Linear(len(asked.features), 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes")
    for epoch in range(asked.epochs):
        batches.set_epoch(epoch)  # Another order each time.
        totals = torch.zeros(4, dtype=torch.float64)  # Examples, those with a label, sum of labels, sum of errors.
        for batch in loader:
            labels = batch[asked.label]
            is_real = batch.get("mask", torch.ones(len(labels), dtype=torch.bool))
            is_known = is_real & batch.get(f"{asked.label}/present", torch.tensor(True))
            # DDP takes the mean of the gradients over ranks. Divided by the labels of the global batch and multiplied
            # by the number of ranks, they are those of one process, even where ranks hold unequal numbers of labels.
            num_known = is_known.sum()
            dist.all_reduce(num_known)
            output = model(torch.stack([scale(batch, name) for name in asked.features], dim=1))[:, 0]
            errors = torch.where(is_known, (output - scale(batch, asked.label)) ** 2, 0.0).sum()
            optimizer.zero_grad()
            (errors * dist.get_world_size() / num_known.clamp(min=1)).backward()
            optimizer.step()
            totals += torch.stack(
                [v.double() for v in (is_real.sum(), is_known.sum(), labels[is_known].sum(), errors.detach())]
            )
        dist.all_reduce(totals)
        num_examples, num_labels, label_sum, loss = totals.tolist()
        if dist.get_rank() == 0:
            mean = loss / max(num_labels, 1)
            print(f"epoch {epoch + 1}  loss {mean:.4f}  examples {num_examples:.0f}  sum of labels {label_sum:.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
