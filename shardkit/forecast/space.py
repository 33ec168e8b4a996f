"""The size of the manifest where nothing of the inputs was measured."""

from __future__ import annotations

from shardkit.conversion.space.sizes import _FILE_BYTES
from shardkit.forecast.values import ManifestSize, Workload
from shardkit.statistics.frequencies import MAX_VALUE_BYTES, MAX_VOCABULARY_BYTES, NUM_COUNTED, NUM_TOP_VALUES

# The most bytes of a manifest's recipe, versions and the rest.
_RECIPE_BYTES = 8 * 1024
_SPLIT_BYTES = 256
# The description of a feature, and its statistics without values.
_DESCRIBED_BYTES = 1536
# The JSON around a value, with the indentation: with its count, and alone.
_TOP_VALUE_BYTES = 100
_WORD_BYTES = 20


def manifest_at_most(work: Workload) -> ManifestSize:
    """Returns how large a manifest can become, where the values are unknown.

    Lists of the distinct values of features make it large. Each is taken as long as its statistics allow.
    """
    row_bytes = max(work.num_framed_bytes, work.num_bytes) // max(1, work.num_rows)
    value_bytes = min(MAX_VALUE_BYTES, -(-row_bytes // work.num_features))
    statistics = 0
    for share in work.shares:
        num_rows = max(1, int(work.num_rows * share.fraction))
        num_top = min(NUM_TOP_VALUES, num_rows)
        # More values than half the rows are not listed, but few always are.
        num_words = max(num_top, min(NUM_COUNTED, num_rows // 2))
        words = min(num_words * value_bytes, MAX_VOCABULARY_BYTES) + num_words * _WORD_BYTES
        top = num_top * (_TOP_VALUE_BYTES + MAX_VALUE_BYTES)
        statistics += _SPLIT_BYTES + work.num_features * (_DESCRIBED_BYTES + top + words)
    return ManifestSize(document_bytes=_RECIPE_BYTES, file_bytes=_FILE_BYTES, statistics_bytes=statistics)
