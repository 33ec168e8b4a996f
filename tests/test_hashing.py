"""Keys of rows and their splits: reproducible, uniform, independent of each other and of other rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardkit.hashing import assign_splits, mix64, row_keys
from shardkit.sources.base import RawFile, row_identities

identities = np.arange(100_000, dtype=np.uint64) + np.uint64(2**63)


def test_mix64_is_splitmix64():
    # First outputs of SplitMix64 seeded with 0, as published with its reference code.
    states = np.array([0, 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A], dtype=np.uint64)
    assert [hex(v) for v in mix64(states).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_keys_are_pinned_for_a_seed():
    keys = row_keys(np.arange(3, dtype=np.uint64), seed=7)
    assert keys.tolist() == row_keys(np.arange(3, dtype=np.uint64), seed=7 + 2**64).tolist()
    assert len(set(keys.tolist())) == 3
    assert keys.tolist() != row_keys(np.arange(3, dtype=np.uint64), seed=8).tolist()


@given(st.integers(-(2**70), 2**70))
def test_splits_match_their_fractions_for_every_seed(seed):
    positions = assign_splits(identities, seed, (0.7, 0.2, 0.1))
    found = np.bincount(positions, minlength=3) / len(identities)
    assert np.all(np.abs(found - [0.7, 0.2, 0.1]) < 0.01)


def test_a_row_stays_in_its_split_whatever_comes_with_it():
    whole = assign_splits(identities, 3, (0.5, 0.5))
    assert np.array_equal(assign_splits(identities[500:900], 3, (0.5, 0.5)), whole[500:900])


def test_order_within_a_split_does_not_depend_on_the_split():
    positions = assign_splits(identities, 3, (0.9, 0.1))
    keys = row_keys(identities, 3)[positions == 1]
    assert abs(float(np.mean(keys / 2**64)) - 0.5) < 0.02


def test_one_split_takes_everything():
    assert assign_splits(identities[:10], 0, (1.0,)).tolist() == [0] * 10


def test_rows_of_different_files_and_ranges_have_different_identities():
    files = [RawFile(path=f"/d/{n}", name=n, num_bytes=1, version="") for n in ("a", "b")]
    found = np.concatenate([row_identities(f, start, 0, 1000) for f in files for start in (0, 64)])
    assert len(np.unique(found)) == 4000
    assert np.array_equal(row_identities(files[0], 0, 10, 5), row_identities(files[0], 0, 0, 15)[10:])
