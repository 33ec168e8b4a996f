"""Appending: old shards stay as they are, and old and new rows together are what one conversion of all would give."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import shardkit
from shardkit.cleaning.decide import plan_cleaning
from shardkit.cleaning.inventory import take_inventory
from shardkit.conversion.commit.commit import own_commit
from shardkit.conversion.inputs.append_check import NothingNew
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.dataset.append_info import appended_to, statistics_file
from shardkit.dataset.documents import InputInfo
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.dataset.rejected_rows import read_rejected
from shardkit.errors import BadInputError, ConflictError, UsageError
from shardkit.verify.shards import verify_dataset
from tests.support.appends import SPLITS, assert_alike, files_of, more, rows_by_split, split_of, statistics_of, write
from tests.support.in_process import read_rows, run_plan

pytestmark = pytest.mark.full


@pytest.fixture
def data(tmp_path):
    """Returns a folder with one file; `more` adds others."""
    write(tmp_path / "data" / "a.csv", 0, 5_000)
    return tmp_path / "data"


def test_rows_and_splits_are_those_of_a_conversion_of_everything(convert, data):
    first = convert(data, splits=SPLITS, shard_bytes=20_000)
    before, untouched = split_of(first), files_of(first)
    more(data)
    dataset = convert(data, append=True)
    assert (dataset.version, list_versions(dataset.url)) == (2, [1, 2])
    whole = convert(data, "whole", splits=SPLITS, shard_bytes=20_000)
    after = split_of(dataset)
    assert before.items() <= after.items()
    assert after == split_of(whole)
    assert {n: sorted(r, key=str) for n, r in rows_by_split(dataset).items()} == {
        n: sorted(r, key=str) for n, r in rows_by_split(whole).items()
    }
    assert files_of(first) == untouched
    old = {s.path for s in first.shards}
    assert {s.path for s in dataset.shards if f"/{first.manifest.fingerprint}/" in s.path} == old
    assert len(dataset.shards) > len(old)
    assert verify_dataset(dataset).is_whole
    assert verify_dataset(open_dataset(dataset.url, 1)).is_whole
    assert appended_to(dataset.manifest).version == 1


def test_statistics_and_books_are_those_of_a_conversion_of_everything(convert, data):
    convert(data, splits=SPLITS)
    more(data)
    dataset = convert(data, append=True)
    whole = convert(data, "whole", splits=SPLITS)
    assert_alike(statistics_of(dataset), statistics_of(whole))
    assert dataset.manifest.accounting == whole.manifest.accounting
    assert dataset.manifest.recipe == whole.manifest.recipe
    for own in dataset.manifest.splits:
        other = whole.manifest.split(own.name)
        assert (own.num_examples, own.num_uncompressed_bytes) == (other.num_examples, other.num_uncompressed_bytes)


@pytest.mark.slow
def test_plain_tensorflow_reads_old_and_new_rows(convert, data):
    convert(data, num_shards=2)
    more(data)
    dataset = convert(data, append=True)
    paths = [dataset.shard_url(s) for s in dataset.split_shards("train")]
    code = (
        "import sys, tensorflow as tf\n"
        "spec = {'id': tf.io.FixedLenFeature([], tf.int64)}\n"
        "records = tf.data.TFRecordDataset(sys.argv[1:], 'GZIP')\n"
        "print(*(int(tf.io.parse_single_example(r, spec)['id']) for r in records))"
    )
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    wanted = [*range(5_000), *range(10_000, 13_000), *range(20_000, 21_000)]
    assert sorted(map(int, done.stdout.split())) == wanted


def test_old_shards_are_not_read(convert, data, tmp_path):
    first = convert(data, splits=SPLITS)
    more(data)
    hidden = [Path(first.shard_url(s)) for s in first.shards]
    for i, path in enumerate(hidden):
        path.rename(tmp_path / f"hidden-{i}")
    dataset = convert(data, append=True)
    for i, path in enumerate(hidden):
        (tmp_path / f"hidden-{i}").rename(path)
    assert verify_dataset(dataset).is_whole


@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_what_was_counted_is_counted_again_from_old_shards_where_it_is_lost(convert, data, loss):
    first = convert(data, splits=SPLITS)
    more(data)
    path = Path(first.url, statistics_file(first.manifest).path)
    if loss == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    assert path.name in str(verify_dataset(first).damages)
    dataset = convert(data, append=True)
    assert_alike(statistics_of(dataset), statistics_of(convert(data, "whole", splits=SPLITS)))


def test_it_can_be_repeated_every_day(convert, data):
    convert(data, splits=SPLITS)
    write(data / "b.csv", 10_000, 3_000)
    convert(data, append=True)
    write(data / "c.csv", 20_000, 10)
    dataset = convert(data, append=True)
    assert dataset.version == 3
    assert [i.name for i in dataset.manifest.accounting.inputs] == ["a.csv", "b.csv", "c.csv"]
    whole = convert(data, "whole", splits=SPLITS)
    assert split_of(dataset) == split_of(whole)
    assert_alike(statistics_of(dataset), statistics_of(whole))
    with pytest.raises(NothingNew):
        convert(data, append=True)
    assert list_versions(dataset.url) == [1, 2, 3]


def test_the_same_append_gives_the_same_anywhere(convert, data):
    found = []
    for name in ("one", "two"):
        convert(data / "a.csv", name, splits=SPLITS)
        write(data / "b.csv", 10_000, 3_000)
        found.append(convert([data / "a.csv", data / "b.csv"], name, append=True))
        (data / "b.csv").unlink()
    assert found[0].manifest.fingerprint == found[1].manifest.fingerprint
    assert list(found[0].shards) == list(found[1].shards)
    first = found[0].manifest
    assert found[1].manifest.shard_table.sha256 == first.shard_table.sha256
    same = {"created": first.created, "shard_table": first.shard_table, "name": ""}
    a, b = (msgspec.structs.replace(d.manifest, **same) for d in found)
    assert a == b


def test_types_are_those_of_the_dataset_whatever_new_files_look_like(convert, data):
    convert(data)
    # Integers where floats were, and numbers where words were.
    (data / "b.csv").write_text("id,x,word,group\n1,2,3,\n2,4,4,\n")
    plan = prepare(ConvertRequest(inputs=(str(data),), destination=str(data.parent / "dataset"), append=True))
    assert not any("looks like" in note for note in plan.notes), "a column without values is of no type"
    dataset = run_plan(plan.plan)
    new = [r for r in read_rows(dataset, "train") if r["group"] is None]
    assert sorted((r["id"], r["x"], r["word"]) for r in new) == [(1, 2.0, "3"), (2, 4.0, "4")]


def test_a_key_that_may_be_null_may_be_missing(convert, tmp_path):
    (tmp_path / "1.jsonl").write_text('{"a": 1, "b": "x"}\n{"a": 2}\n')
    convert(tmp_path / "1.jsonl")
    (tmp_path / "2.jsonl").write_text('{"a": 3}\n')
    dataset = convert(tmp_path / "2.jsonl", append=True)
    assert sorted((r["a"], r["b"]) for r in read_rows(dataset, "train") if r["b"] is None) == [(2, None), (3, None)]


def test_without_shuffling_new_rows_follow_old_ones(convert, data):
    convert(data, shuffle=False, num_shards=3)
    write(data / "0.csv", 10_000, 3_000)
    dataset = convert(data, append=True)
    wanted = [*range(5_000), *range(10_000, 13_000)]
    assert [row["id"] for row in read_rows(dataset, "train")] == wanted
    assert [s.shard_index for s in dataset.split_shards("train")] == list(range(6))


def test_a_few_rows_make_fewer_shards_than_were_asked_for(convert, data):
    convert(data, num_shards=8)
    write(data / "b.csv", 10_000, 3)
    assert len(convert(data, append=True).shards) == 8 + 3


def test_groups_stay_in_their_split(convert, data):
    convert(data, splits=SPLITS, group_by=("word",))
    more(data)
    found = split_of_word(convert(data, append=True))
    assert all(len(splits) == 1 for splits in found.values())
    assert len(found) == 4


def split_of_word(dataset):
    found = {}
    for name, rows in rows_by_split(dataset).items():
        for row in rows:
            found.setdefault(row["word"], set()).add(name)
    return found


def test_a_split_that_had_no_rows_comes_with_the_first(convert, tmp_path):
    (tmp_path / "1.csv").write_text("x,part\n1,train\n")
    first = convert(tmp_path / "1.csv", split_column="part")
    assert [s.name for s in first.manifest.splits] == ["train"]
    (tmp_path / "2.csv").write_text("x,part\n2,validation\n3,test\n")
    dataset = convert(tmp_path / "2.csv", append=True)
    assert [(s.name, s.num_examples) for s in dataset.manifest.splits] == [("train", 1), ("validation", 1), ("test", 1)]
    assert verify_dataset(dataset).is_whole


def test_images_get_the_classes_of_the_dataset(convert, tmp_path):
    def draw(kind, name):
        path = tmp_path / "photos" / kind / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (hash(name) % 256, 90, 120)).save(path)

    for kind in ("cats", "dogs"):
        draw(kind, "1.png")
    convert(tmp_path / "photos")
    draw("dogs", "2.png")
    dataset = convert(tmp_path / "photos", append=True)
    assert Counter(row["label"] for row in read_rows(dataset, "train")) == {0: 1, 1: 2}
    draw("eels", "3.png")
    with pytest.raises(BadInputError, match="eels"):
        convert(tmp_path / "photos", append=True)


def test_rejected_rows_of_both_are_kept(convert, tmp_path):
    (tmp_path / "1.csv").write_text("x,y\n" + "1,2\n" * 300 + "1,2,3\n")
    convert(tmp_path / "1.csv", on_bad_record="quarantine")
    (tmp_path / "2.csv").write_text("x,y\n5,6\n7\n8,9\n")
    dataset = convert(tmp_path / "2.csv", append=True)
    accounting = dataset.manifest.accounting
    assert (accounting.num_rows, accounting.num_examples, accounting.num_rejected) == (304, 302, 2)
    assert [r.file for r in read_rejected(dataset)] == ["1.csv", "2.csv"]
    assert accounting.inputs[1] == InputInfo(name="2.csv", num_bytes=14, num_rows=3, num_examples=2, num_rejected=1)
    assert verify_dataset(dataset).is_whole


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
def test_readers_give_every_example_once_however_uneven_shards_are(convert, data, num_workers):
    convert(data, shard_bytes=20_000)
    write(data / "b.csv", 10_000, 37)
    dataset = convert(data, append=True)
    opened = shardkit.open(dataset.url)["train"]
    found = Counter()
    num_steps = set()
    for worker in range(num_workers):
        reader = opened.batches(
            global_batch_size=60, seed=1, worker_index=worker, num_workers=num_workers, remainder="pad"
        )
        batches = list(reader)
        num_steps.add(len(batches))
        for batch in batches:
            ids = batch["id"] if batch.mask is None else batch["id"][batch.mask]
            found.update(ids.tolist())
    assert found == Counter([*range(5_000), *range(10_000, 10_037)])
    assert len(num_steps) == 1


def test_old_versions_go_and_what_the_new_one_needs_stays(convert, data):
    convert(data)
    more(data)
    dataset = convert(data, append=True)
    inventory = take_inventory(dataset.url, os.path.join(dataset.url, "work"))
    now = max(file.modified_at for file in inventory.files) + 10
    plan = plan_cleaning(inventory, now=now, older_than_s=0, keep_versions=1)
    gone = {file.path for group in plan.groups for file in group.files}
    first = open_dataset(dataset.url, 1)
    assert gone == {
        "manifests/00000001.json",
        first.manifest.shard_table.path,
        statistics_file(first.manifest).path,
    }


def planned(dataset, inputs, **options):
    asked = ConvertRequest(inputs=(str(inputs),), destination=dataset.url, append=True, **options)
    return prepare(asked).plan


def test_the_slower_of_two_goes_behind_the_faster(convert, data):
    first = convert(data, splits=SPLITS)
    more(data)
    slow, fast = planned(first, data / "b.csv"), planned(first, data / "later/c.csv")
    between = run_plan(fast)
    dataset = run_plan(slow)
    assert dataset.version == 3
    assert split_of(dataset) == split_of(convert(data, "whole", splits=SPLITS))
    assert appended_to(dataset.manifest).version == 2
    assert dataset.manifest.fingerprint not in (slow.fingerprint, between.manifest.fingerprint)
    inputs = [i.name for i in dataset.manifest.accounting.inputs]
    assert inputs[-1] == "b.csv"
    assert len(set(inputs)) == len(inputs)


@pytest.mark.parametrize("meanwhile", ["the same file", "overwritten", "no rebase"])
def test_the_slower_of_two_must_run_again(convert, data, meanwhile):
    first = convert(data, splits=SPLITS)
    more(data)
    slow = planned(first, data / "b.csv", rebase=meanwhile != "no rebase")
    if meanwhile == "overwritten":
        convert(data / "later", splits=SPLITS, overwrite=True)
    else:
        run_plan(planned(first, data if meanwhile == "the same file" else data / "later/c.csv"))
    with pytest.raises(ConflictError, match="the dataset changed meanwhile") as caught:
        run_plan(slow)
    assert "Run the same command again" in str(caught.value)
    assert list_versions(first.url) == [1, 2]
    if meanwhile == "no rebase":
        dataset = run_plan(planned(first, data / "b.csv", rebase=False))
        assert dataset.version == 3
        assert split_of(dataset) == split_of(convert(data, "whole", splits=SPLITS))


@pytest.mark.parametrize("options", [{"dedup": ()}, {"stratify": "word", "splits": SPLITS}])
def test_what_all_rows_decide_together_cannot_be_appended_to(convert, data, options):
    convert(data, **options)
    more(data)
    with pytest.raises(UsageError, match="this dataset cannot be appended to"):
        convert(data, append=True)


def test_documents_for_tensorflow_datasets_cannot_grow(convert, data):
    convert(data, compression="none", tfds=True)
    more(data)
    with pytest.raises(UsageError, match="--tfds"):
        convert(data, append=True)


def test_uncompressed_shards_and_transformed_rows_are_appended_to(convert, tmp_path):
    from shardkit.transforms.options import TransformOptions

    def table(name, numbers):
        pq.write_table(pa.table({"n": numbers, "t": [f"T{n}" for n in numbers]}), tmp_path / name)

    table("1.parquet", [1, 2, 3])
    changes = TransformOptions(rename=(("n", "number"),), cast=(("n", "float64"),), lower=("t",))
    convert(tmp_path / "1.parquet", compression="none", transforms=changes)
    table("2.parquet", [4, 5])
    dataset = convert(tmp_path / "2.parquet", append=True)
    found = sorted((r["number"], r["t"]) for r in read_rows(dataset, "train"))
    assert found == [(1.0, "t1"), (2.0, "t2"), (3.0, "t3"), (4.0, "t4"), (5.0, "t5")]
    assert verify_dataset(dataset).is_whole


def test_an_attempt_knows_its_version_behind_which_an_older_append_went(convert, data):
    first = convert(data, splits=SPLITS)
    more(data)
    older = planned(first, data / "b.csv")
    later = msgspec.structs.replace(older.created, at="2999-01-01T00:00:00Z", commit_id="7" * 32)
    newer = msgspec.structs.replace(planned(first, data / "later/c.csv"), created=later)
    run_plan(newer)
    run_plan(older)
    assert list_versions(first.url) == [1, 2, 3]
    assert own_commit(newer).version == 2
    assert own_commit(older).version == 3
