"""Rows get what their addresses give, in order, whatever comes first; nothing here asks a server."""

import random
import time

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from shardkit.conversion.inputs.option_checks import check_options
from shardkit.conversion.request import parse_request
from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.sources.base import InputSplit, RawFile, RejectedRow, RowBatch, SourceOptions, row_identities
from shardkit.transforms.fetch import rows as module
from shardkit.transforms.fetch.limits import FetchError
from shardkit.transforms.fetch.rows import fetched
from shardkit.transforms.options import Fetch, TransformOptions
from shardkit.transforms.pipeline import apply, plan_transforms

FEATURES = (make_feature("url", "string", nullable=True), make_feature("n", "int64"))
FILES = (RawFile(path="/urls.csv", name="urls.csv", num_bytes=1, version=""),)
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)
PNG, WAV = b"\x89PNG\r\n\x1a\n" + bytes(20), b"RIFF\x00\x00\x00\x00WAVEfmt " + bytes(20)
WEBM = b"\x1a\x45\xdf\xa3\x9fB\x82\x84webm" + bytes(60)


class FakeClient:
    """Gives the URL itself, after a while; what begins with `bad` fails."""

    def __init__(self, *_, **__):
        pass

    def fetch(self, text):
        time.sleep(random.random() / 500)
        if text.startswith("bad"):
            raise FetchError("status 404")
        return {"png": PNG, "wav": WAV, "webm": WEBM}.get(text, text.encode() * 100)


def options(kind="bytes"):
    return TransformOptions(fetch=("url", kind))


def batch(urls, *, rejected=()):
    columns = [pa.array(urls, pa.string()), pa.array(range(len(urls)), pa.int64())]
    found = pa.RecordBatch.from_arrays(columns, names=["url", "n"])
    return RowBatch(found, row_identities(FILES[0], 0, 0, len(urls)), 0, {"n": 1}, rejected)


def run(urls, kind="bytes", *, tolerant=True, **settings):
    source = SourceOptions(format="csv", tolerates_bad_rows=tolerant)
    return list(fetched(iter([batch(urls, **settings)]), options(kind), FILES, SPLIT, source))


@pytest.fixture(autouse=True)
def client(monkeypatch):
    monkeypatch.setattr(module, "client_of", FakeClient)


@pytest.mark.parametrize("num_threads", [1, 3, 32])
def test_rows_keep_their_order_and_batches_their_ends_whatever_comes_first(monkeypatch, num_threads):
    monkeypatch.setattr(module, "_NUM_THREADS", num_threads)
    monkeypatch.setattr(module, "_ROWS_AHEAD", 40)
    monkeypatch.setattr(module, "_BATCH_ROWS", 30)
    monkeypatch.setattr(module, "_BATCH_BYTES", 12_000)
    urls = [f"bad{i}" if i % 9 == 4 else None if i % 20 == 7 else f"{i:05d}" for i in range(150)]
    parts = run(urls)
    wanted = [i for i in range(150) if not (urls[i] or "").startswith("bad")]
    assert [i for part in parts for i in part.batch["n"].to_pylist()] == wanted
    contents = [c for part in parts for c in part.batch["content"].to_pylist()]
    assert contents == [urls[i] and urls[i].encode() * 100 for i in wanted]
    identities = np.concatenate([part.identities for part in parts])
    assert (identities == row_identities(FILES[0], 0, 0, 150)[wanted]).all()
    # 24 contents of 500 bytes are 12,000.
    assert [part.batch.num_rows + len(part.rejected) for part in parts] == [29, 28, 27, 30, 28, 8]
    assert [part.num_rounded for part in parts] == [{"n": 1}, {}, {}, {}, {}, {}]


def test_what_cannot_be_fetched_is_a_rejected_row_that_keeps_what_the_source_gave():
    before = RejectedRow(file_index=0, position="row 9", first_byte=None, reason="of the source", raw=b"")
    (part,) = run(["a", "bad?token=secret", "b"], rejected=(before,))
    assert part.rejected[0] is before
    row = part.rejected[1]
    assert (row.position, row.reason) == ("row 2", "the URL cannot be fetched: status 404")
    assert msgspec.json.decode(row.raw) == {"url": "bad?token=secret", "n": 1}


def test_the_first_bad_row_ends_the_conversion_where_none_is_tolerated():
    with pytest.raises(BadInputError) as caught:
        run(["a", "bad?token=secret", "bad"], tolerant=False)
    assert "urls.csv, row 2" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_kind_that_was_not_asked_for_is_a_bad_row():
    urls = ["png", "wav", "webm", "text"]
    for kind, good in (("image", PNG), ("audio", WAV), ("video", WEBM)):
        (part,) = run(urls, kind)
        assert part.batch[kind].to_pylist() == [good]
        assert [row.reason for row in part.rejected] == [f"the URL cannot be fetched: what it gives is no {kind}"] * 3


def test_a_batch_without_rows_passes_on_what_is_known_of_it():
    row = RejectedRow(file_index=0, position="row 1", first_byte=None, reason="bad", raw=b"")
    (part,) = run([], rejected=(row,))
    assert (part.batch.schema.names, part.batch.num_rows, part.rejected) == (["url", "n", "content"], 0, (row,))


def test_little_is_fetched_ahead_of_large_contents(monkeypatch):
    monkeypatch.setattr(module, "_HELD_BYTES", 1_000)
    held = []

    class Watched(FakeClient):
        def fetch(self, text):
            held.append(text)
            return bytes(600)

    monkeypatch.setattr(module, "client_of", Watched)
    monkeypatch.setattr(module, "_NUM_THREADS", 4)
    monkeypatch.setattr(module, "_ROWS_AHEAD", 4)
    monkeypatch.setattr(module, "_BATCH_BYTES", 600)
    most = 0
    source = SourceOptions(format="csv")
    for done, _ in enumerate(fetched(iter([batch([str(i) for i in range(60)])]), options(), FILES, SPLIT, source)):
        most = max(most, len(held) - done)
    assert most <= 5


def test_the_column_comes_before_all_steps_and_rejected_rows_lack_it():
    given = TransformOptions(fetch=("url", "image"), rename=(("image", "photo"),), source_column="file")
    plan = plan_transforms(FEATURES, given, SourceOptions(format="csv", tolerates_bad_rows=True))
    assert [(f.name, f.media_type, f.nullable) for f in plan.output_features] == [
        ("url", None, True), ("n", None, False), ("photo", "image/*", True), ("file", None, False),
    ]  # fmt: skip
    assert plan.input_features == FEATURES
    (part,) = run(["png", "png"], "image")
    rows = apply(plan, part, FILES, SPLIT).rows
    assert rows.batch.schema.names == ["url", "n", "photo", "file"]
    given = TransformOptions(fetch=("url", "image"), cast=(("url", "int64"),))
    plan = plan_transforms(FEATURES, given, SourceOptions(format="csv", tolerates_bad_rows=True))
    rows = apply(plan, part, FILES, SPLIT).rows
    assert [msgspec.json.decode(row.raw) for row in rows.rejected] == [{"url": "png", "n": i} for i in range(2)]


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ((make_feature("u", "string"),), "--fetch names a column 'url' that is not there"),
        ((make_feature("url", "int64"),), "--fetch takes a column of text"),
        ((*FEATURES, make_feature("image", "bytes")), "--fetch adds the column 'image', which the inputs have"),
    ],
)
def test_columns_that_cannot_be(features, said):
    with pytest.raises(UsageError, match=said):
        plan_transforms(features, options("image"), SourceOptions(format="csv"))


def test_how_the_option_is_written():
    form = Fetch("COLUMN")
    for text, value in (
        ("url", ("url", "bytes")),
        ("url=image", ("url", "image")),
        ("a=b", ("a=b", "bytes")),
        ("a=b=audio", ("a=b", "audio")),
    ):
        assert form.parse(text) == value
        assert form.parse(form.write(value, {})) == value


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"fetch": "url", "dedup_all": True}, "--fetch and --dedup exclude each other"),
        ({"fetch": "url", "sample": 3}, "--fetch and --sample exclude each other"),
        ({"fetch_private": True}, "--fetch-private is for --fetch"),
        ({"fetch_disallowed": True}, "--fetch-disallowed is for --fetch"),
        ({"fetch_again": True}, "--fetch-again is for --append"),
    ],
)
def test_options_that_exclude_each_other(typed, said):
    with pytest.raises(UsageError, match=said):
        check_options(parse_request(typed, ("urls.csv",), "out"))
