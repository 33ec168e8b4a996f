"""Recipe files: the options of a conversion as TOML, read by `convert --recipe`, written by `inspect --recipe`.

The keys are the long options without their dashes; a table `features` says what a `--schema` file would say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.shell.option_files import checked_defaults, key_of, read_toml
from shardkit.cli.shell.request_options import click_options
from shardkit.conversion.request import fields_of, option_fields
from shardkit.messages import visible

if TYPE_CHECKING:
    from shardkit.dataset.manifest import Manifest
    from shardkit.features import Feature

# Options that a recipe cannot hold: its own file, and options without an effect on the dataset.
NOT_IN_A_RECIPE = frozenset({f.key for f in option_fields() if f.option.role == "run"}) | {
    "debug", "help", "help-all", "storage-options", "engine-help",
}  # fmt: skip


def recipe_option() -> click.Option:
    """Returns the option that takes other options from a recipe file."""
    (option,) = click_options(["recipe_path"])
    option.is_eager, option.callback = True, read_recipe
    assert isinstance(option, click.Option)
    return option


def read_recipe(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Makes the options in a recipe file the defaults of the command; typed options win. Returns the path."""
    if path is None:
        return None
    content = read_toml(path, "recipe", "shardkit inspect DATASET --recipe printed")
    content.pop("features", None)
    arguments = {key_of(p) for p in ctx.command.params if isinstance(p, click.Argument)}
    defaults = checked_defaults(ctx.command, content, "recipe", path, NOT_IN_A_RECIPE | arguments)
    ctx.default_map = {**defaults, **(ctx.default_map or {})}
    return path


def render_recipe(manifest: Manifest) -> str:
    """Returns the recipe file that gives the same dataset from the same inputs.

    Raises:
        DamageError: If the manifest holds something else than the recipe of a conversion.
    """
    import msgspec

    from shardkit.errors import DamageError

    try:
        return _render(manifest)
    except (AttributeError, TypeError, KeyError, ValueError, AssertionError, msgspec.ValidationError) as error:
        raise DamageError(
            "the recipe cannot be read",
            where=f"the manifest of {manifest.name}",
            why=f"{type(error).__name__}: {error}",
            next_step="Do not make this dataset again by its recipe: shardkit did not write that",
        ) from error


def _render(manifest: Manifest) -> str:
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
    return _comments(
        f"The recipe of {manifest.name}, fingerprint {manifest.fingerprint}. To make it again:",
        f"  shardkit convert {inputs} DESTINATION --recipe THIS_FILE",
    ) + tomli_w.dumps(document)


def _comments(*lines: str) -> str:
    # A name with a line end would add options to the recipe, which may name files of code.
    return "".join(f"# {visible(line)}\n" for line in lines)


def _render_index(manifest: Manifest, inputs: str) -> str:
    import re
    import shlex

    import tomli_w

    splits = manifest.recipe.get("splits") or []
    assert isinstance(splits, list)
    options = "".join(f" --split {shlex.quote(f'{name}={glob}')}" for name, glob in splits)
    return _comments(
        f"{manifest.name} was indexed where it lies, fingerprint {manifest.fingerprint}. To do it again:",
        f"  shardkit index {inputs}{options}",
        "To convert it with the same features:",
        f"  shardkit convert {inputs} DESTINATION --recipe THIS_FILE",
    ) + tomli_w.dumps(
        {
            "format": "tfrecord",
            # Other files of the folder, such as manifests, hold no records.
            "include": sorted({re.sub(r"\d+", "*", i.name.rpartition("/")[2]) for i in manifest.accounting.inputs}),
            "features": {f.name: declaration(f) for f in manifest.features},
        }
    )


def options_of(recipe: dict[str, Any]) -> dict[str, Any]:
    """Returns the value of each option in a recipe file, None or an empty list where there is none."""
    return {f.key: f.write(recipe) for f in fields_of("content", "limit")}


def declaration(feature: Feature) -> dict[str, Any]:
    """Returns the declaration of a feature in a schema file."""
    declared: dict[str, Any] = {"dtype": feature.dtype, "nullable": feature.nullable}
    declared |= {"shape": ["*" if size is None else size for size in feature.shape]} if feature.shape else {}
    declared |= {"vocabulary": list(feature.vocabulary)} if feature.vocabulary else {}
    declared |= {"media_type": feature.media_type} if feature.media_type else {}
    declared |= {"timezone": feature.timezone} if feature.timezone else {}
    return declared
