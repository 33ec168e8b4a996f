"""Texts and lists of tokens to indices of a vocabulary from the train split, in the input graph.

Index 0 is padding, 1 a token that is not in the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch, load_split
from shardkit.dataset.open import Dataset
from shardkit.features import Feature
from train.models.tabular_inputs import InputMaker

NUM_SPECIAL = 2
MAX_VOCABULARY = 30_000
MIN_COUNT = 2  # A token that occurs once teaches nothing but its own example.
MAX_TOKENS = 1_024
NUM_SCANNED_EXAMPLES = 200_000
_BATCH_SIZE = 1_024
_BOUNDARY = 16

# Scripts that are written without spaces: each character is a token.
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}]"
_SYMBOL = r"[^\p{L}\p{M}\p{N}\s]"

Token = str | int


def tokenize_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns the words of texts in lower case, string `[n, (words)]`; each symbol is one word."""
    lowered = tf.strings.lower(texts, encoding="utf-8")
    return tf.strings.split(tf.strings.regex_replace(lowered, f"({_UNSPACED}|{_SYMBOL})", r" \1 "))


def token_lists(values: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    """Returns the tokens of each example, strings or int64 `[n, (tokens)]`."""
    if feature.is_scalar:
        return tokenize_words(values)
    ragged = values if isinstance(values, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(values)
    return ragged if ragged.dtype == tf.string else tf.cast(ragged, tf.int64)


def scan_tokens(dataset: Dataset, split: str, feature: Feature) -> tuple[Token, ...]:
    """Returns the most frequent tokens of the first `NUM_SCANNED_EXAMPLES` examples, ties by token."""
    counter: Counter[Any] = Counter()
    batches = load_split(dataset, split, batch_size=_BATCH_SIZE, features=(feature,))
    for columns in batches.take(-(-NUM_SCANNED_EXAMPLES // _BATCH_SIZE)):
        counter.update(token_lists(columns[feature.name], feature).flat_values.numpy().tolist())
    kept = [(token, n) for token, n in counter.items() if n >= MIN_COUNT] or list(counter.items())
    order = sorted(kept, key=lambda item: (-item[1], item[0]))[:MAX_VOCABULARY]
    return tuple(t.decode(errors="replace") if isinstance(t, bytes) else t for t, _ in order)


def prepare_tokens(feature: Feature, vocabulary: tuple[Token, ...]) -> InputMaker:
    """Returns the function that makes the input `tokens`, int32 indices `[n, length]`.

    The length is that of the longest example, up to a multiple of a boundary so that graphs see few lengths, and never
    more than `MAX_TOKENS`: what follows is left out.
    """
    dtype = tf.int64 if vocabulary and isinstance(vocabulary[0], int) else tf.string
    indices = tf.range(NUM_SPECIAL, NUM_SPECIAL + len(vocabulary), dtype=tf.int32)
    keys = tf.constant(vocabulary, dtype) if vocabulary else tf.constant([], dtype)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, indices), default_value=1)

    def prepare(batch: ParsedBatch) -> dict[str, tf.Tensor]:
        tokens = _kept_tokens(batch, feature)
        return {"tokens": pad_to_boundary(tokens.with_flat_values(table.lookup(tokens.flat_values)), _BOUNDARY)}

    return InputMaker(prepare, [table])


def token_lengths(feature: Feature) -> Callable[[ParsedBatch], tf.Tensor]:
    """Returns the function that counts the tokens of each example that `prepare_tokens` makes inputs of."""
    return lambda batch: _kept_tokens(batch, feature).row_lengths()


def _kept_tokens(batch: ParsedBatch, feature: Feature) -> tf.RaggedTensor:
    return token_lists(batch.values[feature.name], feature)[:, :MAX_TOKENS]


def pad_to_boundary(ragged: tf.RaggedTensor, boundary: int) -> tf.Tensor:
    """Returns rows padded with 0 to the longest one, rounded up to a multiple of the boundary, which is the least."""
    dense = ragged.to_tensor(0)
    longest = tf.shape(dense)[1]
    length = tf.maximum((longest + boundary - 1) // boundary, 1) * boundary
    padding = [[0, 0], [0, length - longest], *([0, 0] for _ in dense.shape[2:])]
    return tf.ensure_shape(tf.pad(dense, padding), [None, None, *dense.shape[2:]])
