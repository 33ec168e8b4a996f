"""A manifest of a million shards: written, opened, inspected, and dealt to 1,024 workers.

    python -m tests.benchmarks.converting.million_shards --blocks 1

Names, sizes and checksums are random, so that the table is as large as a real one; there are no shards. Each step has a
process of its own, which tells how long the step took without imports, and the most memory that the process ever held.
`dealt to all` is what `shardkit train --dry-run` shows of every worker; `dealt to one` is the plan that a worker reads
by, with the places of its first batch. Targets: opened within 2 s of
CPU time, dealt within 1 s, each by one thread, and memory as `--max-mib` says.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardkit.dataset.documents import Accounting, InputInfo
from shardkit.dataset.manifest import (
    FORMAT_VERSION,
    Created,
    Manifest,
    ShardInfo,
    SplitInfo,
    describe_table,
    encode_manifest,
    manifest_path,
    shard_table_path,
)
from shardkit.features import make_feature
from shardkit.units import MiB, format_size
from tests.benchmarks.measure import Check, print_checks, print_machine, print_table

NUM_WORKERS = 1024
GLOBAL_BATCH_SIZE = 8 * NUM_WORKERS
STEPS = ("written", "opened", "inspected", "dealt to all", "dealt to one")
TARGETS_S = {"opened": 2.0, "dealt to all": 1.0, "dealt to one": 1.0}


class Spent(NamedTuple):
    """Seconds that passed, and seconds of CPU time."""

    seconds: float
    cpu_s: float


def now() -> Spent:
    """Returns both clocks."""
    return Spent(time.perf_counter(), time.process_time())


def since(started: Spent) -> Spent:
    """Returns what passed since both clocks showed that."""
    return Spent(time.perf_counter() - started.seconds, time.process_time() - started.cpu_s)


def synthetic_shards(num_shards: int, blocks_each: int) -> list[ShardInfo]:
    """Returns rows of shards that nobody wrote, in two splits; the same for the same numbers."""
    random = np.random.default_rng(0)
    many = (num_shards, blocks_each)
    all_stored, all_framed, all_examples, all_checksums = (
        random.integers(low, stop, many).tolist()
        for low, stop in ((400_000, 600_000), (MiB - 1000, MiB + 1000), (900, 1100), (0, 2**32))
    )
    num_train = num_shards - num_shards // 100
    shards = []
    for position in range(num_shards):
        split, index, of = (
            ("train", position, num_train)
            if position < num_train
            else ("test", position - num_train, num_shards - num_train)
        )
        stored, framed, examples = all_stored[position], all_framed[position], all_examples[position]
        shards.append(
            ShardInfo(
                split=split,
                shard_index=index,
                path=f"data/{'a' * 32}/{split}-{index:05d}-of-{of:05d}.tfrecord.gz",
                num_examples=sum(examples),
                num_bytes=sum(stored) + 18,
                num_uncompressed_bytes=sum(framed),
                crc32c=position,
                sha256=hashlib.sha256(position.to_bytes(8, "little")).hexdigest(),
                block_num_bytes=tuple(stored),
                block_num_uncompressed_bytes=tuple(framed),
                block_num_examples=tuple(examples),
                block_crc32c=tuple(all_checksums[position]),
            )
        )
    return shards


def write_synthetic(folder: Path, num_shards: int, blocks_each: int) -> Spent:
    """Writes manifest and shard table as a commit does; returns the time that took, without making up the rows."""
    from shardkit.dataset.shard_table import encode_shard_table
    from shardkit.storage import files as storage

    shards = synthetic_shards(num_shards, blocks_each)
    started = now()
    table = encode_shard_table(shards)
    splits = []
    for name in ("train", "test"):
        own = [s for s in shards if s.split == name]
        splits.append(
            SplitInfo(
                name=name,
                num_shards=len(own),
                num_examples=sum(s.num_examples for s in own),
                num_bytes=sum(s.num_bytes for s in own),
                num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in own),
            )
        )
    num_rows = sum(s.num_examples for s in splits)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=folder.name,
        fingerprint="a" * 32,
        created=Created(at="2026-01-01T00:00:00Z", commit_id="0" * 32, inputs=("rows",), tool_versions={}),
        recipe={},
        compression="gzip",
        features=(make_feature("id", "int64"),),
        splits=tuple(splits),
        accounting=Accounting(
            num_rows=num_rows,
            num_examples=num_rows,
            inputs=(InputInfo(name="rows", num_bytes=1, num_rows=num_rows, num_examples=num_rows),),
        ),
        shard_table=describe_table(1, "0" * 32, table, len(shards)),
    )
    storage.commit_exclusive(str(folder / shard_table_path(1, "0" * 32)), table)
    storage.commit_exclusive(str(folder / manifest_path(1)), encode_manifest(manifest))
    return since(started)


def open_it(folder: Path) -> Spent:
    """Opens the dataset and its shard table; returns the time."""
    from shardkit.dataset.open import open_dataset

    started = now()
    assert len(open_dataset(folder).shards) > 0
    return since(started)


def inspect_it(folder: Path) -> Spent:
    """Runs `shardkit inspect` as a command, imports included; returns the time."""
    started = now()
    command = [sys.executable, "-m", "shardkit", "inspect", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return since(started)


def deal_to_all(folder: Path) -> Spent:
    """Opens the dataset, then deals an epoch to all workers; returns the time of dealing."""
    from shardkit.dataset.open import open_dataset
    from train.input.shares import worker_shares

    shards = open_dataset(folder).split_shards("train")
    started = now()
    shares = worker_shares(
        *shards.block_examples(), global_batch_size=GLOBAL_BATCH_SIZE, num_workers=NUM_WORKERS, seed=1
    )
    spent = since(started)
    assert len({s.num_examples for s in shares}) == 1
    return spent


def deal_to_one(folder: Path) -> Spent:
    """Opens the dataset, then plans one worker's epoch, up to where its first batch lies; returns the time."""
    from shardkit.dataset.block_index import SplitBlocks
    from shardkit.dataset.open import open_dataset
    from shardkit.reading.order import EpochOrder, OrderOptions, Worker, choose_num_lanes

    dataset = open_dataset(folder)
    _ = dataset.shards
    started = now()
    blocks = SplitBlocks(dataset, "train")
    options = OrderOptions(global_batch_size=GLOBAL_BATCH_SIZE, num_lanes=choose_num_lanes(NUM_WORKERS))
    order = EpochOrder(blocks.num_examples, options, 0)
    rows = order.rows(0, Worker(index=NUM_WORKERS // 2, num_workers=NUM_WORKERS))
    for place, _first, _stop in rows:
        blocks.ref(int(order.blocks[place]))
    return since(started)


WORK: dict[str, Callable[[Path], Spent]] = {
    "opened": open_it,
    "inspected": inspect_it,
    "dealt to all": deal_to_all,
    "dealt to one": deal_to_one,
}


def do_step(step: str, folder: Path, num_shards: int, blocks_each: int) -> dict[str, Any]:
    """Does one step in this process; returns its seconds, and the most bytes that it, or its command, held."""
    spent = write_synthetic(folder, num_shards, blocks_each) if step == "written" else WORK[step](folder)
    used = resource.getrusage(resource.RUSAGE_CHILDREN if step == "inspected" else resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime if step == "inspected" else spent.cpu_s
    return {"seconds": spent.seconds, "cpu_s": cpu_s, "peak": used.ru_maxrss * 1024}


def main() -> None:
    """Runs all steps and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, default=1, help="blocks a shard, each of a MiB of records")
    parser.add_argument("--max-mib", type=int, default=1024, help="of each step but writing")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(do_step(options.step, options.folder, options.shards, options.blocks)))
        return
    print_machine("numpy", "pyarrow", "msgspec")
    measured = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "million"
        for step in STEPS:
            command = [sys.executable, "-m", __spec__.name, "--step", step, "--folder", str(folder)]
            command += ["--shards", str(options.shards), "--blocks", str(options.blocks)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            measured[step] = json.loads(done.stdout)
        table_bytes = (folder / shard_table_path(1, "0" * 32)).stat().st_size
    print_table(
        f"{options.shards:,} shards of {options.blocks} blocks, {NUM_WORKERS:,} workers; "
        f"a shard table of {format_size(table_bytes)}",
        ("step", "seconds", "CPU s", "peak MiB"),
        [(step, m["seconds"], m["cpu_s"], m["peak"] / MiB) for step, m in measured.items()],
    )
    # As shares of what is allowed: the table of targets takes more for better.
    checks = [
        Check(f"{step} within {limit:g} s of CPU time: limit/measured", limit / measured[step]["cpu_s"], 1.0)
        for step, limit in TARGETS_S.items()
    ]
    peak = max(m["peak"] for step, m in measured.items() if step != "written")
    checks.append(Check(f"memory within {options.max_mib} MiB: limit/measured", options.max_mib * MiB / peak, 1.0))
    print_checks(checks)


if __name__ == "__main__":
    main()
