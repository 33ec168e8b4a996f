"""A place with versions, unfinished conversions and files of others, as cleaning finds them."""

import fcntl
import os
import time
from pathlib import Path

from shardkit.cleaning.decide import (
    plan_cleaning,
)
from shardkit.cleaning.inventory import take_inventory
from shardkit.cleaning.remove import marked, remove
from shardkit.conversion.layout_math import shard_file_name
from shardkit.dataset.documents import Accounting
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
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.dataset.shard_table import encode_shard_table

DAY = 86_400.0
WEEK = 7 * DAY
FINGERPRINTS = [c * 32 for c in "abcd"]
NUM_SHARDS = 2


def shard_path(fingerprint, index):
    return f"data/{fingerprint}/{shard_file_name('train', index, NUM_SHARDS, '.tfrecord.gz')}"


def describe(fingerprint, version, commit_id, source="rows.csv"):
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
        created=Created(at="2025-01-02T03:04:05Z", commit_id=commit_id, inputs=(), tool_versions={}),
        recipe={"source": source},
        compression="gzip",
        features=(),
        splits=(SplitInfo(name="train", num_shards=NUM_SHARDS, **totals_of),),
        accounting=Accounting(num_rows=NUM_SHARDS, num_examples=NUM_SHARDS),
        shard_table=describe_table(version, commit_id, table, NUM_SHARDS),
    )
    return encode_manifest(manifest), table


class Place:
    """A dataset in a folder, and the clock that its files are written by."""

    def __init__(self, folder):
        self.root = Path(folder)
        self.work_root = self.root / "work"
        self.now = time.time()
        self.num_commits = 0

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

    def put_table(self, fingerprint, source="rows.csv"):
        """Does the first half of a commit, and returns what the second half puts."""
        version = max(list_versions(self.root), default=0) + 1
        self.num_commits += 1
        commit_id = f"{self.num_commits:016x}" * 2
        manifest, table = describe(fingerprint, version, commit_id, source)
        self.write(shard_table_path(version, commit_id), table)
        return manifest_path(version), manifest

    def commit(self, fingerprint, *, is_torn=False, source="rows.csv"):
        put = self.put_table(fingerprint, source)
        if not is_torn:
            self.write(*put)

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
        with marked(str(self.root)) as mark:
            if mark is not None:
                mark.now = self.now
                for path in self.root.glob("manifests/.cleaning-*"):
                    os.utime(path, (self.now, self.now))
            inventory, plan = self.plan(older_than, keep_versions)
            return plan, remove(plan, inventory, str(self.root), str(self.work_root), mark, **hooks)

    def missing(self):
        """Returns what manifests name and is gone."""
        found = []
        for version in list_versions(self.root):
            dataset = open_dataset(self.root, version)
            found += [shard.path for shard in dataset.shards if not (self.root / shard.path).exists()]
        return found

    def tables(self):
        return sorted(self.root.glob("manifests/*.shards.parquet"))

    def left(self):
        return sorted(str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file())
