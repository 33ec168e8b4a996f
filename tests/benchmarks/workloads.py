"""The four kinds of rows that the benchmarks measure, made from a seed: nothing is downloaded."""

from __future__ import annotations

import io
import re
import sysconfig
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from shardkit.features import Features, make_feature

TOKENS_A_ROW = 512
FLOATS_A_ROW = 768
_NUM_IMAGES = 400
_FIRST_WORD_ID = 112
_IMAGE_PIXELS = 192
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Workload(NamedTuple):
    """Rows of one kind."""

    title: str
    features: Features
    batch: pa.RecordBatch


def rows_of_columns(num_rows: int) -> Workload:
    """Returns 20 columns: 8 float32, 8 int64, 4 short strings; about 458 bytes a record.

    The integers take 1 to 9 bytes as varints, about the same number all down a column.
    """
    rng = np.random.default_rng(1)
    words = pa.array([f"word{i}" for i in range(200)])
    columns: dict[str, pa.Array] = {}
    for i in range(8):
        columns[f"float_{i}"] = pa.array(np.round(rng.normal(size=num_rows), 4).astype(np.float32))
    for i in range(8):
        columns[f"int_{i}_id"] = pa.array(rng.integers(0, 10 ** (2 * i + 1) if i < 7 else 2**63 - 1, num_rows))
    for i in range(4):
        columns[f"string_{i}"] = words.take(pa.array(rng.integers(0, 200, num_rows)))
    dtypes = {name: str(column.type) for name, column in columns.items()}
    features = tuple(make_feature(name, "float32" if d == "float" else d) for name, d in dtypes.items())
    return Workload("20 columns", features, pa.record_batch(columns))


def rows_of_tokens(num_rows: int) -> Workload:
    """Returns 512 token ids a row, of English text; about 1.9 bytes each as varints."""
    stream = _token_stream()
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.resize(stream, num_rows * TOKENS_A_ROW)), TOKENS_A_ROW)
    features = (make_feature("input_ids", "int64", (TOKENS_A_ROW,)),)
    return Workload("512 tokens", features, pa.record_batch({"input_ids": column}))


def rows_of_floats(num_rows: int) -> Workload:
    """Returns a vector of 768 normally distributed float32 a row."""
    values = np.random.default_rng(3).standard_normal(num_rows * FLOATS_A_ROW, dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), FLOATS_A_ROW)
    features = (make_feature("vector", "float32", (FLOATS_A_ROW,)),)
    return Workload("768 floats", features, pa.record_batch({"vector": column}))


def rows_of_images(num_rows: int) -> Workload:
    """Returns JPEG files of about 18.7 KB with a label."""
    images = jpeg_files()
    column = pa.array([images[i % len(images)] for i in range(num_rows)], pa.binary())
    features = (make_feature("image", "bytes", media_type="image/jpeg"), make_feature("label", "int64"))
    labels = pa.array(np.arange(num_rows) % 10)
    return Workload("18.7 KB images", features, pa.record_batch({"image": column, "label": labels}))


@cache
def jpeg_files() -> tuple[bytes, ...]:
    """Returns different JPEG files of 192 x 192 pixels."""
    rng = np.random.default_rng(4)
    files = []
    for _ in range(_NUM_IMAGES):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((_IMAGE_PIXELS, _IMAGE_PIXELS), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = np.clip(pixels + rng.normal(0, 18, pixels.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=88)
        files.append(file.getvalue())
    return tuple(files)


@cache
def _token_stream() -> np.ndarray:
    """Returns ids of the words of Python's own documentation: more frequent words have lower ids."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = sorted(library.glob("*.py")) + sorted(library.glob("[a-z]*/*.py"))
    sources = [path for path in sources if path.parent.name not in ("site-packages", "test")]
    texts = [*topics.topics.values()]
    for path in sources:
        texts += _DOCSTRING.findall(path.read_text(encoding="utf-8", errors="replace"))
    _, words, counts = np.unique(_TOKEN.findall("\n".join(texts)), return_inverse=True, return_counts=True)
    ranks = np.empty(len(counts), dtype=np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    # Spread over a vocabulary of the usual size, about 50,000, so that ids take 1 to 3 bytes as varints.
    return _FIRST_WORD_ID + ranks[words] * 37 // 10
