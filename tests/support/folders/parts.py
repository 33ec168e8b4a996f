"""What a folder is made of, and how its rows are compared with those of a dataset."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

Row = tuple[str, Any, Any]
"""The split of a row, what it is known by, and its label; None where it has none."""


class Case(NamedTuple):
    """A folder, and what becomes of it.

    Attributes:
        make: Writes the folder below a path, and returns the rows that it holds.
        key: Column that a row is known by.
        label: Columns that hold its label; more than one give a tuple.
        refusal: Words of the error, where two readings are plausible; no dataset is made then.
    """

    name: str
    make: Callable[[Path], list[Row]]
    options: tuple[str, ...] = ()
    key: str = "image"
    label: tuple[str, ...] = ("label",)
    refusal: tuple[str, ...] = ()


def write(path: Path, content: str | bytes) -> bytes:
    """Writes a file with its folders, and returns its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(data)
    return data


def picture(seed: int, size: tuple[int, int] = (40, 30), form: str = "JPEG") -> bytes:
    """Returns a picture that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def sound(seed: int) -> bytes:
    """Returns a WAV file of some hundred samples that no other seed gives."""
    samples = [int(9000 * math.sin(i * (seed + 1) / 40)) for i in range(300 + seed)]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """Returns a value in a form in which that of a folder and that of a dataset can be compared."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return hashlib.sha1(value).hexdigest()
        return text
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    return None if value is None else str(value)


def stored_rows(location: Path) -> dict[str, list[dict[str, list[Any]]]]:
    """Returns the examples of each split as TensorFlow reads them: lists of values, classes by their names."""
    import tensorflow as tf

    manifest = json.loads(sorted((location / "manifests").glob("*.json"))[-1].read_text())
    classes = {feature["name"]: feature.get("vocabulary") for feature in manifest["features"]}
    table = pq.read_table(sorted((location / "manifests").glob("*.shards.parquet"))[-1], columns=["split", "path"])
    rows: dict[str, list[dict[str, list[Any]]]] = {}
    for shard in table.to_pylist():
        records = tf.data.TFRecordDataset(str(location / shard["path"]), "GZIP").as_numpy_iterator()
        for record in records:
            example = tf.train.Example.FromString(record)
            row = {}
            for name, feature in example.features.feature.items():
                values = list(getattr(feature, feature.WhichOneof("kind") or "bytes_list").value)
                row[name] = [classes[name][v] for v in values] if classes.get(name) else values
            rows.setdefault(shard["split"], []).append(row)
    return rows


def compare(case: Case, expected: list[Row], location: Path) -> tuple[int, int, dict[str, int]]:
    """Returns how many rows of a folder are in the dataset with their split and label, how many the dataset has, and
    the rows of each split."""
    wanted = [(split, plain(key), plain(label)) for split, key, label in expected]
    stored = stored_rows(location)
    found = [(split, _key(row, case), _label(row, case)) for split, rows in stored.items() for row in rows]
    rest = list(found)
    num_right = 0
    for row in wanted:
        if row in rest:
            rest.remove(row)
            num_right += 1
    return num_right, len(found), {split: len(rows) for split, rows in stored.items()}


def _key(row: dict[str, list[Any]], case: Case) -> Any:
    values = row.get(case.key) or [None]
    return plain(values[0])


def _label(row: dict[str, list[Any]], case: Case) -> Any:
    labels = [plain(values[0] if len(values) == 1 else tuple(values)) if (values := row.get(name)) else None
              for name in case.label]  # fmt: skip
    return labels[0] if len(labels) == 1 else None if all(x is None for x in labels) else tuple(labels)
