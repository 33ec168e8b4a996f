"""Errors of TensorFlow name what is at fault."""

import pyarrow as pa
import pytest

from shardkit.errors import DamageError
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

pytestmark = pytest.mark.full

FEATURES = (make_feature("id", "int64"),)


@pytest.mark.parametrize("name", ["step-300.index", "step-300.data-00000-of-00001", "step-300_temp/part-00000"])
def test_a_checkpoint_that_is_gone_is_not_taken_for_a_shard(tmp_path, name):
    import tensorflow as tf

    from train.input.reading_errors import explained

    batch = pa.record_batch([pa.array(range(10))], arrow_schema(FEATURES))
    dataset = write_dataset(tmp_path / "set", FEATURES, {"train": batch})
    missing = tmp_path / "run" / "checkpoints" / name
    with (
        pytest.raises(DamageError, match="a file of a checkpoint is missing") as caught,
        explained(dataset, "train", FEATURES),
    ):
        tf.io.read_file(str(missing))
    assert str(tmp_path / "run" / "checkpoints" / "step-300") in caught.value.where
    assert "--resume" in caught.value.next_step
