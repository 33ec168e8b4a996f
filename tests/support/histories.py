"""A place with versions, unfinished conversions and files of others, as cleaning finds them."""

import fcntl
import hashlib
import os
import time
from pathlib import Path

from shardkit.cleaning.decide import (
    plan_cleaning,
)
from shardkit.cleaning.inventory import take_inventory
from shardkit.cleaning.remove import remove
from shardkit.conversion.layout_math import shard_file_name
from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import (
    FORMAT_VERSION,
    Created,
    Manifest,
    ShardInfo,
    ShardTableInfo,
    SplitInfo,
    encode_manifest,
    manifest_path,
    shard_table_path,
)
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.dataset.shard_table import encode_shard_table

DAY = 86_400.0
WEEK = 7 * DAY
FINGERPRINTS = [c * 32 for c in "abcd"]
NUM_SHARDS = 2


def shard_path(fingerprint, index):
    return f"data/{fingerprint}/{shard_file_name('train', index, NUM_SHARDS, '.tfrecord.gz')}"


def describe(fingerprint, table_number, source="rows.csv"):
    """Returns a manifest and its table that name the shards of a conversion. No test opens these shards."""
    shards = [
        ShardInfo(
            split="train",
            shard_index=index,
            path=shard_path(fingerprint, index),
            num_examples=1,
            num_bytes=5,
            num_uncompressed_bytes=5,
            crc32c=0,
            sha256="",
            block_num_bytes=(5,),
            block_num_uncompressed_bytes=(5,),
            block_num_examples=(1,),
            block_crc32c=(0,),
        )
        for index in range(NUM_SHARDS)
    ]
    table = encode_shard_table(shards)
    totals_of = {"num_examples": NUM_SHARDS, "num_bytes": 5 * NUM_SHARDS, "num_uncompressed_bytes": 5 * NUM_SHARDS}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="set",
        fingerprint=fingerprint,
        created=Created(at="2025-01-02T03:04:05Z", commit_id="0" * 32, inputs=(), tool_versions={}),
        recipe={"source": source},
        compression="gzip",
        features=(),
        splits=(SplitInfo(name="train", num_shards=NUM_SHARDS, **totals_of),),
        accounting=Accounting(num_rows=NUM_SHARDS, num_examples=NUM_SHARDS),
        shard_table=ShardTableInfo(
            path=shard_table_path(table_number), num_rows=NUM_SHARDS, sha256=hashlib.sha256(table).hexdigest()
        ),
    )
    return encode_manifest(manifest), table


class Place:
    """A dataset in a folder, and the clock that its files are written by."""

    def __init__(self, folder):
        self.root = Path(folder)
        self.work_root = self.root / "work"
        self.now = time.time()

    def write(self, path, content=b"shard"):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        os.utime(target, (self.now, self.now))

    def write_shards(self, fingerprint):
        for index in range(NUM_SHARDS):
            if not (self.root / shard_path(fingerprint, index)).exists():
                self.write(shard_path(fingerprint, index))

    def has_all(self, fingerprint):
        return all((self.root / shard_path(fingerprint, index)).exists() for index in range(NUM_SHARDS))

    def commit(self, fingerprint, *, is_torn=False, is_appended=False, source="rows.csv"):
        version = table_number = max(list_versions(self.root), default=0) + 1
        while (self.root / shard_table_path(table_number)).exists():
            table_number += 1
        manifest, table = describe(fingerprint, table_number, source)
        self.write(shard_table_path(table_number), table)
        if not is_torn:
            self.write(manifest_path(version if is_appended else table_number), manifest)

    def hold(self, fingerprint):
        self.write(f"work/{fingerprint}/lock", b"")
        self.write(f"work/{fingerprint}/spool/0.run", b"rows")
        handle = os.open(self.work_root / fingerprint / "lock", os.O_RDWR)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle

    def plan(self, older_than=WEEK, keep_versions=None):
        inventory = take_inventory(str(self.root), str(self.work_root))
        return inventory, plan_cleaning(inventory, now=self.now, older_than_s=older_than, keep_versions=keep_versions)

    def clean(self, older_than=WEEK, keep_versions=None, **hooks):
        inventory, plan = self.plan(older_than, keep_versions)
        return plan, remove(plan, inventory, str(self.root), str(self.work_root), **hooks)

    def missing(self):
        """Returns what manifests name and is gone."""
        found = []
        for version in list_versions(self.root):
            dataset = open_dataset(self.root, version)
            found += [shard.path for shard in dataset.shards if not (self.root / shard.path).exists()]
        return found

    def left(self):
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file())
