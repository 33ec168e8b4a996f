"""Generated text with the word frequencies of a language, a tokenizer for it, and rows of token ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.benchmarks.workloads import TOKENS_A_ROW, rows_of_tokens

_NUM_WORDS = 50_000
_WORDS_A_CHUNK = 500_000
# By how often they occur in English; the last ones take two bytes.
_LETTERS = np.array(list("etaoinshrdlcumwfgypbvkjxqzéü"))
_LETTER_WEIGHTS = np.array([12.7, 9.1, 8.2, 7.5, 7, 6.7, 6.3, 6.1, 6, 4.3, 4, 2.8, 2.8, 2.4, 2.4, 2.2, 2, 2, 1.9, 1.5])
_RARE_WEIGHTS = np.array([1, 0.8, 0.15, 0.15, 0.1, 0.07, 0.1, 0.05])
_ENDINGS, _ENDING_SHARES = (" ", ", ", ". "), (0.86, 0.94)
# A line ends at the first space after that many characters, and no word has more than 14.
_LINE_CHARACTERS = (76, 106)
_VOCABULARY_SIZE = 16_000
_TRAINING_LINES = 30_000


def make_text(path: Path, num_bytes: int) -> int:
    """Writes at least `num_bytes` of lines of 60 to 120 characters; words have Zipf's frequencies.

    Returns:
        How many lines.
    """
    rng = np.random.default_rng(7)
    words = _words(rng)
    chances = np.cumsum(1 / (np.arange(_NUM_WORDS) + 2.7))
    num_lines = written = 0
    with path.open("wb") as file:
        while written < num_bytes:
            ranks = np.searchsorted(chances, rng.random(_WORDS_A_CHUNK) * chances[-1])
            endings = np.searchsorted(_ENDING_SHARES, rng.random(_WORDS_A_CHUNK))
            chunk = words.take(pa.array(endings * _NUM_WORDS + np.minimum(ranks, _NUM_WORDS - 1)))
            _, offsets, characters = chunk.buffers()
            text = np.frombuffer(characters, np.uint8, np.frombuffer(offsets, np.int32)[len(chunk)]).copy()
            breaks = _break_lines(text, rng)
            num_lines += len(breaks)
            written += file.write(text[: breaks[-1] + 1].data)
    return num_lines


def _words(rng: np.random.Generator) -> pa.Array:
    """Returns words and phrases of two to four words, frequent ones shorter, with each of the endings."""
    weights = np.concatenate([_LETTER_WEIGHTS, _RARE_WEIGHTS])
    lengths = np.clip(rng.normal(2.2 + 0.55 * np.log(np.arange(_NUM_WORDS) + 1), 1.2), 1, 12).astype(int)
    letters = iter(rng.choice(_LETTERS, lengths.sum(), p=weights / weights.sum()).tolist())
    words = ["".join(islice(letters, int(length))) for length in lengths]
    # Every second entry is a phrase of earlier, more frequent words: text repeats itself beyond single words.
    for place in range(101, _NUM_WORDS, 2):
        parts = (place * rng.random(rng.integers(2, 5)) ** 3).astype(int)
        words[place] = " ".join(words[part - part % 2] for part in parts)
    return pa.array([word + ending for ending in _ENDINGS for word in words])


def _break_lines(text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Puts line ends in place of some spaces and returns where."""
    spaces = np.flatnonzero(text == ord(" "))
    ends = np.cumsum(rng.integers(*_LINE_CHARACTERS, len(text) // _LINE_CHARACTERS[0] + 1))
    breaks: np.ndarray = spaces[np.searchsorted(spaces, ends[ends < spaces[-1]])]
    text[breaks] = ord("\n")
    return breaks


def make_tokenizer(text: Path, path: Path) -> None:
    """Trains a byte-level BPE tokenizer on the start of a text; the same text gives the same tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )

    def lines() -> Iterator[str]:
        with text.open(encoding="utf-8") as file:
            yield from islice(file, _TRAINING_LINES)

    tokenizer.train_from_iterator(lines(), trainer)
    tokenizer.save(str(path))


def token_rows(num_bytes: int) -> pa.Table:
    """Returns a table of lists of 512 token ids, int32, of about that many bytes."""
    batch = rows_of_tokens(max(1, num_bytes // (4 * TOKENS_A_ROW))).batch
    ids = batch.column(0).flatten().cast(pa.int32())
    offsets = pa.array(np.arange(batch.num_rows + 1, dtype=np.int32) * TOKENS_A_ROW)
    return pa.table({"text": pa.ListArray.from_arrays(offsets, ids)})
