"""Reads TFRecords with stock TensorFlow and nothing of shardkit, one request a line, and answers a line each.

    {"paths": [...], "compression": "GZIP", "features": [...], "output": FOLDER, "is_input": false}

The answer holds the number of records; the folder gets two arrays a feature, `N.counts.npy` and `N.values.npy`. Bytes
are stored as their lengths (`N.lengths.npy`) and all of them together (`N.bytes`).
"""

import collections
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

KINDS = {"int64_list": tf.int64, "float_list": tf.float32}
BATCH = 8_192


def parse_examples(job, parts):
    """Gathers the columns of shards: Examples of the features that the manifest names, and of no others."""
    features = job["features"]
    spec = {f["name"]: tf.io.VarLenFeature(KINDS.get(f["stored_as"], tf.string)) for f in features}
    num_records = 0
    for path in job["paths"]:
        for batch in tf.data.TFRecordDataset(path, job["compression"]).batch(BATCH):
            first = tf.train.Example.FromString(batch[0].numpy())
            unknown = set(first.features.feature) - set(spec)
            if unknown:
                raise ValueError(f"the manifest does not name {unknown}")
            num_records += len(batch)
            parsed = tf.io.parse_example(batch, spec)
            for feature in features:
                sparse = parsed[feature["name"]]
                counts = np.bincount(sparse.indices[:, 0].numpy(), minlength=len(batch))
                values = sparse.values.numpy()
                if feature["stored_as"] == "little_endian_bytes":
                    dtype = np.dtype(feature["dtype"])
                    values = np.frombuffer(b"".join(values), dtype.newbyteorder("<")).astype(np.float64)
                    lengths = np.fromiter(map(len, sparse.values.numpy()), np.int64, len(sparse.values))
                    counts[counts > 0] = lengths // dtype.itemsize
                parts[feature["name"]].append((counts, values))
    return num_records


def parse_inputs(job, parts):
    """Gathers the values of Examples or SequenceExamples, whatever kind they are of; steps one after the other."""
    num_records = 0
    for path in job["paths"]:
        for record in tf.data.TFRecordDataset(path, job["compression"]).as_numpy_iterator():
            num_records += 1
            found = collections.defaultdict(list)
            if job["is_sequence"]:
                example = tf.train.SequenceExample.FromString(record)
                for name, steps in example.feature_lists.feature_list.items():
                    for step in steps.feature:
                        found[name].extend(values_of(step))
                context = example.context
            else:
                context = tf.train.Example.FromString(record).features
            for name, feature in context.feature.items():
                found[name].extend(values_of(feature))
            for feature in job["features"]:
                values = found.pop(feature["name"], [])
                array = np.array(values, object if feature["stored_as"] == "bytes_list" else None)
                parts[feature["name"]].append((np.array([len(values)]), array))
            # A feature that is empty everywhere has no type, and cannot become a column.
            if any(found.values()):
                raise ValueError(f"the manifest does not name {sorted(found)}")
    return num_records


def values_of(feature):
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def store(folder, features, parts):
    for position, feature in enumerate(features):
        counts = [c for c, _ in parts[feature["name"]]]
        values = [v for _, v in parts[feature["name"]] if len(v)]
        np.save(folder / f"{position}.counts.npy", np.concatenate(counts) if counts else np.empty(0, np.int64))
        joined = np.concatenate(values) if values else np.empty(0)
        if feature["stored_as"] == "bytes_list":
            np.save(folder / f"{position}.lengths.npy", np.fromiter(map(len, joined), np.int64, len(joined)))
            (folder / f"{position}.bytes").write_bytes(b"".join(joined))
        else:
            np.save(folder / f"{position}.values.npy", joined)


def answer(job):
    parts = collections.defaultdict(list)
    num_records = (parse_inputs if job["is_input"] else parse_examples)(job, parts)
    store(pathlib.Path(job["output"]), job["features"], parts)
    return {"num_records": num_records}


for line in sys.stdin:
    try:
        reply = answer(json.loads(line))
    except Exception as error:  # noqa: BLE001
        reply = {"error": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(reply), flush=True)
