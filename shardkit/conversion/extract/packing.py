"""Packing: token lists of documents, one behind the other, become sequences of a fixed length.

A document is cut only where a sequence ends, and goes on in the next one as another segment. Documents of one input
split and one dataset split share sequences; the last of these is filled up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from shardkit.conversion.plan import Packing
from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema, make_feature
from shardkit.messages import shown
from shardkit.sources.base import InputSplit, RawFile, RowBatch
from shardkit.transforms.text import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SEGMENTS, POSITIONS = "segment_ids", "positions"
PADDING = 0
_ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[SEP]", "[EOS]")

_Tokens = npt.NDArray[np.int64]


def packed_features(packing: Packing) -> Features:
    """Returns the features of sequences: tokens, the number of the document in its sequence from 1, and positions.

    Tokens that fill up a sequence are 0, and so are their segment ids. Positions count from 0 in each segment.
    """
    shape = (packing.length,)
    return (
        make_feature(packing.column, "int64", shape),
        make_feature(SEGMENTS, "int32", shape),
        make_feature(POSITIONS, "int32", shape),
    )


def plan_packing(
    features: Features, length: int | None, separator: str | None, tokenize: tuple[tuple[str, str, str], ...]
) -> Packing | None:
    """Returns how `--pack` packs rows of some features; None if it is not given.

    The column is the one that `--tokenize` names, or the only list of integers. The separator is the tokenizer's end
    of text, unless the tokenizer puts tokens around each text itself.

    Raises:
        UsageError: If it is not clear which column or which separator is meant.
    """
    if length is None:
        if separator is not None:
            raise UsageError("--separator has no meaning without --pack", next_step="Add --pack LENGTH, or drop it")
        return None
    column = _token_column(features, tuple(name for name, _, _ in tokenize))
    used = next(((path, sha256) for name, path, sha256 in tokenize if name == column), None)
    tokenizer = None if used is None else load_tokenizer(*used)
    return Packing(column=column, length=length, separator=_separator(separator, tokenizer))


def _separator(text: str | None, tokenizer: Tokenizer | None) -> int | None:
    if text == "none":
        return None
    if text is not None:
        found = None if tokenizer is None else tokenizer.token_to_id(text)
        if found is None and not text.isdecimal():
            raise UsageError(
                f"--separator {shown(text)} is no token of the tokenizer"
                if tokenizer is not None
                else f"--separator {shown(text)} is no number, and the tokens come without a tokenizer",
                next_step="Give a token, its number, or none",
            )
        return int(text) if found is None else int(found)
    if tokenizer is not None:
        if tokenizer.encode("").ids:
            return None
        found = next((i for name in _ENDS_OF_TEXT if (i := tokenizer.token_to_id(name)) is not None), None)
        if found is not None:
            return int(found)
    raise UsageError(
        "--pack needs --separator",
        why="no tokenizer tells its end of text" if tokenizer is None else "the tokenizer has no usual end of text",
        next_step="Give --separator TOKEN, a number, or --separator none",
    )


def _token_column(features: Features, tokenized: tuple[str, ...]) -> str:
    found = [f.name for f in features if f.name in tokenized] or [f.name for f in features if _is_token_list(f)]
    if len(found) != 1:
        why = f"{', '.join(map(shown, found))} are such" if found else "there is none"
        raise UsageError(
            "--pack needs one column of tokens",
            why=why,
            next_step="Tokenize one column of text, as with --tokenize text=tokenizer.json, or leave the others out",
        )
    return found[0]


def _is_token_list(feature: Feature) -> bool:
    is_integer = feature.dtype.startswith(("int", "uint")) and feature.vocabulary is None
    return is_integer and feature.shape == (None,)


class Packer:
    """Packs the documents of one input split that belong to one dataset split."""

    def __init__(
        self, packing: Packing, features: Features, split: InputSplit, files: tuple[RawFile, ...], position: int
    ) -> None:
        self._packing = packing
        self._column = [f.name for f in features].index(packing.column)
        self._file_index = split.file_start
        self._schema = arrow_schema(packed_features(packing))
        name = f"packed\0{files[split.file_start].name}\0{split.start}\0{split.row_start}\0{position}"
        self._first_identity = np.uint64(xxhash.xxh3_64_intdigest(name.encode()))
        self._tokens: list[_Tokens] = []
        self._documents: list[_Tokens] = []
        self._num_held = self._num_documents = 0
        self.num_sequences = self.num_padding = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[RowBatch]:
        """Takes documents, and yields the sequences that are full."""
        tokens, lengths = self._with_separators(batch.column(self._column))
        numbers = np.arange(self._num_documents, self._num_documents + len(lengths))
        self._num_documents += len(lengths)
        self._tokens.append(tokens)
        self._documents.append(np.repeat(numbers, lengths))
        self._num_held += len(tokens)
        if self._num_held >= self._packing.length:
            yield self._take(self._num_held // self._packing.length)

    def end(self) -> Iterator[RowBatch]:
        """Yields what is left, filled up."""
        if self._num_held:
            self.num_padding = self._packing.length - self._num_held
            self._tokens.append(np.full(self.num_padding, PADDING))
            self._documents.append(np.full(self.num_padding, -1))
            yield self._take(1)

    def _with_separators(self, column: pa.Array) -> tuple[_Tokens, _Tokens]:
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        values = column.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        # A document without tokens is no segment.
        lengths = lengths[lengths > 0]
        if self._packing.separator is None:
            return values, lengths
        return np.insert(values, np.cumsum(lengths), self._packing.separator), lengths + 1

    def _take(self, num_sequences: int) -> RowBatch:
        length = self._packing.length
        stop = num_sequences * length
        held, owners = np.concatenate(self._tokens), np.concatenate(self._documents)
        self._tokens, self._documents = [held[stop:]], [owners[stop:]]
        self._num_held = max(0, len(held) - stop)
        tokens, owners = held[:stop].reshape(-1, length), owners[:stop].reshape(-1, length)
        is_padding = owners < 0
        segments = np.where(is_padding, 0, owners - owners[:, :1] + 1)
        columns = np.arange(length)
        starts = np.ones(owners.shape, dtype=bool)
        starts[:, 1:] = owners[:, 1:] != owners[:, :-1]
        positions = columns - np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
        arrays = (tokens, segments.astype(np.int32), np.where(is_padding, 0, positions).astype(np.int32))
        lists = [pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), length) for values in arrays]
        first = self._first_identity + np.uint64(self.num_sequences)
        self.num_sequences += num_sequences
        return RowBatch(
            pa.RecordBatch.from_arrays(lists, schema=self._schema),
            first + np.arange(num_sequences, dtype=np.uint64),
            self._file_index,
        )
