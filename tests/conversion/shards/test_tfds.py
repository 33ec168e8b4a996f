"""With --compression none --tfds, TensorFlow Datasets loads the shards as they lie."""

import json
import struct
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.errors import UsageError
from shardkit.transforms.options import TransformOptions
from tests.support.files.image_makers import encoded
from tests.support.files.source_makers import write_file


@pytest.mark.full
@pytest.mark.slow
def test_tensorflow_datasets_reads_the_folder(convert, tmp_path):
    table = pa.table(
        {
            "id": pa.array(range(60)),
            "score": pa.array([0.5, None, 1.5] * 20, pa.float32()),
            "name": ["a", "b", "c"] * 20,
            "flag": [True, False, True] * 20,
            "tags": [[1], [], [2, 3]] * 20,
            "double": [0.1, -0.0, 1e300] * 20,
            "steps": pa.array([[-128, 127], [], [0]] * 20, pa.list_(pa.int8())),
            "pixels": pa.array([[0, 255], [1, 2], [3, 4]] * 20, pa.list_(pa.uint8(), 2)),
            "maybes": pa.array([[0.1], None, []] * 20),
            "maybe": pa.array([[1, 255], None, [3, 4]] * 20, pa.list_(pa.uint8(), 2)),
        }
    )
    required = [field.with_nullable(field.name in ("score", "maybe", "maybes")) for field in table.schema]
    pq.write_table(table.cast(pa.schema(required)), tmp_path / "t.parquet")
    dataset = convert(tmp_path / "t.parquet", "My set", num_shards=3, compression="none", tfds=True)
    folder = f"{dataset.url}/data/{dataset.manifest.fingerprint}"
    script = textwrap.dedent(
        """
        import json, sys, tensorflow_datasets as tfds
        rows = tfds.builder_from_directory(sys.argv[1]).as_dataset(split="train").as_numpy_iterator()
        found = [{k: v.decode("latin-1") if isinstance(v, bytes) else v.tolist() for k, v in r.items()} for r in rows]
        print(json.dumps(sorted(found, key=lambda r: r["id"])))
        """
    )
    run = subprocess.run([sys.executable, "-c", script, folder], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    wanted = table.drop_columns(["score", "maybe", "maybes"]).to_pylist()
    assert [{k: r[k] for k in wanted[0]} for r in found] == wanted
    assert [r["score"] for r in found][::3] == [0.5] * 20
    assert [r["maybe"] for r in found] == ["\x01\xff", "", "\x03\x04"] * 20
    assert [r["maybes"] for r in found] == [struct.pack("<d", 0.1).decode("latin-1"), "", ""] * 20


def test_compressed_shards_are_refused(convert, tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t.parquet")
    with pytest.raises(UsageError, match="--compression none"):
        convert(tmp_path / "t.parquet", tfds=True)


def test_a_column_of_class_names_that_would_lead_out_of_the_folder_is_refused(convert, tmp_path):
    for name in ("cat/1.png", "dog/1.png"):
        write_file(tmp_path / "photos", encoded("RGB", "PNG"), name)
    hostile = TransformOptions(rename=(("label", "../../../../x"),))
    with pytest.raises(UsageError, match=r"the column '?../../../../x'?: .*Nothing was written.*--rename"):
        convert(tmp_path / "photos", compression="none", tfds=True, num_shards=1, transforms=hostile)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["photos"]
    dataset = convert(tmp_path / "photos", compression="none", tfds=True, num_shards=1)
    folder = tmp_path / "dataset/data" / dataset.manifest.fingerprint
    assert (folder / "label.labels.txt").read_text() == "cat\ndog\n"
