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
        "--limit", "Take the first so many rows of the inputs.", ROWS, "content", minimum=1, is_common=True
    )] = None  # fmt: skip
    sample: Annotated[int | None, Option(
        "--sample", "Take so many rows at random, by --seed; all rows are read first.",
        ROWS, "content", minimum=1, is_common=True,
    )] = None  # fmt: skip
    dedup: Annotated[
        tuple[str, ...] | None,
        Option(
            "--dedup", "Leave out rows that are equal to an earlier row, over all inputs; exact.",
            ROWS, "content", form=AllColumns(), is_common=True, typed_as="dedup_all",
        ),
        Option("--dedup-by", "The same, comparing only these columns.", ROWS, "content", form=Columns()),
    ] = None  # fmt: skip
    pack: Annotated[int | None, Option(
        "--pack",
        "Join the tokens of rows to sequences of this length, with segment_ids and positions; other columns are left "
        "out.", ROWS, "content", form=Named("LENGTH"), minimum=2,
    )] = None  # fmt: skip
    separator: Annotated[str | None, Option(
        "--separator",
        "Token behind each row of --pack, as text or as a number, or none; the tokenizer's end of text if not given.",
        ROWS, "content", form=Named("TOKEN", "int | str"),
    )] = None  # fmt: skip
    shuffle: Annotated[bool, Option(
        "--shuffle/--no-shuffle", "Random order by --seed, or that of the inputs.", SPLITS, "content", is_common=True,
    )] = True  # fmt: skip
    seed: Annotated[int, Option("--seed", "Of the order and of the splits.", SPLITS, "content", is_common=True)] = 0
    shard_bytes: Annotated[int | None, Option(
        "--shard-size", "Wanted size of a shard on disk.", SPLITS, "content", form=Size(), is_common=True,
    )] = 128 * MiB  # fmt: skip
    num_shards: Annotated[int | None, Option(
        "--num-shards", "Shards of each split, instead of --shard-size.", SPLITS, "content", minimum=1
    )] = None  # fmt: skip
    compression: Annotated[Literal["gzip", "none"], Option(
        "--compression", "gzip that can seek, or plain TFRecords with an index of their records.",
        SPLITS, "content", is_common=True,
    )] = "gzip"  # fmt: skip
    compression_level: Annotated[Literal["fast", "balanced", "small"] | None, Option(
        "--compression-level",
        "'fast' is up to 5 % larger and hardly faster, 'small' up to 26 % smaller, compressed 5 to 9 times as "
        "long.", SPLITS, "content", shown_default="balanced",
    )] = None  # fmt: skip
    tfds: Annotated[bool, Option(
        "--tfds", "Also write what tfds.builder_from_directory needs; uncompressed only.", SPLITS, "content"
    )] = False  # fmt: skip
    on_bad_record: Annotated[BadRowPolicy, Option(
        "--on-bad-record",
        "End at the first row that does not fit; or leave such rows out and count them; or keep them beside the "
        "shards too, where 'shardkit inspect --rejected' shows them.", BAD_INPUT, "content", is_common=True,
    )] = "fail"  # fmt: skip
    max_bad: Annotated[str | None, Option(
        "--max-bad",
        "End without a dataset if more rows are left out, as 100 or 0.1%, or if a file is rejected whole whose "
        "rows cannot be counted.",
        BAD_INPUT, "limit", form=Named("N|P%", "int | str"), is_common=True,
        shown_default="10%; 50% if fewer than 100 are bad",
    )] = None  # fmt: skip
    max_row_seconds: Annotated[float, Option(
        "--max-row-seconds",
        "A row on which reading or a transformation takes longer does not fit. Reading a batch of rows, and each step "
        "of the planning, may take ten times as long.",
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
        "--workers", "Parts worked on at the same time; the number of cores if not given.",
        RUN, "run", minimum=1, is_common=True,
    )] = None  # fmt: skip
    max_memory: Annotated[int | None, Option(
        "--max-memory", "What a process may ask for; a quarter of what is free, from 1GiB to 8GiB, if not given.",
        RUN, "run", form=Size(),
    )] = None  # fmt: skip
    work_dir: Annotated[str | None, Option(
        "--work-dir",
        "Where intermediate files go; beside the data if not given. A folder in a store is for workers of --runner "
        "that share no disk.", RUN, "run", form=Named("FOLDER", PATH),
    )] = None  # fmt: skip
    runner: Annotated[str, Option(
        "--runner", "What runs the conversion; all give the same bytes. Flags of Beam itself go after --.",
        RUN, "run", form=OneOf(ENGINES), is_common=True,
    )] = "local"  # fmt: skip
    engine_option: Annotated[tuple[str, ...], Option(
        "--engine-option", "An option of the engine; repeat for more. --engine-help ENGINE lists what there is.",
        RUN, "run", form=Named("KEY=VALUE"),
    )] = ()  # fmt: skip
    project: Annotated[str | None, Option(
        "--project", "Of Google Cloud, for --runner dataflow; $GOOGLE_CLOUD_PROJECT if not given.",
        RUN, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    region: Annotated[str | None, Option(
        "--region", "Where --runner dataflow starts its workers; $CLOUDSDK_COMPUTE_REGION if not given.",
        RUN, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    temp_location: Annotated[str | None, Option(
        "--temp-location", "Folder of a bucket, gs://..., for what --runner dataflow stages and keeps in between.",
        RUN, "run", form=Named("URL"),
    )] = None  # fmt: skip
    recipe_path: Annotated[str | None, Option(
        "--recipe", "TOML file of options, as 'shardkit inspect --recipe' prints it; options given here win.",
        OTHER, "run", form=Named("FILE", PATH), is_common=True,
    )] = None  # fmt: skip
    dry_run: Annotated[bool, Option(
        "--dry-run", "Show what would be done and the disk space it needs, and end.", OTHER, "run", is_common=True,
    )] = False  # fmt: skip
    overwrite: Annotated[bool, Option(
        "--overwrite", "Make the next version of a dataset that is there already.", OTHER, "run", is_common=True,
    )] = False  # fmt: skip
    append: Annotated[bool, Option(
        "--append",
        "Add the files that a dataset does not have yet: its next version keeps all shards and gets more beside "
        "them, by the recipe that it holds.", OTHER, "run", is_common=True,
    )] = False  # fmt: skip
    fetch_again: Annotated[bool, Option(
        "--fetch-again",
        "With --append, in place of inputs: try the quarantined rows of the dataset again that could not be fetched.",
        OTHER, "run",
    )] = False  # fmt: skip
    rebase: Annotated[bool, Option(
        "--rebase/--no-rebase",
        "Whether an append goes behind versions that other appends made meanwhile. Without, it ends with code 4.",
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
