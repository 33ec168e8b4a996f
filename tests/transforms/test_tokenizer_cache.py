"""Token ids made word by word are those that the tokenizer makes of whole texts."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from shardkit.transforms.tokenizer_cache import encode_whole, word_tokens_of
from tests.support.examples import draws

PIECES = [
    *(
        "'",
        "s",
        "t",
        "re",
        "ve",
        "m",
        "ll",
        "d",
        " ",
        " ",
        "  ",
        "\n",
        "\t",
        "\r",
        "a",
        "B",
        "1",
        "'S",
        "!",
        "-",
        "the",
    ),
    *("\xb2", "\xe9", "\xa0", "\u3000", "\x85", "\u2028", "\u201c", "\u2019", "\u4e2d", "\u0663", "\U0001f600"),
    *("\U00010400", "\u0301", "\x00", "\x1c", "\u200b", "\u2167", "\ufeff", "<|end|>", "<|end"),
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12).map("".join)


def make_tokenizer(*, added=True):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    made.decoder = decoders.ByteLevel()
    tokens = ["<|end|>"] if added else []
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=alphabet, special_tokens=tokens)
    made.train_from_iterator(["the cat's mat, they'll see the tea at 12 or 123", "it's the end"] * 20, trainer)
    return made


TOKENIZER = make_tokenizer()
REMEMBERING = word_tokens_of(TOKENIZER)


def check(by_word, tokenizer, texts):
    values = pa.array(texts, pa.string())
    found, expected = by_word.encode(values), encode_whole(tokenizer, values)
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert found.values.tolist() == expected.values.tolist()


@settings(max_examples=draws(200), deadline=None)
@given(st.lists(TEXTS, max_size=8))
@example(["they're  'sad's", "it'", "s", "'", "ll", ""])
@example(["a \u3000", " b", "\u3000\u3000c", "\u3000"])
def test_the_same_ids_as_of_whole_texts(texts):
    # Repeated, so that most words were seen before; among others, so that texts begin anywhere.
    check(REMEMBERING, TOKENIZER, texts * 4)


@pytest.mark.full
def test_every_character_is_of_the_class_that_the_tokenizer_says():
    rng = random.Random(3)
    points = [*range(0x20, 0x3000), *(rng.randrange(0xE000, 0x110000) for _ in range(3000))]
    texts = [f"a{chr(p)}b 1{chr(p)}2 .{chr(p)}. {chr(p)}'s{chr(p)}" for p in points]
    check(word_tokens_of(TOKENIZER), TOKENIZER, texts)


def test_part_of_a_longer_column():
    values = pa.array(["the cat", "it's\u00e9", "", "<|end|>", " the  mat"], pa.string())
    for start in range(5):
        part = values.slice(start, 3)
        found, expected = REMEMBERING.encode(part), encode_whole(TOKENIZER, part)
        assert (found.lengths.tolist(), found.values.tolist()) == (expected.lengths.tolist(), expected.values.tolist())


@pytest.mark.full
def test_more_text_than_is_cut_at_once_and_more_words_than_are_remembered():
    tokenizer = make_tokenizer(added=False)
    by_word = word_tokens_of(tokenizer)
    numbers = [" ".join(map(str, range(start, start + 10))) for start in range(0, 110_000, 10)]
    mixed = [f"{text} the cat's mat, it'll see the tea at the mat" for text in numbers]
    for texts in (mixed, numbers[:2000], ["the", "it's " * 300_000, ""], ["x" * 100_000, "the"]):
        check(by_word, tokenizer, texts)


def other(change):
    made = make_tokenizer()
    change(made)
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t, "normalizer", normalizers.NFC()),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Whitespace()),
        lambda t: setattr(
            t, "post_processor", processors.TemplateProcessing("<|end|> $A", special_tokens=[("<|end|>", 0)])
        ),
        lambda t: t.enable_truncation(4),
        lambda t: t.enable_padding(length=8),
        lambda t: t.add_tokens([f"<{number}>" for number in range(40)]),
    ],
)
def test_tokenizers_that_work_otherwise_are_left_alone(change):
    assert word_tokens_of(other(change)) is None
