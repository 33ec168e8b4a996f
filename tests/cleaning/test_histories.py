"""Any history of conversions and cleanings leaves all files that a version names."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shardkit.conversion.layout_math import shard_file_name
from shardkit.dataset.commit import SIGN_S
from shardkit.dataset.manifest import (
    manifest_path,
)
from shardkit.dataset.open import list_versions, open_dataset
from tests.support.examples import draws
from tests.support.histories import DAY, FINGERPRINTS, NUM_SHARDS, WEEK, Place, shard_path


class CutOffError(Exception):
    pass


class Histories(RuleBasedStateMachine):
    """Conversions of this host hold a lock; those of others are known by the age of what they write alone."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="histories-")
        self.place = Place(Path(self.folder) / "set")
        self.place.root.mkdir()
        self.handles = {}
        self.others = set()

    def teardown(self):
        for handle in self.handles.values():
            os.close(handle)
        shutil.rmtree(self.folder)

    fingerprints = st.sampled_from(FINGERPRINTS)

    @rule(fingerprint=fingerprints)
    def begin(self, fingerprint):
        if fingerprint not in self.handles and fingerprint not in self.others:
            self.handles[fingerprint] = self.place.hold(fingerprint)

    @rule(fingerprint=fingerprints)
    def begin_elsewhere(self, fingerprint):
        if fingerprint not in self.handles:
            self.others.add(fingerprint)

    @rule(fingerprint=fingerprints, index=st.integers(0, NUM_SHARDS - 1))
    def write_one(self, fingerprint, index):
        path = shard_path(fingerprint, index)
        # What is there and right is kept, however old it is.
        if (fingerprint in self.handles or fingerprint in self.others) and not (self.place.root / path).exists():
            self.place.write(path)

    @rule(fingerprint=fingerprints)
    def write_all(self, fingerprint):
        if fingerprint in self.handles or fingerprint in self.others:
            self.place.write_shards(fingerprint)

    @rule(fingerprint=fingerprints)
    def convert(self, fingerprint):
        self.begin(fingerprint)
        self.write_all(fingerprint)
        self.try_commit(fingerprint)

    @rule(fingerprint=fingerprints, leaves_temporary=st.booleans())
    def kill(self, fingerprint, leaves_temporary):
        if fingerprint in self.handles:
            if leaves_temporary:
                self.place.write(f"data/{fingerprint}/.{shard_file_name('train', 0, 2, '.tfrecord.gz')}.{'0' * 16}")
            os.close(self.handles.pop(fingerprint))
        self.others.discard(fingerprint)

    @rule(fingerprint=fingerprints, is_torn=st.booleans())
    def commit(self, fingerprint, is_torn):
        self.try_commit(fingerprint, is_torn)

    def try_commit(self, fingerprint, is_torn=False):
        if not self.place.has_all(fingerprint):
            return
        if fingerprint in self.handles:
            self.place.commit(fingerprint, is_torn=is_torn)
            os.close(self.handles.pop(fingerprint))
            if not is_torn:
                shutil.rmtree(self.place.work_root / fingerprint)
        elif fingerprint in self.others and self.youngest(fingerprint) > self.place.now - WEEK:
            self.place.commit(fingerprint, is_torn=is_torn)
            self.others.discard(fingerprint)

    def youngest(self, fingerprint):
        # A cleaning that was cut off may leave an empty folder.
        files = (self.place.root / "data" / fingerprint).iterdir()
        return max((p.stat().st_mtime for p in files), default=0.0)

    @rule(days=st.sampled_from([0.1, 1, 6.9, 7, 30]))
    def wait(self, days):
        self.place.now += days * DAY

    @precondition(lambda self: self.place.left())
    @rule(
        keep_versions=st.none() | st.integers(1, 3),
        cut_off_after=st.none() | st.integers(0, 6),
        committer=st.none() | fingerprints,
        writes_before=st.booleans(),
        at=st.integers(0, 4),
    )
    def clean(self, keep_versions, cut_off_after, committer, writes_before, at):
        deleted = []

        def delete(path):
            # Nothing holds back a conversion of another host from the files that are being deleted at that moment.
            is_unguarded = committer in self.others and f"/data/{committer}/" in path
            if committer is not None and len(deleted) == at and not is_unguarded:
                if writes_before and committer in self.others:
                    self.place.write_shards(committer)
                self.try_commit(committer)
            if len(deleted) == cut_off_after:
                raise CutOffError
            deleted.append(path)
            os.unlink(path)
            assert self.place.missing() == []

        before = {f: self.youngest(f) for f in FINGERPRINTS if (self.place.root / "data" / f).exists()}
        try:
            plan, _ = self.place.clean(keep_versions=keep_versions, delete=delete)
        except CutOffError:
            return
        if committer is not None:
            return
        named = {open_dataset(self.place.root, v).manifest.shard_table.path for v in self.versions()}
        tables = [t for t in self.place.tables() if str(t.relative_to(self.place.root)) not in named]
        # A table without a manifest keeps all data while its conversion may be about to commit.
        is_commit_near = any(table.stat().st_mtime > self.place.now - SIGN_S for table in tables)
        for fingerprint, youngest in before.items():
            is_dead = fingerprint not in self.handles and youngest <= self.place.now - WEEK and not is_commit_near
            if is_dead and not self.is_named(fingerprint):
                assert not list(self.place.root.glob(f"data/{fingerprint}/*")), plan
        # A live conversion may be about to commit a table of any age.
        for table in () if self.handles else tables:
            assert table.stat().st_mtime > self.place.now - WEEK
        for fingerprint in self.handles:
            assert (self.place.work_root / fingerprint / "spool" / "0.run").exists()
        if keep_versions is None:
            return
        versions = list_versions(self.place.root)
        replaced_at = [(self.place.root / manifest_path(v)).stat().st_mtime for v in versions[1:]]
        assert all(at > self.place.now - WEEK for at in replaced_at[: max(0, len(versions) - keep_versions)][:1])

    def is_named(self, fingerprint):
        return any(open_dataset(self.place.root, v).manifest.fingerprint == fingerprint for v in self.versions())

    def versions(self):
        return list_versions(self.place.root)

    @invariant()
    def nothing_that_is_named_is_missing(self):
        assert self.place.missing() == []


TestHistories = pytest.mark.full(pytest.mark.slow(Histories.TestCase))
TestHistories.settings = settings(max_examples=draws(100), stateful_step_count=40, deadline=None)
