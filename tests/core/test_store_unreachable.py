"""Stores that do not answer: an error says so, and what to check."""

import pyarrow as pa
import pytest
from range_server import serve

import shardkit
from shardkit.errors import StorageError
from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset


@pytest.fixture
def folder(tmp_path):
    features = (make_feature("id", "int64"),)
    write_dataset(tmp_path, features, {"train": pa.record_batch([pa.array(range(30))], arrow_schema(features))})
    return tmp_path


def test_a_store_that_does_not_answer_is_named_without_its_secrets(folder):
    with serve(folder) as server:
        address = server.url.removeprefix("http://")
        opened = shardkit.open(server.url)
        assert opened["train"].num_examples == 30
        server.server_close()
        asked = [
            lambda: shardkit.open(f"http://me:secret@{address}?signature=secret"),
            lambda: next(iter(opened["train"].batches(global_batch_size=10))),
        ]
        for ask in asked:
            with pytest.raises(StorageError, match="the store does not answer") as caught:
                ask()
            message = str(caught.value)
            assert "secret" not in message
            assert address in message
            assert "Check the address" in message
