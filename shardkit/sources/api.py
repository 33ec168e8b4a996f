"""What a source of another package needs, in one place: the types it gives, and the helpers that the built-in ones use.

`examples/fixed_width` is a whole format on it.
"""

from shardkit.errors import BadInputError, DamagedFileError
from shardkit.features import Feature, Features, make_feature
from shardkit.sources.base import (
    InputSplit,
    RawFile,
    RowBatch,
    Source,
    SourceOptions,
    place,
    rejected_row,
    row_identities,
)
from shardkit.sources.columns.casting import BadValueError, cast_column
from shardkit.sources.columns.row_casting import CastRows, bad_value_error, cast_rows
from shardkit.sources.files.streams import guard_unchanged, open_stream

__all__ = [
    "BadInputError",
    "BadValueError",
    "CastRows",
    "DamagedFileError",
    "Feature",
    "Features",
    "InputSplit",
    "RawFile",
    "RowBatch",
    "Source",
    "SourceOptions",
    "bad_value_error",
    "cast_column",
    "cast_rows",
    "guard_unchanged",
    "make_feature",
    "open_stream",
    "place",
    "rejected_row",
    "row_identities",
]
