"""From a request to a plan: inputs listed, features fixed, inputs cut, an earlier attempt found."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from shardkit.conversion.commit.commit import refuse_existing
from shardkit.conversion.exchange import check_exchange, exchange_folder
from shardkit.conversion.extract.packing import packed_features, plan_packing
from shardkit.conversion.inputs.append_check import (
    appended_fingerprint,
    base_version,
    check_fit,
    check_same_features,
    leave_out_known,
    named_as_before,
    open_base,
    source_features,
)
from shardkit.conversion.inputs.database_rows import holds_server_rows, names_server, server_rows
from shardkit.conversion.inputs.fetch_again import with_rows_again
from shardkit.conversion.inputs.inspect_inputs import InspectedInputs, InspectOptions, inferred_columns, inspect_inputs
from shardkit.conversion.inputs.option_checks import check_options, choose_level, refuse_other_texts, refuse_own_output
from shardkit.conversion.inputs.recipe_checks import check_against_recipe, recipe_of
from shardkit.conversion.inputs.schema_file import (
    Schema,
    apply_schema,
    declared_features,
    declared_types,
    load_schema,
    with_leading_zeros,
)
from shardkit.conversion.option_forms import parse_shares
from shardkit.conversion.plan import (
    Plan,
    Recipe,
    check_destination,
    fingerprint,
    make_created,
    no_new_folders,
    work_roots,
)
from shardkit.conversion.plan_notes import plan_notes
from shardkit.conversion.request import ConvertRequest, RecipeOptions
from shardkit.conversion.rows.bad_rows import check_countable
from shardkit.conversion.rows.first_rows import find_first_rows
from shardkit.conversion.rows.small_files import group_small_files
from shardkit.conversion.shards.tfds import check_tfds_names
from shardkit.conversion.space.disk_space import check_space
from shardkit.conversion.splits.assign import DEFAULT_NAMES, check_columns
from shardkit.conversion.work_folder import count_read_before, version_cut_off
from shardkit.dataset.manifest import InputRoot
from shardkit.dataset.open import Dataset
from shardkit.errors import NoRowsError, UsageError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile, place
from shardkit.sources.file_globs import folders_of_splits
from shardkit.sources.formats import format_named
from shardkit.sources.listing import Expanded, expand_inputs
from shardkit.sources.split_names import files_of_splits, in_order, split_of
from shardkit.storage import files as storage
from shardkit.transforms.columns import texts_as_written
from shardkit.transforms.pipeline import TransformPlan, plan_transforms
from shardkit.units import MiB

# About 10,000 web addresses: what a conversion that goes on fetches once more is little.
_FETCHED_SPLIT_BYTES = MiB


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that has not started.

    Attributes:
        inspected: What the inputs are; see `remember`.
        num_finished_splits: Input splits that an earlier attempt left in the spool.
        committed_version: What an earlier attempt made, which was cut off before it had tidied up.
    """

    plan: Plan
    inspected: InspectedInputs
    notes: tuple[str, ...]
    num_finished_splits: int
    committed_version: int | None = None


def prepare(options: ConvertRequest) -> Prepared:
    """Plans a conversion; reads heads and footers of the inputs, and writes nothing but empty folders.

    Raises:
        UsageError, BadInputError: If the request or an input is wrong.
        ConflictError: If the destination holds a dataset and may not be overwritten.
        NothingNew: If the dataset has all inputs that are to be appended to it.
    """
    destination = storage.normalize(options.destination)
    if not storage.is_local(destination):
        storage.protocol_of(destination)  # Nothing is written to web servers, which are read.
    work_root, exchange = work_roots(destination, options.work_dir)
    refuse_other_texts(destination, work_root)
    if options.append:
        base = _base_of(options, destination)
        options = check_against_recipe(options, recipe_of(base.manifest, storage.redact(destination)))
        # The dataset has examples; a day without rows is no error.
        options = msgspec.structs.replace(options, allow_empty=True)
        if options.fetch_again:
            options = with_rows_again(options, base, work_root)
        return _prepare(options, destination, work_root, exchange, base)
    with server_rows(options, work_root) as rows:
        if rows is None:
            return _prepare(options, destination, work_root, exchange)
        if exchange is not None:
            raise UsageError(
                "rows of a database server are read here, where workers that share no disk do not find them",
                next_step="Leave --work-dir out, or name a folder that all workers share",
            )
        prepared = _prepare(rows.options, destination, work_root)
    recipe = prepared.plan.recipe
    source = msgspec.structs.replace(recipe.source, table=options.source.table, query=options.source.query)
    plan = msgspec.structs.replace(
        prepared.plan,
        created=make_created(options.inputs),
        recipe=msgspec.structs.replace(recipe, source=source),
    )
    return msgspec.structs.replace(prepared, plan=plan, notes=(*rows.notes, *prepared.notes))


def draft(
    options: ConvertRequest, destination: str, work_root: str, base: Dataset | None = None
) -> tuple[Plan, InspectedInputs]:
    """Returns the plan of a conversion, whatever the destination holds, and its inputs; writes nothing.

    Args:
        options: What the user asks for; with a base as its recipe holds them.
        destination: Of the dataset, normalized.
        work_root: The folder of all work folders.

    Raises:
        UsageError, BadInputError: If the request or an input is wrong.
    """
    check_options(options)
    asked = _asked(options)
    expanded = _expanded(options, destination, work_root, base)
    schema = _schema_of(options)
    inspected = _inspected(options, expanded, work_root, schema, base)
    recipe, transforms = _recipe(options, asked, inspected, schema, base)
    check_columns(transforms.output_features, recipe)
    packing = plan_packing(transforms.output_features, recipe.pack, recipe.separator, recipe.transforms.tokenize)
    features = transforms.output_features if packing is None else packed_features(packing)
    files, input_splits = _limited(inspected, recipe, transforms)
    if recipe.tfds:
        check_tfds_names(features)
    if not input_splits and not options.allow_empty:
        raise NoRowsError()
    all_files = (*files, *(d.file for d in inspected.damaged_files))
    name = _fingerprint(all_files, features, recipe, base)
    root = InputRoot(path=storage.redact(inspected.root), num_inputs=len(all_files))
    plan = Plan(
        destination=destination,
        work_dir=storage.join(work_root, name),
        fingerprint=name,
        created=make_created(options.inputs, [root]),
        recipe=recipe,
        features=features,
        files=files,
        input_splits=group_small_files(input_splits, files),
        overwrite=options.overwrite,
        transforms=transforms,
        damaged_files=inspected.damaged_files,
        packing=packing,
        inferred=frozenset() if base is not None else inferred_columns(inspected, options.source, schema),
        base=None if base is None else base_version(base),
        rebases=options.rebase,
    )
    return plan, inspected


def _asked(options: ConvertRequest) -> dict[str, Any]:
    """Returns the fields of a recipe that the request alone decides."""
    return {name: getattr(options, name) for name in RecipeOptions.__struct_fields__} | {
        "shard_bytes": None if options.num_shards is not None else options.shard_bytes,
        "compression_level": choose_level(options),
    }


def _expanded(options: ConvertRequest, destination: str, work_root: str, base: Dataset | None) -> Expanded:
    expanded = expand_inputs(options.inputs, options.source.format)
    refuse_other_texts(expanded.root)
    near = (f.path for f in expanded.files if f.path.startswith(destination))
    own = [path for path in near if not holds_server_rows(path, work_root)]
    refuse_own_output(options.inputs, own, expanded.root, destination, options.source)
    return expanded if base is None else named_as_before(expanded, base.manifest)


def _inspected(
    options: ConvertRequest, expanded: Expanded, work_root: str, schema: Schema | None, base: Dataset | None
) -> InspectedInputs:
    labels = options.source.labels
    tolerant = msgspec.structs.replace(
        options.source,
        tolerates_bad_rows=options.on_bad_record != "fail",
        labels=None if labels is None else storage.normalize(labels),
        split_folders=folders_of_splits([(share.name, share.files) for share in options.splits if share.files]),
    )
    asked = InspectOptions(
        allow_empty=options.allow_empty,
        has_split_options=bool(options.splits or options.split_column or options.group_by),
        has_source_column=options.transforms.source_column is not None,
        leave_out=None if base is None else functools.partial(leave_out_known, base=base),
        declared=declared_types(schema, options.transforms.cast),
        split_bytes=None if options.transforms.fetch is None else _FETCHED_SPLIT_BYTES,
    )
    inspected = inspect_inputs(expanded, tolerant, work_root, asked)
    return _with_files_of_splits(options, inspected, is_appended=base is not None)


def _recipe(
    options: ConvertRequest,
    asked: dict[str, Any],
    inspected: InspectedInputs,
    schema: Schema | None,
    base: Dataset | None,
) -> tuple[Recipe, TransformPlan]:
    """Returns what the conversion does, now that the inputs are known, and the transformations of it."""
    by_name = _splits_by_name(options, inspected)
    shares = parse_shares(options.splits, by_name or (() if options.split_column is None else DEFAULT_NAMES))
    source = inspected.source
    features = _with_schema(inspected, schema) if base is None else source_features(base.manifest)
    if schema is not None and "leading_zeros" in format_named(source.format).options:
        zeros = with_leading_zeros(schema, is_recipe=options.schema_path is None)
        source = msgspec.structs.replace(source, leading_zeros=zeros)
    if base is None and "leading_zeros" in format_named(source.format).options:
        features = texts_as_written(features, options.transforms.cast)
    held = () if base is None else base.manifest.features
    transforms = plan_transforms(features, options.transforms, source, held)
    found = {
        "source": source,
        "splits": shares,
        "splits_by_name": bool(by_name),
        "labels_sha256": inspected.labels_sha256,
        "transforms": transforms.options,
        "source_features": () if transforms.options.changes_nothing else transforms.input_features,
    }
    return Recipe(**asked | found), transforms


def _limited(
    inspected: InspectedInputs, recipe: Recipe, transforms: TransformPlan
) -> tuple[tuple[RawFile, ...], tuple[InputSplit, ...]]:
    """Returns the files and the input splits that are read: those of the first rows if a recipe has a limit."""
    files, input_splits = inspected.files, inspected.input_splits
    if recipe.limit is None:
        return files, input_splits
    columns, by_file = transforms.input_features, recipe.splits_by_name
    first = find_first_rows(input_splits, files, columns, recipe.source, recipe.limit, is_by_file=by_file)
    return first.files, first.input_splits


def _fingerprint(files: tuple[RawFile, ...], features: Features, recipe: Recipe, base: Dataset | None) -> str:
    name = fingerprint(files, features, recipe)
    if base is None:
        return name
    check_same_features(features, base.manifest)
    return appended_fingerprint(base_version(base), name)


def _base_of(options: ConvertRequest, destination: str) -> Dataset:
    if options.overwrite:
        raise UsageError("--append and --overwrite exclude each other", next_step="Drop one of them")
    if any(map(names_server, options.inputs)):
        raise UsageError(
            "rows of a database server cannot be appended",
            why="it is unknown which of them the dataset has already",
            next_step="Export the new ones to a file, and append that",
        )
    return open_base(destination)


def _prepare(
    options: ConvertRequest, destination: str, work_root: str, exchange: str | None = None, base: Dataset | None = None
) -> Prepared:
    plan, inspected = draft(options, destination, work_root, base)
    if exchange is not None:
        plan = msgspec.structs.replace(plan, exchange=exchange_folder(exchange, destination, plan.fingerprint))
        check_exchange(plan)
    fit_notes = () if base is None else check_fit(inspected, base.manifest)
    if (version := version_cut_off(plan)) is not None:
        return Prepared(plan=plan, inspected=inspected, notes=(), num_finished_splits=0, committed_version=version)
    refuse_existing(plan)
    check_countable(plan)
    with no_new_folders(destination):
        check_destination(destination)
        space_notes = check_space(plan) if plan.exchange is None else ()
    notes = (*inspected.notes, *plan_notes(plan, inspected.files, fit_notes), *space_notes)
    return Prepared(plan=plan, inspected=inspected, notes=notes, num_finished_splits=count_read_before(plan))


def _with_files_of_splits(options: ConvertRequest, inspected: InspectedInputs, *, is_appended: bool) -> InspectedInputs:
    wanted = [(share.name, share.files) for share in options.splits if share.files]
    if not wanted:
        return inspected
    for is_given, option in (
        (options.split_column, "--split-column"),
        (options.stratify, "--stratify"),
        (options.split_by, "--split-by"),
        (options.group_by, "--group-by"),
    ):
        if is_given:
            raise UsageError(
                f"{option} and a --split of files exclude each other",
                why="both say which split a row belongs to",
                next_step=f"Leave {option} out, or give every --split a fraction",
            )
    rest = next((share.name for share in options.splits if not share.files), None)
    files, notes = files_of_splits(inspected.files, wanted, rest, may_be_empty=is_appended)
    return msgspec.structs.replace(inspected, files=files, notes=(*inspected.notes, *notes))


def _splits_by_name(options: ConvertRequest, inspected: InspectedInputs) -> tuple[str, ...]:
    # The splits that options or the names of the files tell, unless an option divides the rows otherwise.
    if any(share.files for share in options.splits):
        return tuple(share.name for share in options.splits)
    are_dealt = any(share.fraction for share in options.splits) or options.group_by
    if not inspected.source.has_split_names or are_dealt or options.split_column or options.stratify:
        return ()
    silent = next((file for file in inspected.files if split_of(file) is None), None)
    if silent is not None:
        raise UsageError(
            "the name of a file tells no split, as those of the dataset do",
            where=place(silent),
            next_step="Rename it, or put it into a folder train, validation or test",
        )
    found = in_order({split for file in inspected.files if (split := split_of(file)) is not None})
    asked = {share.name for share in options.splits}
    if asked and (other := next((name for name in found if name not in asked), None)):
        raise UsageError(
            f"the inputs have the split {other!r}, which no --split names",
            next_step=f"Add --split {other}, leave these files out with --exclude, or give every --split a fraction",
        )
    return found


def _schema_of(options: ConvertRequest) -> Schema | None:
    if options.schema_path is not None:
        return load_schema(options.schema_path)
    return load_schema(options.recipe_path, is_recipe=True) if options.recipe_path is not None else None


def _with_schema(inspected: InspectedInputs, schema: Schema | None) -> Features:
    if schema is None:
        return inspected.features
    if not inspected.has_features:
        return declared_features(schema)
    is_any_dropped = not schema.features.keys().isdisjoint(inspected.source.drop_columns)
    may_lack_columns = format_named(inspected.source.format).may_lack_columns and not is_any_dropped
    return apply_schema(inspected.features, schema, may_lack_columns=may_lack_columns)
