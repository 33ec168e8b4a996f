"""Recipe files: the options of a conversion as TOML, read by `convert --recipe`, written by `inspect --recipe`.

The keys are the long options without their dashes; a table `features` says what a `--schema` file would say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.shell.option_files import checked_defaults, key_of, read_toml

if TYPE_CHECKING:
    from shardkit.dataset.manifest import Manifest
    from shardkit.features import Feature

# What a recipe cannot hold: where it comes from, and what says nothing about the dataset.
NOT_IN_A_RECIPE = frozenset(
    {
        "recipe",
        "debug",
        "help",
        "storage-options",
        "workers",
        "max-memory",
        "overwrite",
        "append",
        "dry-run",
        "work-dir",
        "runner",
        "engine-option",
        "engine-help",
        "project",
        "region",
        "temp-location",
    }
)


def read_recipe(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Makes the options in a recipe file the defaults of the command; what is typed wins. Returns the path."""
    if path is None:
        return None
    content = read_toml(path, "recipe", "shardkit inspect DATASET --recipe printed")
    content.pop("features", None)
    arguments = {key_of(p) for p in ctx.command.params if isinstance(p, click.Argument)}
    defaults = checked_defaults(ctx.command, content, "recipe", path, NOT_IN_A_RECIPE | arguments)
    ctx.default_map = {**defaults, **(ctx.default_map or {})}
    return path


def render_recipe(manifest: Manifest) -> str:
    """Returns the recipe file that gives the same dataset from the same inputs."""
    import shlex

    import msgspec
    import tomli_w

    from shardkit.features import Feature

    recipe: dict[str, Any] = dict(manifest.recipe)
    inputs = " ".join(shlex.quote(i) for i in manifest.created.inputs)
    if recipe.get("source") == "index":
        return _render_index(manifest, inputs)
    options = options_of(recipe)
    document = {key: value for key, value in options.items() if value is not None and value != []}
    features = msgspec.convert(recipe.get("source_features") or (), tuple[Feature, ...]) or manifest.features
    document["features"] = {f.name: declaration(f) for f in features}
    for name in (recipe.get("source") or {}).get("leading_zeros") or ():
        document["features"][name]["leading_zeros"] = True
    return (
        f"# The recipe of {manifest.name}, fingerprint {manifest.fingerprint}. To make it again:\n"
        f"#   shardkit convert {inputs} DESTINATION --recipe THIS_FILE\n"
    ) + tomli_w.dumps(document)


def _render_index(manifest: Manifest, inputs: str) -> str:
    import re
    import shlex

    import tomli_w

    splits = manifest.recipe.get("splits") or []
    assert isinstance(splits, list)
    options = "".join(f" --split {shlex.quote(f'{name}={glob}')}" for name, glob in splits)
    return (
        f"# {manifest.name} was indexed where it lies, fingerprint {manifest.fingerprint}. To do it again:\n"
        f"#   shardkit index {inputs}{options}\n"
        "# To convert it with the same features:\n"
        f"#   shardkit convert {inputs} DESTINATION --recipe THIS_FILE\n"
    ) + tomli_w.dumps(
        {
            "format": "tfrecord",
            # What else lies in the folder, the manifests among it, are no records.
            "include": sorted({re.sub(r"\d+", "*", i.name.rpartition("/")[2]) for i in manifest.accounting.inputs}),
            "features": {f.name: declaration(f) for f in manifest.features},
        }
    )


def options_of(recipe: dict[str, Any]) -> dict[str, Any]:
    """Returns what a recipe file says for each option, None or an empty list where it says nothing.

    Args:
        recipe: As the manifest holds it.
    """
    source: dict[str, Any] = dict(recipe.get("source") or {})
    return {
        "format": source.get("format"),
        "include": list(source.get("include") or ()),
        "exclude": list(source.get("exclude") or ()),
        "drop-columns": ",".join(source.get("drop_columns") or ()) or None,
        "columns": ",".join(source.get("columns") or ()) or None,
        "header": source.get("has_header") or None,
        "delimiter": source.get("delimiter"),
        "null-value": list(source.get("null_values") or ()),
        "max-field": source.get("max_field_bytes"),
        "allow-duplicate-keys": source.get("allows_duplicate_keys") or None,
        "encoding": source.get("encoding"),
        "text-record": source.get("text_record"),
        "table": source.get("table"),
        "query": source.get("query"),
        "labels": source.get("labels"),
        "audio": source.get("audio"),
        "audio-rate": source.get("audio_rate"),
        "max-pixels": source.get("max_pixels"),
        "max-record-size": source.get("max_record_bytes"),
        "max-expansion": source.get("max_expansion"),
        "split": [_split_of(s, recipe) for s in recipe.get("splits") or ()],
        "group-by": ",".join(recipe.get("group_by") or ()) or None,
        "split-column": recipe.get("split_column"),
        "stratify": recipe.get("stratify"),
        "dedup": recipe.get("dedup") == [] or None,
        "dedup-by": ",".join(recipe.get("dedup") or ()) or None,
        "shuffle": recipe.get("shuffle"),
        "seed": recipe.get("seed"),
        "shard-size": recipe.get("shard_bytes"),
        "num-shards": recipe.get("num_shards"),
        "compression": recipe.get("compression"),
        "compression-level": recipe.get("compression_level"),
        "tfds": recipe.get("tfds") or None,
        "on-bad-record": recipe.get("on_bad_record"),
        "max-bad": recipe.get("max_bad"),
        "max-row-seconds": recipe.get("max_row_seconds"),
        "allow-empty": recipe.get("allow_empty") or None,
        **_transforms_of(recipe.get("transforms") or {}),
    }


def _transforms_of(transforms: dict[str, Any]) -> dict[str, Any]:
    size = transforms.get("image_size")
    return {
        "cast": ["=".join(pair) for pair in transforms.get("cast") or ()],
        "rename": ["=".join(pair) for pair in transforms.get("rename") or ()],
        "drop-null": ",".join(transforms.get("drop_null") or ()) or None,
        "map": transforms.get("map_path"),
        "select": transforms.get("select"),
        "unicode-form": ["=".join(pair) for pair in transforms.get("unicode_form") or ()],
        "lower": ",".join(transforms.get("lower") or ()) or None,
        "tokenize": [f"{column}={path}" for column, path, _ in transforms.get("tokenize") or ()],
        "image-size": "x".join(map(str, size)) if size else None,
        "image-format": transforms.get("image_format"),
        "image-quality": transforms.get("image_quality"),
        "apply-exif": transforms.get("apply_exif"),
    }


def _split_of(split: dict[str, Any], recipe: dict[str, Any]) -> str:
    return str(split["name"]) if recipe.get("split_column") else f"{split['name']}={split['fraction']!r}"


def declaration(feature: Feature) -> dict[str, Any]:
    """Returns what a schema file says about a feature."""
    declared: dict[str, Any] = {"dtype": feature.dtype, "nullable": feature.nullable}
    declared |= {"shape": ["*" if size is None else size for size in feature.shape]} if feature.shape else {}
    declared |= {"vocabulary": list(feature.vocabulary)} if feature.vocabulary else {}
    declared |= {"media_type": feature.media_type} if feature.media_type else {}
    declared |= {"timezone": feature.timezone} if feature.timezone else {}
    return declared
