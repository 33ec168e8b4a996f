"""One small dataset for all frameworks."""

import pyarrow as pa
import pytest

from shardkit.features import arrow_schema, make_feature
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset

FEATURES = (
    make_feature("id", "int64"),
    make_feature("key", "int64"),
    make_feature("word", "string", nullable=True),
    make_feature("at", "timestamp[us]"),
    make_feature("point", "float32", (2,)),
    make_feature("tokens", "int32", (None,)),
)
NUM_ROWS = 500


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    columns = {
        "id": range(NUM_ROWS),
        "key": [2**40 + i for i in range(NUM_ROWS)],
        "word": [None if i % 4 == 0 else f"w{i}" for i in range(NUM_ROWS)],
        "at": [i * 10**6 for i in range(NUM_ROWS)],
        "point": [[i, -i] for i in range(NUM_ROWS)],
        "tokens": [list(range(i % 3)) for i in range(NUM_ROWS)],
    }
    arrays = [pa.array(columns[f.name], f.arrow_type) for f in FEATURES]
    batch = pa.record_batch(arrays, arrow_schema(FEATURES))
    folder = tmp_path_factory.mktemp("torch") / "set"
    return Splits(write_dataset(folder, FEATURES, {"train": batch}, num_shards=4, block_examples=5))
