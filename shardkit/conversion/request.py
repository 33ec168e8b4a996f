"""What a user asks `convert` for. Each option is stated once; flags, help, recipe keys and checks follow from it.

Options of reading are in `SourceOptions`, those of transformations in `TransformOptions`, all others here. The fields
are in the order in which a recipe file holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from shardkit.conversion.engines import ENGINES
from shardkit.conversion.option_forms import AllColumns, Split, SplitShare
from shardkit.errors import UsageError
from shardkit.options import PATH, Columns, Named, OneOf, Option, OptionField, Role, Size, options_of
from shardkit.sources.options import INPUTS, SourceOptions
from shardkit.transforms.options import ROWS, TransformOptions
from shardkit.units import MiB

BadRowPolicy = Literal["fail", "skip", "quarantine"]

SPLITS = "Splits and shards"
BAD_INPUT = "Bad input"
RUN = "What runs the conversion"
OTHER = "Other options"
HEADINGS = (INPUTS, ROWS, SPLITS, BAD_INPUT, RUN, OTHER)


class RecipeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that the recipe holds, all of the roles `content` and `limit`."""

    source: SourceOptions = SourceOptions()
    splits: Annotated[tuple[SplitShare, ...], Option(
        "--split",
        "A split, and its share of the rows (0.8 or 80%), a glob of its files, or @ and a list of them; repeat for "
        "more. Else the splits that names of files tell, or 'train'.",
        SPLITS, "content", form=Split("NAME=SHARE|GLOB|@FILE"), is_common=True,
    )] = ()  # fmt: skip
    group_by: Annotated[tuple[str, ...], Option(
        "--group-by", "Rows that are equal in these columns fall into one split.",
        SPLITS, "content", form=Columns(), is_common=True,
    )] = ()  # fmt: skip
    split_column: Annotated[str | None, Option(
        "--split-column",
        "Column that names each row's split: train, validation or test, or those given by --split NAME.",
        SPLITS, "content", form=Named("COLUMN"), is_common=True,
    )] = None  # fmt: skip
    stratify: Annotated[str | None, Option(
        "--stratify", "Divide the rows of every value of this column over the splits by their fractions, to the row.",
        SPLITS, "content", form=Named("COLUMN"), is_common=True,
    )] = None  # fmt: skip
    split_by: Annotated[str | None, Option(
        "--split-by",
        "Number or time column along which rows are split by their fractions: the last --split gets the last rows.",
        SPLITS, "content", form=Named("COLUMN"),
    )] = None  # fmt: skip
    limit: Annotated[int | None, Option(
        "--limit", "Take this many rows, the first ones of the inputs.", ROWS, "content", minimum=1, is_common=True
    )] = None  # fmt: skip
    sample: Annotated[int | None, Option(
        "--sample", "Take this many rows at random, by --seed; all rows are read first.",
        ROWS, "content", minimum=1, is_common=True,
    )] = None  # fmt: skip
    dedup: Annotated[
        tuple[str, ...] | None,
        Option(
            "--dedup", "Leave out each row that equals an earlier row of any input.",
            ROWS, "content", form=AllColumns(), is_common=True, typed_as="dedup_all",
        ),
        Option("--dedup-by", "As --dedup, but compare only these columns.", ROWS, "content", form=Columns()),
    ] = None  # fmt: skip
    pack: Annotated[int | None, Option(
        "--pack",
        "Join the tokens of rows into sequences of this length, with segment_ids and positions; leave out other "
        "columns.", ROWS, "content", form=Named("LENGTH"), minimum=2,
    )] = None  # fmt: skip
    separator: Annotated[str | None, Option(
        "--separator",
        "Put this token, a text or a number, after each row of --pack; none puts nothing. Default: the end of text of "
        "the tokenizer.",
        ROWS, "content", form=Named("TOKEN", "int | str"),
    )] = None  # fmt: skip
    shuffle: Annotated[bool, Option(
        "--shuffle/--no-shuffle", "Shuffle the rows by --seed, or keep the order of the inputs.", SPLITS, "content",
        is_common=True,
    )] = True  # fmt: skip
    seed: Annotated[
        int, Option("--seed", "Seed of the order and of the splits.", SPLITS, "content", is_common=True)
    ] = 0
    shard_bytes: Annotated[int | None, Option(
        "--shard-size", "Approximate size of a shard file.", SPLITS, "content", form=Size(), is_common=True,
    )] = 128 * MiB  # fmt: skip
    num_shards: Annotated[int | None, Option(
        "--num-shards", "Number of shards of each split, instead of --shard-size.", SPLITS, "content", minimum=1
    )] = None  # fmt: skip
    compression: Annotated[Literal["gzip", "none"], Option(
        "--compression", "Compress the shards with gzip, or write plain TFRecords.",
        SPLITS, "content", is_common=True,
    )] = "gzip"  # fmt: skip
    compression_level: Annotated[Literal["fast", "balanced", "small"] | None, Option(
        "--compression-level",
        "fast gives up to 5 % larger files and hardly saves time; small gives up to 26 % smaller files and compresses "
        "5 to 9 times as long.", SPLITS, "content", shown_default="balanced",
    )] = None  # fmt: skip
    tfds: Annotated[bool, Option(
        "--tfds", "Also write the files that tfds.builder_from_directory needs; only with --compression none.",
        SPLITS, "content"
    )] = False  # fmt: skip
    on_bad_record: Annotated[BadRowPolicy, Option(
        "--on-bad-record",
        "For a row that does not fit: fail ends the conversion, skip leaves the row out and counts it, quarantine also "
        "keeps it beside the shards, for 'shardkit inspect --rejected'.", BAD_INPUT, "content", is_common=True,
    )] = "fail"  # fmt: skip
    max_bad: Annotated[str | None, Option(
        "--max-bad",
        "End without a dataset if more rows than this, such as 100 or 0.1%, are left out, or if the rows of a rejected "
        "file cannot be counted.",
        BAD_INPUT, "limit", form=Named("N|P%", "int | str"), is_common=True,
        shown_default="10%; 50% if fewer than 100 are bad",
    )] = None  # fmt: skip
    max_row_seconds: Annotated[float, Option(
        "--max-row-seconds",
        "A row does not fit if reading or transforming it takes longer. Reading a batch of rows, and each step of "
        "planning, may take ten times as long.",
        BAD_INPUT, "limit", minimum=0.1,
    )] = 60.0  # fmt: skip
    allow_empty: Annotated[
        bool, Option("--allow-empty", "Make a dataset without examples if there are no rows.", BAD_INPUT, "limit")
    ] = False
    transforms: TransformOptions = TransformOptions()


class ConvertRequest(RecipeOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every option of a conversion.

    Attributes:
        typed: Names of the options that the user gave; None where they are those that are no defaults.
    """

    inputs: tuple[str, ...]
    destination: str
    typed: frozenset[str] | None = None
    schema_path: Annotated[str | None, Option(
        "--schema", "JSON or TOML file that declares or overrides features.",
        INPUTS, "content", form=Named("FILE", PATH), is_common=True,
    )] = None  # fmt: skip
    workers: Annotated[int | None, Option(
        "--workers", "Number of parts that are worked on at the same time. Default: the number of cores.",
        RUN, "run", minimum=1, is_common=True,
    )] = None  # fmt: skip
    max_memory: Annotated[int | None, Option(
        "--max-memory", "Memory that a process may use. Default: a quarter of the free memory, from 1GiB to 8GiB.",
        RUN, "run", form=Size(),
    )] = None  # fmt: skip
    work_dir: Annotated[str | None, Option(
        "--work-dir",
        "Keep intermediate files in this folder. Default: beside the data. Workers of --runner that share no disk need "
        "a folder in a store.", RUN, "run", form=Named("FOLDER", PATH),
    )] = None  # fmt: skip
    runner: Annotated[str, Option(
        "--runner", "Engine that runs the conversion; all write the same bytes. Flags of Beam follow after --.",
        RUN, "run", form=OneOf(ENGINES), is_common=True,
    )] = "local"  # fmt: skip
    engine_option: Annotated[tuple[str, ...], Option(
        "--engine-option", "Set an option of the engine; repeat for more. --engine-help ENGINE lists them.",
        RUN, "run", form=Named("KEY=VALUE"),
    )] = ()  # fmt: skip
    project: Annotated[str | None, Option(
        "--project", "Project of Google Cloud for --runner dataflow. Default: $GOOGLE_CLOUD_PROJECT.",
        RUN, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    region: Annotated[str | None, Option(
        "--region", "Region in which --runner dataflow starts its workers. Default: $CLOUDSDK_COMPUTE_REGION.",
        RUN, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    temp_location: Annotated[str | None, Option(
        "--temp-location", "Folder in a bucket, gs://..., for the staged and intermediate files of --runner dataflow.",
        RUN, "run", form=Named("URL"),
    )] = None  # fmt: skip
    recipe_path: Annotated[str | None, Option(
        "--recipe",
        "Read options from a TOML file, as 'shardkit inspect --recipe' prints it; options of the command line win.",
        OTHER, "run", form=Named("FILE", PATH), is_common=True,
    )] = None  # fmt: skip
    dry_run: Annotated[bool, Option(
        "--dry-run", "Show the plan and the disk space that it needs, and end.", OTHER, "run", is_common=True,
    )] = False  # fmt: skip
    overwrite: Annotated[bool, Option(
        "--overwrite", "Make the next version of an existing dataset, with these rows only.", OTHER, "run",
        is_common=True,
    )] = False  # fmt: skip
    append: Annotated[bool, Option(
        "--append",
        "Add the files that a dataset does not have yet, by its own recipe: its next version keeps all shards and "
        "gets more.", OTHER, "run", is_common=True,
    )] = False  # fmt: skip
    fetch_again: Annotated[bool, Option(
        "--fetch-again",
        "With --append, in place of inputs: fetch again for the quarantined rows whose addresses gave nothing.",
        OTHER, "run",
    )] = False  # fmt: skip
    rebase: Annotated[bool, Option(
        "--rebase/--no-rebase",
        "Put an append after the versions that other appends made meanwhile, or end with code 4.",
        OTHER, "run",
    )] = True  # fmt: skip


def option_fields() -> tuple[OptionField, ...]:
    """Returns all options of a conversion."""
    return options_of(ConvertRequest)


def fields_of(*roles: Role) -> tuple[OptionField, ...]:
    """Returns the options of some roles that the recipe holds, in the order of a recipe file."""
    return tuple(f for f in options_of(RecipeOptions) if f.option.role in roles)


def parse_request(typed: Mapping[str, Any], inputs: tuple[str, ...] = (), destination: str = "") -> ConvertRequest:
    """Returns the typed options as a request.

    Args:
        typed: Values by parameter; what is not there is the default.

    Raises:
        UsageError: If a value is not of its form.
    """
    values: dict[str, Any] = {"inputs": inputs, "destination": destination}
    for field in option_fields():
        value = typed.get(field.typed_name)
        if value is not None and value != ():
            part = values.setdefault(field.part, {}) if field.part else values
            part[field.name] = field.parse(value)
    try:
        return msgspec.convert(values, ConvertRequest)
    except msgspec.ValidationError as error:
        raise UsageError(
            "an option cannot be used",
            why=str(error),
            next_step="Correct the option that the reason names; shardkit convert --help-all has all",
        ) from error
