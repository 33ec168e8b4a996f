"""The golden conversions: their options, how they are run, and how a dataset is described in `expected.json`."""

import atexit
import functools
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

from tests.support.paths import ROOT

HERE = Path(__file__).resolve().parent
INPUTS = HERE / "inputs"
DATASET = HERE / "dataset"
EXPECTED = HERE / "expected.json"
RUN = HERE / "run"

# Libraries that decide bytes. With others, the records of the shards are compared, and no files.
TOOLS = ("av", "duckdb", "isal", "numpy", "pillow", "pyarrow", "soundfile", "soxr", "tokenizers", "zlib-ng")
# What is decoded or encoded by such a library is not even the same record by record.
DECODED = ("photos", "sounds", "frames", "clips")

# Options of `shardkit convert` by dataset, the input first; `{inputs}` stands for the folder of the inputs. Together
# they set every option that a recipe can hold, which a test checks.
CASES = {
    "people": [
        *("{inputs}/people", "--format", "csv", "--include", "*.csv", "--include", "*.gz", "--exclude", "notes.csv"),
        *("--drop-columns", "comment", "--delimiter", ";", "--null-value", "NA", "--null-value", "none"),
        *("--max-field", "1MiB", "--max-record-size", "1MiB", "--max-expansion", "100"),
        *("--cast", "height=float32", "--cast", "age=int32", "--rename", "town=home", "--drop-null", "name,age"),
        *("--select", "SELECT *, age >= 18 AS adult FROM rows WHERE age < 90"),
        *("--unicode-form", "name=NFC", "--lower", "home"),
        *("--split", "train=0.7", "--split", "test=0.3", "--group-by", "home", "--seed", "7", "--shard-size", "1KiB"),
        *("--compression-level", "small", "--on-bad-record", "quarantine", "--max-bad", "5%"),
        *("--max-row-seconds", "30"),
    ],
    "plain": [
        *("{inputs}/plain", "--columns", "town,people,area", "--encoding", "latin-1", "--no-shuffle"),
        *("--num-shards", "2", "--compression", "none", "--tfds", "--map", "{inputs}/rows.py:denser"),
        *("--split", "train=0.5", "--split", "test=0.5"),
    ],
    "events": [
        *("{inputs}/events", "--allow-duplicate-keys", "--dedup-by", "kind,at", "--split-column", "part"),
        *("--split", "train", "--split", "test", "--compression-level", "fast", "--seed", "-3"),
    ],
    "zips": [
        *("{inputs}/zips", "--header", "--schema", "{inputs}/zips.toml", "--dedup", "--on-bad-record", "skip"),
        *("--max-bad", "3", "--allow-empty", "--seed", "11"),
    ],
    "poem": [
        *("{inputs}/poem", "--format", "text", "--text-record", "paragraph", "--lower", "text", "--seed", "12"),
        *("--tokenize", "text={inputs}/tokenizer.json", "--compression-level", "balanced"),
    ],
    "query": ["{inputs}/shop.sqlite", "--query", "SELECT item, price FROM sold WHERE price > 2", "--seed", "3"],
    "table": ["{inputs}/shop.sqlite", "--table", "sold", "--split", "a=0.5", "--split", "b=0.5", "--stratify", "item"],
    "photos": [
        *("{inputs}/photos", "--image-size", "6x8", "--image-format", "jpeg", "--image-quality", "80", "--keep-exif"),
        *("--max-pixels", "10000", "--split", "train=0.5", "--split", "test=0.5", "--seed", "6"),
    ],
    "sounds": [
        *("{inputs}/sounds", "--audio", "samples", "--audio-rate", "4000", "--labels", "{inputs}/sounds.csv"),
        *("--seed", "9"),
    ],
    "visits": [
        *("{inputs}/visits", "--union-by-name", "--quote", "none", "--skip-lines", "1", "--comment", "#"),
        *("--source-column", "file", "--split-by", "day", "--split", "train=0.8", "--split", "test=0.2"),
        *("--limit", "30"),
    ],
    "flowers": ["{inputs}/flowers", "--format", "csv", "--no-header", "--sample", "5", "--seed", "2"],
    "orders": ["{inputs}/orders.json", "--records", "result.orders", "--explode", "lines"],
    "vectors": ["{inputs}/vectors.libsvm", "--vector", "dense", "--no-shuffle"],
    "grids": ["{inputs}/grids", "--array-record", "file", "--no-labels"],
    "records": ["{inputs}/records.tfrecord", "--tfrecord-as", "bytes"],
    "packed": [
        *("{inputs}/poem", "--format", "text", "--text-record", "paragraph", "--lower", "text"),
        *("--tokenize", "text={inputs}/tokenizer.json", "--pack", "8", "--separator", "."),
    ],
    "frames": [
        "{inputs}/videos",
        "--video",
        "frames",
        "--video-fps",
        "2",
        "--image-size",
        "24x32",
        "--num-shards",
        "2",
    ],
    "clips": [
        *("{inputs}/videos", "--video", "clips", "--clip-frames", "4", "--clip-stride", "2", "--image-quality", "70"),
        *("--image-format", "jpeg", "--num-shards", "2"),
    ],
    "colours": ["{inputs}/photos", "--class-folder", "1", "--num-shards", "1"],
    "checked": ["{inputs}/photos", "--check-media", "--num-shards", "2"],
    "fetched": [
        *("{web}/fetched.csv", "--fetch", "url=image", "--fetch-private", "--fetch-disallowed"),
        *("--on-bad-record", "skip", "--max-bad", "50%", "--select", "SELECT name, image FROM rows"),
    ],
}


@functools.cache
def web():
    """Serves the inputs until the tests end, and returns a folder with a list of photos of that server.

    Ports differ from one run to the next, but not in their length, and no row keeps an address.
    """

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(INPUTS)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = [*(f"photos/{colour}/{i}.png" for colour in ("blue", "red") for i in range(4)), "rows.py", "missing.png"]
    rows = [f"http://127.0.0.1:{server.server_port:05d}/{name},{name}" for name in names]
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    (folder / "fetched.csv").write_text("\n".join(["url,name", *rows]) + "\n")
    return folder


def train(output, num_epochs, folder, *options):
    """Trains on a copy of the golden dataset in a folder and returns the metrics of each epoch."""
    shutil.copytree(DATASET, folder / "people", dirs_exist_ok=True)
    shutil.copy(INPUTS / "model.py", folder)
    rate = ("--schedule", "constant", "--warmup-steps", "0", "--seed", "3")
    model = ("--model", "model.py:build", "--label", "adult", "--global-batch-size", "16", "--epochs", num_epochs)
    shardkit("train", "people", *model, *rate, "--output", output, *options, folder=folder)
    return [json.loads(line) for line in (folder / output / "metrics.jsonl").read_text().splitlines()]


def shardkit(*arguments, folder, code=0):
    """Runs the command line and returns what it printed.

    Args:
        arguments: Of the command; `{inputs}` becomes the folder of the inputs, `{web}` that of the list of photos.
        code: With which it must end.
    """
    filled = [str(a).replace("{inputs}", str(INPUTS)) for a in arguments]
    filled = [a.replace("{web}", str(web())) if "{web}" in a else a for a in filled]
    # The command runs elsewhere, with the shardkit that this process has.
    places = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = subprocess.run(
        [sys.executable, "-m", "shardkit", *filled],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert found.returncode == code, found.stderr + found.stdout
    return found.stdout


def tools():
    """Returns the versions of what decides bytes beside shardkit."""
    return {"machine": platform.machine(), **{name: metadata.version(name) for name in TOOLS}}


def sha256(content):
    """Returns the SHA-256 of some bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def manifest_of(dataset, version=1):
    """Returns the manifest without `created` and without the SHA-256 of the whole, which covers it."""
    text = (Path(dataset) / f"manifests/{version:08d}.json").read_text()
    document = json.loads(_of_any_attempt(text.replace(str(INPUTS), "{inputs}")))
    del document["created"], document["sha256"]
    return document


def _of_any_attempt(text):
    """Returns a text with the names that shard tables had before each attempt at a commit had its own."""
    return re.sub(r"(\d{8})-[0-9a-f]{16}(\.shards\.parquet)", r"\1\2", text)


def describe(dataset, version=1):
    """Returns what `expected.json` says of a version of a dataset."""
    folder = Path(dataset)
    manifest = manifest_of(folder, version)
    files = {_of_any_attempt(p.relative_to(folder).as_posix()): p for p in sorted(folder.rglob("*")) if p.is_file()}
    recipe = shardkit("inspect", folder, "--recipe", "--version", version, folder=folder)
    records = {}
    for split in manifest["splits"]:
        shards = [p for n, p in files.items() if p.name.startswith(f"{split['name']}-") and ".tfrecord" in n]
        contents = [p.read_bytes() for p in shards if p.suffix != ".idx"]
        records[split["name"]] = sha256(b"".join(gzip.decompress(c) if c[:2] == b"\x1f\x8b" else c for c in contents))
    return {
        "fingerprint": manifest["fingerprint"],
        "recipe": manifest["recipe"],
        "recipe_file": re.sub(r"convert \S+/fetched.csv", "convert {web}/fetched.csv", recipe)
        .replace(str(INPUTS), "{inputs}")
        .splitlines(),
        "features": manifest["features"],
        "accounting": {k: v for k, v in manifest["accounting"].items() if k != "rejected_files"},
        "records": records,
        "files": {n: sha256(p.read_bytes()) for n, p in files.items() if not n.endswith(".json") or n[:4] == "data"},
        "manifest": sha256(json.dumps(manifest, sort_keys=True).encode()),
    }


def convert(name, folder, *more):
    """Converts a case in a folder, to a dataset of its name there, and returns the dataset."""
    shardkit("convert", CASES[name][0], name, *CASES[name][1:], *more, folder=folder)
    return Path(folder, name)


def append(dataset, folder):
    """Appends the later people to a dataset of people; the files that it has must not be read again.

    Args:
        dataset: Which becomes two versions.
        folder: Where the inputs are put together, which lay elsewhere when the dataset was made.
    """
    together = Path(folder, "together")
    together.mkdir()
    for path in [*INPUTS.glob("people/*"), INPUTS / "later/three.csv"]:
        (together / path.name).write_bytes(path.read_bytes())
    shardkit("convert", together.name, dataset, "--append", folder=folder)
