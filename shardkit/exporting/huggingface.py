"""What Hugging Face `datasets` reads beside the types of columns, in the metadata of a schema: the names of classes."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from shardkit.features import Feature, Features

_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64", "date32[day]": "date32"}


def with_class_names(schema: pa.Schema, features: Features) -> pa.Schema:
    """Returns a schema that says which columns are classes; `datasets` wants all columns described, or none."""
    if all(f.vocabulary is None for f in features):
        return schema
    described = {f.name: _described(field.type, f) for field, f in zip(schema, features, strict=True)}
    return schema.with_metadata({"huggingface": msgspec.json.encode({"info": {"features": described}})})


def _described(type_: pa.DataType, feature: Feature) -> dict[str, Any]:
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        length = type_.list_size if pa.types.is_fixed_size_list(type_) else -1
        return {"_type": "Sequence", "length": length, "feature": _described(type_.value_type, feature)}
    if feature.vocabulary is not None:
        return {"_type": "ClassLabel", "names": feature.vocabulary}
    return {"_type": "Value", "dtype": _NAMES.get(str(type_), str(type_))}
