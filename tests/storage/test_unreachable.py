"""Stores that do not answer: an error says so, and what to check; nobody who went away hears of it."""

import asyncio
import gc
import threading

import pyarrow as pa
import pytest
from fsspec.asyn import AsyncFileSystem

import shardkit
from shardkit.errors import StorageError
from shardkit.features import arrow_schema, make_feature
from shardkit.storage import requests
from shardkit.testing import write_dataset
from tests.support.stores.range_server import serve

pytestmark = pytest.mark.full


@pytest.fixture
def folder(tmp_path):
    features = (make_feature("id", "int64"),)
    write_dataset(tmp_path, features, {"train": pa.record_batch([pa.array(range(30))], arrow_schema(features))})
    return tmp_path


def test_a_store_that_does_not_answer_is_named_without_its_secrets(folder, monkeypatch):
    monkeypatch.setenv(requests.DEADLINE_VARIABLE, "0.2")
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


def test_a_server_that_has_every_name_has_no_dataset(folder):
    with serve(folder) as server:
        server.page_of_any_name = b"<html>Welcome</html>"
        with pytest.raises(StorageError, match="says of every name that it is there"):
            shardkit.open(f"{server.url}/elsewhere")
        server.page_of_any_name = None
        assert shardkit.open(server.url)["train"].num_examples == 30


class Failing(AsyncFileSystem):
    """A store whose client fails, instead of ending, when a request is cancelled; as some do when both meet."""

    cachable = False

    def __init__(self):
        super().__init__()
        self.is_asked, self.has_failed = threading.Event(), threading.Event()

    async def _cat_file(self, path, start=None, end=None, **_):
        self.is_asked.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise OSError("the connection was lost") from None
        finally:
            self.has_failed.set()


def test_a_request_that_fails_when_nobody_waits_any_more_is_silent(monkeypatch, caplog):
    store = Failing()
    monkeypatch.setattr(requests, "client_of", lambda *_, **__: store)
    monkeypatch.setattr(requests, "current_stop_event", lambda: store.is_asked)
    with pytest.raises(StorageError, match="given up"):
        requests.request_range("s3://bucket/x", 0, 9, timeout_s=60)
    assert store.has_failed.wait(60)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), store.loop).result()
    gc.collect()
    assert caplog.records == []
