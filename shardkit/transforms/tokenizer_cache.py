"""Token ids word by word, for tokenizers that cut text as GPT-2 does: a word that was seen before costs a look-up.

The words are those of `ByteLevel` in Hugging Face's tokenizers, matched one after the other by
`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`. A model makes the ids of each
word by itself. The tokenizer says which characters are letters, numbers and spaces; each is asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_ADDED_TOKENS = 32
_MAX_WORDS = 100_000
_MAX_WORD_BYTES = 64
_PART_BYTES = 2**20
_NUM_CODE_POINTS = 0x110000
_UNKNOWN, _SPACE, _LETTER, _NUMBER, _OTHER = range(5)
# A character belongs to the first class whose probe it continues without a cut.
_PROBES = ((_LETTER, "a"), (_NUMBER, "1"), (_SPACE, "\n"), (_OTHER, "!"))
_APOSTROPHE, _BLANK = ord("'"), ord(" ")
_CONTRACTIONS = (b"s", b"t", b"re", b"ve", b"m", b"ll", b"d")

_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]
_Int64s = npt.NDArray[np.int64]


class TokenIds(NamedTuple):
    """Token ids of texts: how many each has, and all of them."""

    lengths: _Int64s
    values: _Int64s


def word_tokens_of(tokenizer: Tokenizer) -> WordTokens | None:
    """Returns the maker of ids word by word, None if the tokenizer is not known to work so."""
    settings = msgspec.json.decode(tokenizer.to_str(), type=dict[str, Any])
    cutter, after = settings.get("pre_tokenizer"), settings.get("post_processor")
    added = [token.get("content") for token in settings.get("added_tokens") or ()]
    is_word_by_word = (
        settings.get("normalizer") is None
        and isinstance(cutter, dict)
        and cutter.get("type") == "ByteLevel"
        and cutter.get("add_prefix_space") is False
        and cutter.get("use_regex", True) is True
        and (after is None or (isinstance(after, dict) and after.get("type") == "ByteLevel"))
        and settings.get("truncation") is None
        and settings.get("padding") is None
        and len(added) <= _MAX_ADDED_TOKENS
        and all(added)
    )
    return WordTokens(tokenizer, added) if is_word_by_word else None


class WordTokens:
    """Makes token ids of texts, and remembers those of words.

    Args:
        tokenizer: Cuts text as GPT-2 does, and its model makes ids of each word by itself.
        added: Tokens that are found in the text before it is cut; texts with one of them are left to the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, added: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._added = tuple(added)
        self._classes = np.zeros(_NUM_CODE_POINTS, np.uint8)
        self._learn(np.arange(0x80))
        self._classes_of_bytes = np.append(self._classes[:0x80], np.zeros(0x80, np.uint8))
        self._ids: dict[bytes, list[int]] = {}

    def encode(self, texts: pa.Array) -> TokenIds:
        """Returns the ids of texts; the same as those of the tokenizer itself.

        Args:
            texts: Of the type `string`, without nulls.
        """
        left = self._left_to_tokenizer(texts)
        if left is None:
            return self._by_word(texts)
        slow = encode_whole(self._tokenizer, texts.filter(pa.array(left)))
        fast = self._by_word(texts.filter(pa.array(~left)))
        lengths = np.zeros(len(texts), np.int64)
        lengths[left], lengths[~left] = slow.lengths, fast.lengths
        values = np.zeros(lengths.sum(), np.int64)
        is_slow = np.repeat(left, lengths)
        values[is_slow], values[~is_slow] = slow.values, fast.values
        return TokenIds(lengths, values)

    def _left_to_tokenizer(self, texts: pa.Array) -> _Flags | None:
        found = None
        for content in self._added:
            has_it = pc.match_substring(texts, content).to_numpy(zero_copy_only=False)
            found = has_it if found is None else found | has_it
        return found if found is not None and found.any() else None

    def _by_word(self, texts: pa.Array) -> TokenIds:
        _, offsets, content = texts.buffers()
        if not len(texts) or content is None:
            return TokenIds(np.zeros(len(texts), np.int64), np.zeros(0, np.int64))
        ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        data = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
        ends = ends - ends[0]
        # Few enough at a time that their bytes stay in the processor's cache.
        cuts = sorted({0, *np.flatnonzero(np.diff(ends // _PART_BYTES)).tolist(), len(texts)})
        parts = [
            self._part(data[ends[start] : ends[stop]], ends[start : stop + 1] - ends[start])
            or encode_whole(self._tokenizer, texts.slice(start, stop - start))
            for start, stop in pairwise(cuts)
        ]
        return TokenIds(np.concatenate([p.lengths for p in parts]), np.concatenate([p.values for p in parts]))

    def _part(self, data: _Bytes, ends: npt.NDArray[np.int32]) -> TokenIds | None:
        # Returns None where most words are new: ids of each word take longer than those of the whole text.
        starts = np.flatnonzero(self._word_starts(data, ends))
        bounds = np.append(starts, len(data)).astype(np.int32)
        words = pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
        encoded = words.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        missing = [word for word in distinct if word not in self._ids]
        if 2 * len(missing) > len(words):
            return None
        ids = self._ids_of(distinct, missing)
        sizes = np.fromiter(map(len, ids), np.int32, len(ids))
        flat = pa.array(np.fromiter(chain.from_iterable(ids), np.int64, int(sizes.sum())))
        offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
        found = pa.ListArray.from_arrays(pa.array(offsets), flat).take(encoded.indices)
        tokens_before = found.offsets.to_numpy()[np.searchsorted(starts, ends)]
        return TokenIds(np.diff(tokens_before).astype(np.int64), found.flatten().to_numpy())

    def _ids_of(self, words: list[bytes], missing: list[bytes]) -> list[list[int]]:
        known = self._ids
        found = dict(zip(missing, _ids_of_texts(self._tokenizer, [w.decode() for w in missing]), strict=True))
        ids = [known[word] if word in known else found[word] for word in words]
        if len(known) + len(found) > _MAX_WORDS:
            known.clear()
        known.update((word, found[word]) for word in missing[:_MAX_WORDS] if len(word) <= _MAX_WORD_BYTES)
        return ids

    def _word_starts(self, data: _Bytes, ends: npt.NDArray[np.int32]) -> _Flags:
        """Returns which bytes a word starts with; `ends` are those of texts, with a zero before them."""
        size = len(data)
        classes = self._classes_of(data)
        is_first = np.zeros(size + 1, np.bool_)
        is_first[ends] = True
        is_space = classes == _SPACE
        follows_space = np.zeros(size, np.bool_)
        follows_space[1:] = is_space[:-1]
        follows_space &= ~is_first[:-1]
        is_start = np.zeros(size, np.bool_)
        is_start[1:] = classes[1:] != classes[:-1]
        is_start |= is_first[:-1]
        # A blank belongs to the word behind it, and of several spaces only the last may.
        is_blank = data == _BLANK
        joins = np.zeros(size, np.bool_)
        joins[1:] = is_blank[:-1]
        is_start &= ~(joins & follows_space & ~is_space)
        last = np.flatnonzero(is_space[:-1] & ~is_space[1:] & ~is_first[1:-1])
        while (is_inside := data[last] & 0xC0 == 0x80).any():
            last = last - is_inside
        is_start[last] = True
        self._cut_contractions(data, is_start, is_first)
        return is_start

    def _cut_contractions(self, data: _Bytes, is_start: _Flags, is_first: _Flags) -> None:
        places = np.flatnonzero((data == _APOSTROPHE) & is_start)
        padded = np.append(data, np.zeros(2, np.uint8))
        for letters in _CONTRACTIONS:
            at = places
            for number, letter in enumerate(letters, start=1):
                at = at[at + number < len(data)]
                at = at[(padded[at + number] == letter) & ~is_first[at + number]]
            is_start[at + 1] = False
            after = at + 1 + len(letters)
            is_start[after[after < len(data)]] = True

    def _classes_of(self, data: _Bytes) -> _Bytes:
        classes = self._classes_of_bytes[data]
        leads = np.flatnonzero(data >= 0xC0)
        if not len(leads):
            return classes
        padded = np.append(data, np.zeros(3, np.uint8))
        first, second, third, fourth = (padded[leads + k].astype(np.int64) for k in range(4))
        points = (first & 0x1F) << 6 | second & 0x3F
        points = np.where(first >= 0xE0, (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F, points)
        far = (first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F
        points = np.where(first >= 0xF0, far, points)
        self._learn(points)
        found = self._classes[points]
        classes[leads] = found
        for number, least in enumerate((0xC0, 0xE0, 0xF0), start=1):
            is_long = first >= least
            classes[leads[is_long] + number] = found[is_long]
        return classes

    def _learn(self, points: _Int64s) -> None:
        new = points[self._classes[points] == _UNKNOWN]
        cut = self._tokenizer.pre_tokenizer.pre_tokenize_str
        for point in np.unique(new).tolist():
            character = chr(point)
            self._classes[point] = next(c for c, before in _PROBES if len(cut(before + character)) == 1)


def encode_whole(tokenizer: Tokenizer, texts: pa.Array) -> TokenIds:
    """Returns the ids of texts, each made by the tokenizer as a whole."""
    ids = _ids_of_texts(tokenizer, texts.to_pylist())
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return TokenIds(lengths, np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum())))


def _ids_of_texts(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
