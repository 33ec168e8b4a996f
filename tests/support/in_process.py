"""Conversions in this process, on one worker."""

import pytest

from shardkit.cli import main
from shardkit.conversion.plan import save_plan
from shardkit.conversion.work_folder import remove_work_folder, work_folder
from shardkit.dataset.open import open_dataset
from shardkit.encoding.tfrecord import iter_records
from tests.support.wire.example_values import decode_record


def run_plan(plan, num_workers=1):
    from shardkit.conversion.run.local import run_local

    with work_folder(plan):
        run_local(save_plan(plan), num_workers, on_lost_worker=pytest.fail)
    remove_work_folder(plan)
    return open_dataset(plan.destination)


def convert(capfd, *arguments):
    """Runs the command and returns its exit code and what it printed."""
    code = main(["convert", *map(str, arguments)])
    captured = capfd.readouterr()
    return code, captured.out + captured.err


def read_rows(dataset, split):
    """Returns the examples of a split in order, read without any of the writer's code but framing."""
    import gzip

    rows = []
    for shard in dataset.split_shards(split):
        with open(dataset.shard_url(shard), "rb") as file:
            raw = file.read()
        records = list(iter_records(gzip.decompress(raw) if shard.path.endswith(".gz") else raw, shard.path))
        assert len(records) == shard.num_examples
        rows += [decode_record(r, dataset.manifest.features, shard.path) for r in records]
    return rows
