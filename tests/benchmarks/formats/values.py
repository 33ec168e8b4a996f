"""What becomes of values as people have them, by the obvious command.

    python -m tests.benchmarks.formats.values [--only WORD] [--code FOLDER]

A line for each input: exit code, rows that json, csv, pyarrow or fastavro finds in it, how many of these TensorFlow
finds in the shards with every value to the last digit, and types. `--code` names another checkout, to compare with.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from tests.benchmarks.formats.value_cases import CASES

_JSON = "application/json"


def dataset_rows(out):
    """Returns the features of the newest manifest, and the rows of all shards as stock TensorFlow reads them."""
    import tensorflow as tf

    manifest = json.loads(max(out.glob("manifests/0*.json")).read_text())
    rows = []
    for path in sorted(out.glob(f"data/{manifest['fingerprint']}/*.tfrecord.gz")):
        for record in tf.data.TFRecordDataset(str(path), compression_type="GZIP").as_numpy_iterator():
            example = tf.train.Example.FromString(record).features.feature
            rows.append({f["name"]: decoded(example, f) for f in manifest["features"]})
    return manifest["features"], rows


def decoded(example, feature):
    """Returns a value as Python has it; floats are the shortest decimals that the stored type prints."""
    if feature["name"] not in example:
        return None
    stored = example[feature["name"]]
    kind = feature["stored_as"]
    if kind == "little_endian_bytes":
        values = np.frombuffer(stored.bytes_list.value[0], np.dtype(feature["dtype"]).newbyteorder("<")).tolist()
    elif kind == "float_list":
        values = [float(str(np.float32(value))) for value in stored.float_list.value]
    elif kind == "int64_list":
        values = list(stored.int64_list.value)
    else:
        values = list(stored.bytes_list.value)
        values = values if feature["dtype"] == "bytes" else [value.decode() for value in values]
    if feature.get("media_type") == _JSON:
        values = [json.loads(value) for value in values]
    return values if feature.get("shape") else values[0]


def canonical(row):
    """Returns a text that is equal for equal rows: nulls are left out, objects are columns, arrays are flat."""

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items() if inner is not None}
        if isinstance(value, list):
            return list(map(plain, value))
        if isinstance(value, bytes):
            return f"{len(value)} bytes {value[:64].hex()}"
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    return json.dumps({key: plain(value) for key, value in sorted(row.items()) if value is not None}, sort_keys=True)


def convert(case, folder, code):
    """Returns exit code, output, features, and the numbers of rows: expected, stored and equal."""
    source, out = folder / "in", folder / "out"
    source.mkdir(parents=True)
    expected = case.make(source)
    inputs = case.inputs or [path.name for path in sorted(source.iterdir())]
    environment = {**os.environ, "PYTHONPATH": str(code)}

    def run(*arguments):
        command = [sys.executable, "-P", "-m", "shardkit", "convert", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=source)

    for number, before in enumerate(case.before):
        done = run(*before, source / f"dataset{number}")
        if done.returncode:
            return done.returncode, done.stdout + done.stderr, [], (len(expected), 0, 0)
    done = run(*inputs, out, *case.options)
    if done.returncode:
        return done.returncode, done.stdout + done.stderr, [], (len(expected), 0, 0)
    features, rows = dataset_rows(out)
    wanted, found = Counter(map(canonical, expected)), Counter(map(canonical, rows))
    return 0, done.stdout + done.stderr, features, (len(expected), len(rows), (wanted & found).total())


def described(feature):
    """Returns a type as pages show it."""
    dtype = "json" if feature.get("media_type") == _JSON else feature["dtype"]
    return dtype + "".join(f"[{'*' if size is None else size}]" for size in feature.get("shape", ()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--code", type=Path, default=Path(__file__).parents[3])
    arguments = parser.parse_args()
    csv.field_size_limit(sys.maxsize)
    counts = Counter()
    print(f"{'input':46} code {'rows':>6} {'equal':>6}  {'outcome':8} types")
    with tempfile.TemporaryDirectory() as temporary:
        for index, case in enumerate(CASES):
            if arguments.only not in case.name:
                continue
            code, output, features, (expected, stored, equal) = convert(
                case, Path(temporary) / f"{index:02}", arguments.code.resolve()
            )
            outcome = "refused" if code else "right" if expected == stored == equal else "WRONG"
            counts[outcome] += 1
            types = ", ".join(f"{f['name']} {described(f)}" for f in features[:5])
            print(f"{case.name:46} {code:4} {expected:6} {equal:6}  {outcome:8} {types}", flush=True)
            if arguments.only:
                print(output)
    print(", ".join(f"{outcome}: {number}" for outcome, number in sorted(counts.items())))


if __name__ == "__main__":
    main()
