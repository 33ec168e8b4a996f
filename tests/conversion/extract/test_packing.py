"""Packing: each token is in one sequence, in order, and a row is cut only where a sequence ends."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.extract.packing import Packer, packed_features, plan_packing
from shardkit.conversion.plan import Packing
from shardkit.errors import UsageError
from shardkit.features import make_feature
from shardkit.sources.base import InputSplit, RawFile
from tests.support.examples import draws
from tests.support.packing import reference

TOKENS = (make_feature("id", "int64"), make_feature("text", "int64", (None,), nullable=True))
FILE = RawFile(path="/data/a.txt", name="a.txt", num_bytes=1, version="1")
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)


def packed(documents, length, separator, cuts=()):
    packer = Packer(Packing(column="text", length=length, separator=separator), TOKENS, SPLIT, (FILE,), 0)
    found = []
    for start, stop in itertools.pairwise([0, *sorted(cuts), len(documents)]):
        lists = pa.array([d or None for d in documents[start:stop]], pa.list_(pa.int64()))
        found += packer.add(pa.record_batch([pa.array(range(stop - start), pa.int64()), lists], ["id", "text"]))
    found += packer.end()
    assert packer.num_sequences == sum(rows.batch.num_rows for rows in found)
    return found, packer


@settings(max_examples=draws(100), deadline=None)
@given(data=st.data())
def test_sequences_are_those_of_a_loop_over_tokens(data):
    documents = data.draw(st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=12))
    length = data.draw(st.integers(2, 7))
    separator = data.draw(st.none() | st.just(7))
    cuts = data.draw(st.lists(st.integers(0, len(documents)), max_size=3))
    found, packer = packed(documents, length, separator, cuts)
    rows = [row for rows in found for row in rows.batch.to_pylist()]
    wanted = reference(documents, length, separator)
    assert [(r["text"], r["segment_ids"], r["positions"]) for r in rows] == wanted
    assert packer.num_padding == sum(segments.count(0) for _, segments, _ in wanted)
    identities = np.concatenate([np.zeros(0, np.uint64), *(rows.identities for rows in found)])
    assert len(set(identities.tolist())) == len(rows)


def test_how_rows_come_in_batches_does_not_matter():
    documents = [[n] * (n % 5) for n in range(60)]
    one, many = packed(documents, 8, 99)[0], packed(documents, 8, 99, cuts=range(0, 60, 7))[0]
    joined = [pa.concat_batches([rows.batch for rows in found]) for found in (one, many)]
    assert joined[0].equals(joined[1])
    identities = [np.concatenate([rows.identities for rows in found]).tolist() for found in (one, many)]
    assert identities[0] == identities[1]


def test_the_features_say_the_length():
    features = packed_features(Packing(column="text", length=2048, separator=None))
    assert [f.describe_type() for f in features] == ["int64[2048]", "int32[2048]", "int32[2048]"]


@pytest.mark.parametrize(
    ("features", "separator", "message"),
    [
        ((make_feature("a", "string"),), "0", "there is none"),
        ((make_feature("a", "int64", (None,)), make_feature("b", "int64", (None,))), "0", "'a', 'b' are such"),
        ((make_feature("a", "int64", (None,)),), None, "needs --separator"),
        ((make_feature("a", "int64", (None,)),), "</s>", "is no number"),
    ],
)
def test_what_is_not_clear_is_refused(features, separator, message):
    with pytest.raises(UsageError) as caught:
        plan_packing(features, 16, separator, ())
    assert message in str(caught.value)


def test_a_separator_without_pack_is_refused():
    with pytest.raises(UsageError, match="no meaning without --pack"):
        plan_packing(TOKENS, None, "0", ())
