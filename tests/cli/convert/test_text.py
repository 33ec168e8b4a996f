"""What a user may ask of text formats, and what `convert` says of inputs that are empty, unnamed or no text."""

import bz2
import gzip
import json

import pyarrow as pa
import pytest

from shardkit.dataset.open import open_dataset
from shardkit.encoding.encoder import encode_batch
from shardkit.encoding.tfrecord import frame
from shardkit.features import arrow_schema, make_feature


@pytest.fixture
def write(tmp_path):
    def make(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "content", "options", "why"),
    [
        ("a.csv", "", [], "there are no rows: all input files are empty"),
        ("a.jsonl", "\n\n", [], "there are no rows"),
        ("a.json", "[]", ["--format", "json"], "there are no rows"),
        ("a.csv", "a,b\n", [], "there would be no examples: the inputs hold no rows"),
        ("a.csv", "a,b\n1,x\n2,y\n", ["--select", "SELECT a FROM rows WHERE a > 9"], "2 rows in, 2 filtered"),
        ("a.csv", "a,b\n", ["--dedup"], "there would be no examples"),
    ],
)
def test_an_empty_dataset_is_made_only_where_that_is_asked_for(run, write, tmp_path, name, content, options, why):
    path, out = write(name, content), tmp_path / "out"
    code, _, err = run("convert", path, out, *options)
    assert code == 3
    assert why in err
    assert "--allow-empty" in err
    assert not (out / "manifests").exists()
    code, stdout, _ = run("convert", path, out, *options, "--allow-empty")
    assert code == 0
    assert "0 examples out" in stdout
    assert run("verify", out)[0] == 0
    code, stdout, _ = run("inspect", out)
    assert code == 0
    assert "0 examples out" in stdout
    assert not open_dataset(str(out)).shards
    assert "allow-empty = true" in run("inspect", out, "--recipe")[1]


@pytest.mark.full
def test_an_empty_dataset_has_the_features_that_are_declared(run, write, tmp_path):
    empty, schema = write("a.jsonl", ""), write("s.json", json.dumps({"features": {"x": "int32", "y": "string"}}))
    assert run("convert", empty, tmp_path / "out", "--schema", schema, "--allow-empty")[0] == 0
    manifest = open_dataset(str(tmp_path / "out")).manifest
    assert [(f.name, f.dtype) for f in manifest.features] == [("x", "int32"), ("y", "string")]
    assert manifest.splits == ()


@pytest.mark.full
def test_an_empty_file_among_others_gets_a_note_and_allow_empty_changes_nothing(run, write, tmp_path):
    full, empty = write("a.csv", "a,b\n1,x\n"), write("b.csv", "")
    found = []
    for name, options in (("one", []), ("two", ["--allow-empty"])):
        code, stdout, err = run("convert", full, empty, tmp_path / name, *options)
        assert code == 0
        assert "b.csv is empty: 0 rows" in err
        assert "1 row in, 1 example out" in stdout
        found.append([s.sha256 for s in open_dataset(str(tmp_path / name)).shards])
    assert found[0] == found[1]


@pytest.mark.full
def test_options_of_text_formats_are_in_the_recipe_and_taken_from_it(run, write, tmp_path):
    rows = write("a.jsonl", '{"a": 1, "a": 2}\n')
    assert run("convert", rows, tmp_path / "out")[0] == 3
    assert run("convert", rows, tmp_path / "out", "--allow-duplicate-keys")[0] == 0
    table = write("b.csv", "a,b\nx,y\n")
    code, _, err = run("convert", table, tmp_path / "two")
    assert code == 2
    assert "the first line may be names or values in b.csv: all values below it are text" in err
    assert run("convert", table, tmp_path / "two", "--header", "--max-field", "1KiB")[0] == 0
    for source, name, lines in (
        (rows, "out", ["allow-duplicate-keys = true"]),
        (table, "two", ["header = true", "max-field = 1024"]),
    ):
        recipe = run("inspect", tmp_path / name, "--recipe")[1]
        assert all(line in recipe for line in lines)
        path = write(f"{name}.toml", recipe)
        assert run("convert", source, tmp_path / f"{name}-again", "--recipe", path)[0] == 0
        first, second = (open_dataset(str(tmp_path / n)).manifest for n in (name, f"{name}-again"))
        assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "option", "why"),
    [
        ("a.jsonl", '{"a": 1}', ["--max-field", "1MiB"], "--max-field has no meaning for jsonl files"),
        ("a.jsonl", '{"a": 1}', ["--header", "--format", "jsonl"], "--header has no meaning for jsonl files"),
        ("a.csv", "a\n1\n", ["--allow-duplicate-keys"], "--allow-duplicate-keys has no meaning for csv files"),
        ("a.csv", "a\n1\n", ["--header", "--columns", "a"], "--header and --columns exclude each other"),
        ("a.csv", "a\n1\n", ["--header", "--no-header"], "--header and --no-header exclude each other"),
        ("a.txt", "a\n", ["--class-folder", "1", "--no-labels"], "--class-folder and --no-labels exclude"),
    ],
)
def test_options_without_a_meaning_are_refused(run, write, tmp_path, name, content, option, why):
    code, _, err = run("convert", write(name, content), tmp_path / "out", *option)
    assert code == 2
    assert why in err


@pytest.mark.full
@pytest.mark.parametrize(
    "content",
    [
        b"a,b\n1,\0\0\0\0\n" * 200,
        ("a,b\n" + "1,x\n" * 90).encode("utf-16-le"),
        ("a,b\n" + "1,x\n" * 90).encode("utf-16"),
        bytes(range(256)) * 40,
    ],
    ids=["nuls", "utf-16-le", "utf-16", "binary"],
)
def test_a_file_that_is_no_text_costs_only_itself(run, write, tmp_path, content):
    good, bad = write("good.csv", "a,b\n1,x\n"), write("bad.csv", content)
    assert run("convert", good, bad, tmp_path / "strict")[0] in (2, 3)
    code, stdout, err = run("convert", good, bad, tmp_path / "out", "--on-bad-record", "quarantine")
    assert code == 0
    assert "1 row in, 1 example out, 1 file rejected whole" in stdout
    assert "bad.csv" in err
    assert run("convert", bad, tmp_path / "alone", "--on-bad-record", "skip")[0] in (2, 3)


def test_what_is_compressed_twice_is_called_so(run, write, tmp_path):
    packed = gzip.compress(b"a,b\n" + b"1,2\n" * 100)
    code, _, err = run("convert", write("a.csv.gz", gzip.compress(packed)), tmp_path / "out", "--format", "csv")
    assert code == 3
    assert "the content is compressed twice in a.csv.gz: it is gzip inside of gzip." in err
    assert "Decompress it once" in err
    assert "encoding" not in err
    code, _, err = run("convert", write("a.csv.bz2", bz2.compress(packed)), tmp_path / "out", "--format", "csv")
    assert (code, "it is gzip inside of bz2" in err) == (3, True)


@pytest.mark.full
def test_a_nul_or_two_cost_their_rows(run, write, tmp_path):
    path = write("a.csv", b"a,b\n1,x\n2,\0\n3,y\n")
    code, _, err = run("convert", path, tmp_path / "strict")
    assert code == 3
    assert "NUL byte is in the text in a.csv, line 3" in err
    code, stdout, _ = run("convert", path, tmp_path / "out", "--on-bad-record", "skip")
    assert code == 0
    assert "3 rows in, 2 examples out, 1 rejected" in stdout


def test_a_wrong_path_of_labels_names_the_option(run, write, tmp_path):
    write("photos/1.png", b"\x89PNG\r\n\x1a\n")
    for labels, why in ((tmp_path / "nope.csv", "no such file"), (tmp_path / "no*.csv", "no file matches")):
        code, _, err = run("convert", tmp_path / "photos", tmp_path / "out", "--labels", labels)
        assert code == 2
        assert f"--labels {labels} cannot be read" in err
        assert why in err


@pytest.mark.full
def test_a_tfrecord_whose_first_length_looks_like_gzip_is_read(run, write, tmp_path):
    features = (make_feature("x", "bytes"),)

    def example(num_bytes):
        batch = pa.RecordBatch.from_arrays([pa.array([b"x" * num_bytes])], schema=arrow_schema(features))
        return bytes(encode_batch(batch, features).data)[12:-4]

    # 35,615 is 0x8b1f: the first two bytes of the file are those of gzip.
    record = next(r for n in range(35_615, 35_500, -1) if len(r := example(n)) == 35_615)
    path = write("a.tfrecord", frame(record))
    assert path.read_bytes().startswith(b"\x1f\x8b")
    code, stdout, _ = run("convert", path, tmp_path / "out")
    assert code == 0
    assert "1 row in, 1 example out" in stdout
    packed = write("b.tfrecord", gzip.compress(frame(record)))
    assert run("convert", packed, tmp_path / "packed")[0] == 0
