"""What `shardkit bench` prints of a small dataset; no figure of time is looked at but for its place."""

import json
import os
import pty
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from shardkit.features import arrow_schema, make_feature
from shardkit.testing import write_dataset

pytestmark = pytest.mark.full

FEATURES = (
    make_feature("x", "float64"),
    make_feature("count", "int32", nullable=True),
    make_feature("word", "string", nullable=True),
    make_feature("scores", "float64", (3,), nullable=True),
    make_feature("ids", "int64", (None,)),
    make_feature("day", "date"),
)


def rows(num_rows):
    numbers = range(num_rows)
    columns = [
        [i / 2 for i in numbers],
        [None if i % 3 else i for i in numbers],
        [None if i % 5 else "wörd" for i in numbers],
        [None if i % 7 else [1.0, 2.0, 3.0] for i in numbers],
        [list(range(i % 4)) for i in numbers],
        list(numbers),
    ]
    arrays = [pa.array(c, f.arrow_type) for c, f in zip(columns, FEATURES, strict=True)]
    return pa.record_batch(arrays, schema=arrow_schema(FEATURES))


@pytest.fixture(scope="module")
def location(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets") / "small"
    write_dataset(folder, FEATURES, {"train": rows(120), "test": rows(40), "none": rows(0)}, block_examples=16)
    return str(folder)


def command_of(*args):
    return [sys.executable, "-m", "shardkit", "bench", *args, "--seconds", "0.05"]


def bench(*args):
    done = subprocess.run(command_of(*args), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def tables_of(page):
    """Returns the first words of the lines of each paragraph."""
    return [[line.split()[0] for line in part.splitlines() if line.strip()] for part in page.split("\n\n")]


def test_the_page_shows_rates(location):
    code, page, err = bench(location, "--no-tfdata", "--threads", "2")
    assert (code, err) == (0, "")
    assert page.startswith("small  version 1, split train\n  data     120 examples in 2 shards, ")
    assert "  batches  8 examples, 6 features, shuffled\n  reading  2 reading threads, " in page
    _, rates, notes = tables_of(page)
    assert rates == ["rates", "examples/s", "MB/s", "examples", "open", "peak"]
    assert "tf.data" not in page
    assert max(map(len, page.splitlines())) <= 100
    assert notes


def test_plain_tensorflow_does_the_same_work_beside(location):
    code, out, err = bench(location, "--json", "--batch-size", "16")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["batch_size"] == 16
    assert document["features"] == [f.name for f in FEATURES]
    for rate in (document["reader"], document["tfdata"]):
        assert all(value > 0 for value in rate.values())
        assert rate["record_mb_per_s"] == pytest.approx(rate["examples_per_s"] * document["mean_record_bytes"] / 1e6)
    assert document["no_tfdata"] is None


def test_a_split_its_order_and_its_features_are_chosen(location):
    chosen = ["--split", "test", "--no-shuffle", "--features", "x,day", "--threads", "3"]
    code, out, err = bench(location, "--no-tfdata", "--json", *chosen)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["split"], document["num_examples"], document["shuffle"]) == ("test", 40, False)
    assert (document["features"], document["num_threads"]) == (["x", "day"], 3)
    assert (document["tfdata"], document["no_tfdata"]) == (None, None)


def test_a_time_that_is_no_number_is_refused(location):
    done = subprocess.run(
        [*command_of(location), "--seconds", "nan"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--seconds" in done.stderr
    assert "'nan' is not a number to compute with" in done.stderr


def test_a_batch_is_no_larger_than_the_split(location):
    code, page, _ = bench(location, "--no-tfdata", "--batch-size", "5000", "--split", "test")
    assert code == 0
    assert "  batches  40 examples" in page
    assert "The split has only 40 examples: batches are as large, not 5,000." in page


def test_without_tensorflow_its_column_is_left_out_and_a_line_says_so(location):
    hide = "import sys; sys.modules['tensorflow'] = None; from shardkit.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", hide, *command_of(location)[3:]], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tf.data was left out: TensorFlow is not installed; pip install 'shardkit[train]' adds it." in done.stdout
    assert done.stdout.count("tf.data") == 1


@pytest.mark.parametrize(
    "failure", ["ImportError('libtensorflow.so: cannot open')", "AttributeError('_ARRAY_API not found')"]
)
def test_a_tensorflow_that_cannot_be_loaded_is_left_out_too(location, tmp_path, failure):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(f"raise {failure}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command_of(location), capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    page = " ".join(done.stdout.split())
    assert "tf.data was left out: TensorFlow cannot be loaded" in page
    assert failure.replace("('", ": ").removesuffix("')") in page
    assert "pip install 'shardkit[train]'" in page


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--split", "nope"], 2, ["'nope'", "train, test, none"]),
        (["--split", "none"], 2, ["split 'none'", "no examples", "train, test"]),
        (["--features", "x,nope"], 2, ["'nope'"]),
        (["--features", ","], 2, ["no feature is chosen"]),
        (["--version", "7"], 2, ["there is no version 7"]),
        (["--batch-size", "0"], 2, ["--batch-size"]),
    ],
)
def test_what_cannot_be_measured_is_refused(location, args, code, words):
    got, out, err = bench(location, "--no-tfdata", *args)
    assert (got, out) == (code, "")
    assert "error[SK-E200]" in err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_damage_ends_the_measurement_and_is_named(tmp_path):
    dataset = write_dataset(tmp_path / "set", FEATURES, {"train": rows(120)})
    shard = tmp_path / "set" / dataset.shards[1].path
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    code, out, err = bench(str(tmp_path / "set"), "--no-tfdata")
    assert (code, out) == (1, "")
    assert "train-00001-of-00002" in err
    assert "Traceback" not in err


def test_an_interrupt_ends_it_at_once_with_one_sentence(location):
    ours, theirs = pty.openpty()
    command = [*command_of(location, "--no-tfdata")[:-1], "3600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        while b"warming up" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    rest = b""
    try:
        while part := os.read(ours, 4096):
            rest += part
    except OSError:  # Linux says so that the other end is closed.
        pass
    os.close(ours)
    assert (process.returncode, out) == (130, "")
    assert rest.decode().split("\n")[-2].strip() == (
        "interrupted: The measurement was stopped before the end; nothing was changed."
    )


def test_help_has_examples():
    done = subprocess.run(
        [sys.executable, "-m", "shardkit", "bench", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "shardkit bench gs://bucket/flights --split train --seconds 5 --no-tfdata" in done.stdout
