"""Text and lists to indices of tokens."""

from __future__ import annotations

import pytest
import tensorflow as tf

from shardkit.features import make_feature
from train.models.tokens import MAX_TOKENS, prepare_tokens, tokenize_words

pytestmark = pytest.mark.full


def test_words_are_split_in_any_script() -> None:
    found = tokenize_words(tf.constant(["Don't STOP, Émile!", "我爱 cats", "", " \t"])).to_list()
    words = [[w.decode() for w in row] for row in found]
    assert words == [["don", "'", "t", "stop", ",", "émile", "!"], ["我", "爱", "cats"], [], []]


def test_unknown_tokens_padding_and_overlong_texts() -> None:
    from shardkit.adapters.tfdata import ParsedBatch

    prepare = prepare_tokens(make_feature("t", "string"), ("a", "b"))
    found = prepare(ParsedBatch({"t": tf.constant(["b x a", ""])}, {}))["tokens"].numpy()
    assert found.shape == (2, 16)
    assert found[0].tolist() == [3, 1, 2] + [0] * 13
    assert not found[1].any()
    long = prepare(ParsedBatch({"t": tf.constant(["a " * (MAX_TOKENS + 5)])}, {}))["tokens"]
    assert long.shape == (1, MAX_TOKENS)
