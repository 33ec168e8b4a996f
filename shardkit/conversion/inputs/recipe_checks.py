"""The options of a conversion that a dataset holds already, and those that may differ when more is appended to it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from shardkit.conversion.plan import Recipe
from shardkit.conversion.request import ConvertRequest, RecipeOptions, fields_of
from shardkit.dataset.manifest import Manifest
from shardkit.errors import UsageError
from shardkit.transforms.options import TransformOptions, split_reference


def recipe_of(manifest: Manifest, where: str) -> Recipe:
    """Returns the recipe of a dataset that may be appended to.

    Raises:
        UsageError: If what is appended could not be what it would have been in a conversion of all.
    """
    if manifest.recipe.get("source") == "index":
        raise _refusal(where, "it was indexed where it lies", "Run shardkit index on it again when files came to it")
    try:
        recipe = msgspec.convert(manifest.recipe, Recipe)
    except (msgspec.ValidationError, UsageError) as error:
        raise _refusal(where, f"its recipe cannot be used: {error}", "Install the shardkit that made it") from error
    whole = "Convert all of it, the old inputs and the new ones, with --overwrite"
    for is_asked, option, why in (
        (recipe.dedup is not None, "--dedup", "rows that are equal to rows of old shards would not be found"),
        (recipe.stratify is not None, "--stratify", "all rows of a value together decide which split each goes to"),
        (recipe.split_by is not None, "--split-by", "the last rows of all decide where a split ends"),
        (recipe.sample is not None, "--sample", "the rows of all inputs together decide which are in it"),
        (recipe.limit is not None, "--limit", "it has all rows that it may have"),
        (recipe.tfds, "--tfds", "what it writes names the shards of one folder"),
        (recipe.source.query is not None, "--query", "its rows have no names by which they are known again"),
        (
            recipe.source.table is not None and recipe.source.format != "sqlite",
            "--table of a server",
            "it is unknown which of its rows are in it",
        ),
    ):
        if is_asked:
            raise _refusal(where, f"it was made with {option}: {why}", whole)
    return recipe


def check_against_recipe(options: ConvertRequest, recipe: Recipe) -> ConvertRequest:
    """Returns the options as the recipe holds them, except those that may differ.

    Raises:
        UsageError: If one contradicts the recipe.
    """
    defaults, written = ConvertRequest(inputs=(), destination=""), msgspec.to_builtins(recipe)
    for field in fields_of("content"):
        name, path = field.key, field.path
        asked, held = _value(options, path), _value(recipe, path)
        if asked != held and (asked != _value(defaults, path) if options.typed is None else name in options.typed):
            is_there = held is not None and held is not False and held != ()
            wanted = f"--{name}{_shown(field.write(written))}" if is_there else f"no --{name}"
            raise UsageError(
                f"--{name} contradicts the dataset that is appended to",
                why=f"it was made with {wanted}",
                next_step=f"Leave out --{name}, or make a separate dataset at another destination",
            )
    for name, file in (("schema", options.schema_path), ("recipe", options.recipe_path)):
        if file is not None:
            raise UsageError(
                f"--{name} and --append exclude each other",
                why="features and recipe are those of the dataset",
                next_step=f"Leave out --{name}",
            )
    return msgspec.structs.replace(
        options,
        **{name: getattr(recipe, name) for name in RecipeOptions.__struct_fields__}
        | _chosen(options, defaults, recipe, "")
        | {
            part: msgspec.structs.replace(held, **_chosen(getattr(options, part), getattr(defaults, part), held, part))
            for part, held in (
                ("source", recipe.source),
                ("transforms", _with_places(recipe.transforms, options.transforms)),
            )
        },
    )


def _chosen(own: Any, default: Any, held: Any, part: str) -> dict[str, Any]:
    """Returns the limits of a part: those of the user, or else those of the recipe."""
    names = [f.name for f in fields_of("limit") if f.part == part]
    return {n: getattr(held if getattr(own, n) == getattr(default, n) else own, n) for n in names}


def _value(holder: Any, path: str) -> Any:
    """Returns an option as it can be compared: files by what is called in them, for their hashes are checked later."""
    found = attrgetter(path)(holder)
    if path == "transforms.map_path" and found is not None:
        return split_reference(found)[1]
    return tuple(column for column, *_ in found) if path == "transforms.tokenize" else found


def _with_places(held: TransformOptions, own: TransformOptions) -> TransformOptions:
    """Returns what is held, with files where they are now; their hashes stay, and are checked."""
    place = {column: path for column, path, _ in own.tokenize}
    return msgspec.structs.replace(
        held,
        map_path=own.map_path or held.map_path,
        tokenize=tuple((column, place.get(column, path), sha256) for column, path, sha256 in held.tokenize),
    )


def _shown(written: Any) -> str:
    if written is True:
        return ""
    return f" {','.join(map(str, written))}" if isinstance(written, list) else f" {written}"


def _refusal(where: str, why: str, next_step: str) -> UsageError:
    return UsageError("this dataset cannot be appended to", where=where, why=why, next_step=next_step)
