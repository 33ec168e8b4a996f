"""Steps on text: normal forms, lower case, token ids."""

from __future__ import annotations

import functools
import os
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import UsageError, missing_extra
from shardkit.features import Feature, Features, make_feature
from shardkit.messages import shown
from shardkit.transforms.options import UnicodeForm
from shardkit.transforms.steps import RowError, RowwiseStep, Taken, batch_of, check_distinct, find_feature
from shardkit.transforms.tokenizer_cache import TokenIds, encode_whole, word_tokens_of
from shardkit.transforms.user_files import read_user_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TokenizerSettings = dict[str, object]
_ChangeColumn = Callable[[pa.Array], pa.Array]


def unicode_step(features: Features, forms: tuple[tuple[str, UnicodeForm], ...]) -> RowwiseStep:
    """Returns the step that brings text into Unicode normal forms.

    Raises:
        UsageError: If a column is not there or no text.
    """
    changes: dict[str, _ChangeColumn] = {
        name: functools.partial(_change_values, functools.partial(_normalized, form)) for name, form in forms
    }
    return _text_step("--unicode-form", features, features, [name for name, _ in forms], changes)


def lower_step(features: Features, names: tuple[str, ...]) -> RowwiseStep:
    """Returns the step that lower-cases text: each code point by its simple mapping, whatever is beside it.

    Raises:
        UsageError: If a column is not there or no text.
    """
    changes: dict[str, _ChangeColumn] = {name: functools.partial(_change_values, pc.utf8_lower) for name in names}
    return _text_step("--lower", features, features, list(names), changes)


def tokenize_step(features: Features, tokenize: tuple[tuple[str, str, str], ...]) -> RowwiseStep:
    """Returns the step that puts token ids in the place of text: an int64 list of any length under the same name.

    Truncation and padding to a fixed length are as the tokenizer's file says. Padding to the longest of a batch is
    left out: a row's tokens would depend on its neighbours.

    Raises:
        UsageError: If a column is not there or no text, a tokenizer cannot be read, or it draws at random.
    """
    names = [name for name, _, _ in tokenize]
    for name in names:
        if not find_feature(features, name, "--tokenize").is_scalar:
            raise UsageError(
                f"--tokenize names the column {shown(name)}, which holds lists",
                next_step="Name a column that holds one text a row",
            )
    changes: dict[str, _ChangeColumn] = {
        name: functools.partial(_to_ids, _encoder_of(path, sha256)) for name, path, sha256 in tokenize
    }
    after = tuple(
        make_feature(f.name, "int64", (None,), nullable=f.nullable) if f.name in names else f for f in features
    )
    return _text_step("--tokenize", features, after, names, changes)


@functools.lru_cache(maxsize=16)
def load_tokenizer(path: str, sha256: str) -> Tokenizer:
    """Returns the tokenizer in a `tokenizer.json`.

    Raises:
        UsageError: If the file is another one than `sha256` says, is no tokenizer, or draws at random.
    """
    content = read_user_file(path, "--tokenize", sha256)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_extra("text", "tokenizers") from error
    # Processes share the cores already, and threads of a process that forks are lost.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        settings = msgspec.json.decode(content, type=_TokenizerSettings)
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:
        raise UsageError(
            "the file of --tokenize is no tokenizer",
            where=path,
            why=str(error),
            next_step="Name a tokenizer.json, as Tokenizer.save of the package tokenizers writes it",
        ) from error
    _refuse_random(settings.get("model"), path)
    padding = tokenizer.padding
    if padding is not None and padding.get("length") is None:
        tokenizer.no_padding()
    return tokenizer


def _refuse_random(model: object, path: str) -> None:
    # BPE dropout (Provilkov et al. 2020) and subword sampling (Kudo 2018) give other tokens every time.
    if isinstance(model, dict) and (model.get("dropout") or model.get("alpha")):
        raise UsageError(
            "the tokenizer draws at random",
            where=path,
            why="its model has dropout or sampling, so the same text would get other tokens every time",
            next_step='Set "dropout" or "alpha" of the model to null',
        )


def _text_step(
    option: str, features: Features, after: Features, names: list[str], changes: dict[str, _ChangeColumn]
) -> RowwiseStep:
    check_distinct(names, option)
    for name in names:
        _check_text(find_feature(features, name, option), option)

    def call(batch: pa.RecordBatch) -> Taken:
        columns = [_changed(column, f.name, changes) for column, f in zip(batch.columns, features, strict=True)]
        return Taken(batch_of(after, columns))

    return RowwiseStep(option, after, call)


def _check_text(feature: Feature, option: str) -> None:
    if feature.dtype != "string":
        raise UsageError(
            f"{option} names the column {shown(feature.name)}, which is no text",
            why=f"it is {feature.describe_type()}",
            next_step="Name a column of text, or make it one with --cast COLUMN=string",
        )


def _changed(column: pa.Array, name: str, changes: dict[str, _ChangeColumn]) -> pa.Array:
    if name not in changes:
        return column
    try:
        return changes[name](column)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise RowError(f"the text in column {shown(name)} cannot be changed", str(error)) from error


def _change_values(change: _ChangeColumn, column: pa.Array) -> pa.Array:
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        # A null takes up room in a fixed-size list, so that the values keep their places.
        start = column.offset * type_.list_size
        values = column.values.slice(start, len(column) * type_.list_size)
        mask = column.is_null() if column.null_count else None
        return pa.FixedSizeListArray.from_arrays(change(values), type=type_, mask=mask)
    if pa.types.is_list(type_):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int32)]).astype(np.int32)
        mask = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), change(column.flatten()), type=type_, mask=mask)
    return change(column)


def _normalized(form: UnicodeForm, values: pa.Array) -> pa.Array:
    # Arrow's own utf8_normalize decomposes for every form (apache/arrow issue 51225). ASCII is in all of them.
    is_other = pc.fill_null(pc.invert(pc.string_is_ascii(values)), False)
    others = values.filter(is_other).to_pylist()
    if not others:
        return values
    changed = pa.array([unicodedata.normalize(form, text) for text in others], pa.string())
    if isinstance(changed, pa.ChunkedArray):
        raise pa.ArrowCapacityError("the texts of a batch together have more than 2 GiB")
    return pc.replace_with_mask(values, is_other, changed)


@functools.lru_cache(maxsize=16)
def _encoder_of(path: str, sha256: str) -> Callable[[pa.Array], TokenIds]:
    tokenizer = load_tokenizer(path, sha256)
    by_word = word_tokens_of(tokenizer)
    return functools.partial(encode_whole, tokenizer) if by_word is None else by_word.encode


def _to_ids(encode: Callable[[pa.Array], TokenIds], column: pa.Array) -> pa.Array:
    try:
        ids = encode(column.drop_null() if column.null_count else column)
    except Exception as error:
        raise RowError("the text cannot be tokenized", str(error)) from error
    lengths = np.zeros(len(column), dtype=np.int64)
    lengths[column.is_valid().to_numpy(zero_copy_only=False)] = ids.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids.values), mask=mask)
