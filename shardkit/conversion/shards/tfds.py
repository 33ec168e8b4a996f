"""The two documents by which `tfds.builder_from_directory` loads a folder of uncompressed shards.

The forms are those that TensorFlow Datasets 4.9.10 reads; an unknown key is an error there, so shardkit adds no keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from shardkit.dataset.manifest import ShardInfo
from shardkit.encoding.tfrecord import OVERHEAD_BYTES
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.messages import shown

_PREFIX = "tensorflow_datasets.core.features."
_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
_TFDS_DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16", "float32", "float64"}


def check_tfds_names(features: Features) -> None:
    """Checks that every file of class names is in the folder of the shards.

    Raises:
        UsageError: If the name of a feature with class names holds a slash.
    """
    for feature in features:
        if _has_label_file(feature) and "/" in feature.name:
            raise UsageError(
                f"--tfds cannot write the class names of the column {shown(feature.name)}",
                why="the column's name is part of a file name, and it holds a slash",
                state="Nothing was written",
                next_step=f"Rename it with --rename {shown(feature.name)}=NAME, or drop --tfds",
            )


def tfds_documents(name: str, features: Features, shards: Sequence[ShardInfo]) -> dict[str, bytes]:
    """Returns the contents of the files by name.

    Args:
        name: Of the dataset; turned into lower case letters, digits and underscores.
        features: Of the dataset. float64 and other values that are stored as bytes appear as bytes.
        shards: All shards, by split, then by index.
    """
    splits: list[dict[str, Any]] = []
    for split in dict.fromkeys(s.split for s in shards):
        own = [s for s in shards if s.split == split]
        num_bytes = sum(s.num_uncompressed_bytes - OVERHEAD_BYTES * s.num_examples for s in own)
        splits.append(
            {
                "name": split,
                "shardLengths": [str(s.num_examples) for s in own],
                "numBytes": str(num_bytes),
                "filepathTemplate": _TEMPLATE,
            }
        )
    info = {"name": _tfds_name(name), "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
    tree = {
        "pythonClassName": f"{_PREFIX}features_dict.FeaturesDict",
        "featuresDict": {"features": {f.name: _feature_document(f) for f in features}},
    }
    documents = {"dataset_info.json": _encode(info), "features.json": _encode(tree)}
    for feature in features:
        if _has_label_file(feature):
            documents[f"{feature.name}.labels.txt"] = "".join(f"{v}\n" for v in feature.vocabulary or ()).encode()
    return documents


def _has_label_file(feature: Feature) -> bool:
    return feature.vocabulary is not None and feature.is_scalar


def _feature_document(feature: Feature) -> dict[str, Any]:
    if feature.vocabulary is not None and feature.is_scalar:
        number = str(len(feature.vocabulary))
        return _document("class_label_feature.ClassLabel", "classLabel", {"numClasses": number})
    if feature.media_type and feature.media_type.startswith("image/") and feature.is_scalar:
        pixels = {"dimensions": ["-1", "-1", "3"]}
        return _document("image_feature.Image", "image", {"shape": pixels, "dtype": "uint8", "encodingFormat": ""})
    if feature.dtype == "string" and feature.is_scalar and not feature.nullable:
        return _document("text_feature.Text", "text", {})
    if feature.stored_as == "little_endian_bytes" and feature.nullable:
        # TFDS fills in a number for encoded bytes that are absent, which TensorFlow refuses.
        text = {"shape": {}, "dtype": "string", "encoding": "none", "optional": True}
        return _document("tensor_feature.Tensor", "tensor", text)
    encoding = "bytes" if feature.stored_as == "little_endian_bytes" else "none"
    tensor: dict[str, Any] = {"shape": {}, "dtype": _tfds_dtype(feature), "encoding": encoding}
    if feature.shape:
        tensor["shape"] = {"dimensions": [str(-1 if size is None else size) for size in feature.shape]}
    # A list of any length that is absent loads as an empty one; `optional` needs a default of known size.
    if feature.nullable and feature.num_values is not None:
        tensor["optional"] = True
    return _document("tensor_feature.Tensor", "tensor", tensor)


def _document(class_name: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": _PREFIX + class_name, kind: content}


def _tfds_dtype(feature: Feature) -> str:
    if feature.stored_as == "bytes_list":
        return "string"
    return feature.dtype if feature.dtype in _TFDS_DTYPES else "int64"


def _tfds_name(name: str) -> str:
    word = re.sub(r"[^a-z0-9_]+", "_", name.lower())
    return word if re.match(r"[a-z_]", word) else f"_{word}"


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"
