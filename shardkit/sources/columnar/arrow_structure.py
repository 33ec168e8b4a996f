"""How batches are laid out: which counts belong to which column, and whether the buffers make sense."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc

_BYTES_OF = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def leaf_nodes(schema: pa.Schema) -> list[tuple[int, ...]]:
    """Returns, for each flattened column, the positions of the null counts in a message that concern it.

    Empty where these counts do not tell whether the column has nulls.
    """
    numbers = count()
    return [nodes for field in schema for nodes in _leaf_nodes(field.type, numbers, ())]


def check_structure(batch: pa.RecordBatch) -> None:
    """Checks all offsets, indices and lengths of a batch. Text may be no UTF-8: that is a matter of single rows.

    Raises:
        ArrowInvalid: If they do not fit together.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        for column in batch.columns:
            _check_but_text(column)


def _leaf_nodes(type_: pa.DataType, numbers: Iterator[int], parents: tuple[int, ...]) -> list[tuple[int, ...]]:
    if isinstance(type_, pa.BaseExtensionType):
        return _leaf_nodes(type_.storage_type, numbers, parents)
    nodes = (*parents, next(numbers))
    children = [] if pa.types.is_dictionary(type_) else [type_.field(i).type for i in range(type_.num_fields)]
    below = [found for child in children for found in _leaf_nodes(child, numbers, nodes)]
    if pa.types.is_struct(type_) and children:
        return below
    # A dictionary may hold a null, and nothing but nulls has no count.
    return [()] if pa.types.is_dictionary(type_) or pa.types.is_null(type_) else [nodes]


def _check_but_text(column: pa.Array) -> None:
    column.validate()
    if isinstance(column.type, pa.BaseExtensionType):
        _check_but_text(column.storage)
    elif pa.types.is_dictionary(column.type):
        _check_but_text(column.dictionary)
        column.indices.validate(full=True)
        limits = pc.min_max(column.indices)
        smallest, largest = limits["min"].as_py(), limits["max"].as_py()
        if smallest is not None and not 0 <= smallest <= largest < len(column.dictionary):
            raise pa.ArrowInvalid("an index points outside of its dictionary")
    else:
        column.view(_without_text(column.type)).validate(full=True)


def _without_text(type_: pa.DataType) -> pa.DataType:
    if type_ in _BYTES_OF:
        return _BYTES_OF[type_]
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_without_text(f.type)) for f in type_])
    is_fixed, is_large = pa.types.is_fixed_size_list(type_), pa.types.is_large_list(type_)
    if not (is_fixed or is_large or pa.types.is_list(type_)):
        return type_
    items = type_.value_field.with_type(_without_text(type_.value_type))
    return pa.large_list(items) if is_large else pa.list_(items, type_.list_size if is_fixed else -1)
