"""Columns of type `json`: from raw files to readers, each checked by a reader that is not ours."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardkit
from shardkit.cli import main
from shardkit.errors import DamageError

CHAT = [
    {"id": i, "messages": [{"role": "user", "content": f"é {i}"}, {"role": "bot", "tags": [], "n": i / 3}]}
    for i in range(40)
]


@pytest.fixture
def chat(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "chat.jsonl").write_text("\n".join(json.dumps(row) for row in CHAT))
    return tmp_path / "in"


def rows_of(folder):
    split = shardkit.open(str(folder))["train"]
    return [
        dict(zip(batch, row, strict=True))
        for batch in split.batches(global_batch_size=1, shuffle=False)
        for row in zip(*batch.values(), strict=True)
    ]


@pytest.mark.full
def test_chats_come_back_as_python_objects_and_tensorflow_reads_text(chat, tmp_path):
    import tensorflow as tf

    assert main(["convert", str(chat), str(tmp_path / "out"), "--num-shards", "1"]) == 0
    found = {int(row["id"]): row["messages"] for row in rows_of(tmp_path / "out")}
    assert found == {row["id"]: row["messages"] for row in CHAT}
    (shard,) = (tmp_path / "out" / "data").rglob("*.tfrecord.gz")
    for record in tf.data.TFRecordDataset(str(shard), "GZIP").as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        text = feature["messages"].bytes_list.value[0]
        assert json.loads(text) == CHAT[feature["id"].int64_list.value[0]]["messages"]


@pytest.mark.full
def test_the_same_values_in_parquet_give_the_same_text(chat, tmp_path):
    type_ = {"role": pa.string(), "content": pa.string()}
    rows = [{"id": i, "m": [{"role": "é", "content": str(i)}]} for i in range(30)]
    table = pa.Table.from_pylist(rows, pa.schema({"id": pa.int64(), "m": pa.list_(pa.struct(type_))}))
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row, separators=(" , ", " : ")) for row in rows))
    texts = []
    for name in ("a.parquet", "a.jsonl"):
        out = tmp_path / f"out-{name}"
        assert main(["convert", str(tmp_path / name), str(out)]) == 0
        batches = shardkit.open(str(out))["train"].batches(global_batch_size=30, decodes_text=False)
        texts.append({int(i): m for batch in batches for i, m in zip(batch["id"], batch["m"], strict=True)})
    assert texts[0] == texts[1]
    assert texts[0][7] == '[{"role":"é","content":"7"}]'.encode()


@pytest.mark.full
@pytest.mark.parametrize("way", ["cast", "schema"])
def test_text_that_is_json_becomes_such_a_column_and_other_text_is_a_bad_row(tmp_path, way, capsys):
    (tmp_path / "a.csv").write_text('id,meta\n1,"{""a"": [1, 2]}"\n2,\n3,nope\n')
    (tmp_path / "s.json").write_text('{"features": {"meta": "json"}}')
    options = ["--cast", "meta=json"] if way == "cast" else ["--schema", str(tmp_path / "s.json")]
    command = ["convert", str(tmp_path / "a.csv"), str(tmp_path / "out"), *options]
    assert main(command) == 3
    assert "expected JSON, got 'nope'" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--on-bad-record", "skip", "--max-bad", "1"]) == 0
    assert {int(row["id"]): row["meta"] for row in rows_of(tmp_path / "out")} == {1: {"a": [1, 2]}, 2: None}


@pytest.mark.full
def test_a_cast_to_string_keeps_the_text(chat, tmp_path):
    assert main(["convert", str(chat), str(tmp_path / "out"), "--cast", "messages=string"]) == 0
    found = {int(row["id"]): row["messages"] for row in rows_of(tmp_path / "out")}
    assert {key: json.loads(text) for key, text in found.items()} == {row["id"]: row["messages"] for row in CHAT}


@pytest.mark.full
def test_select_works_within(chat, tmp_path):
    statement = "SELECT id, messages->0->>'content' AS first, messages FROM rows WHERE id < 5"
    assert main(["convert", str(chat), str(tmp_path / "out"), "--select", statement]) == 0
    assert {int(row["id"]): row["first"] for row in rows_of(tmp_path / "out")} == {i: f"é {i}" for i in range(5)}


@pytest.mark.full
def test_a_dataset_whose_text_is_no_json_is_damaged(tmp_path):
    from shardkit.features import make_feature
    from tests.train.conftest import write_dataset

    folder = write_dataset(tmp_path / "set", (make_feature("a", "json"),), {"train": [{"a": "{"}] * 4})
    with pytest.raises(DamageError):
        rows_of(folder)
