"""What a user asks `convert` for. Each option is stated once here; flags, help, recipe keys and checks follow from it.

The fields stand in the order in which a recipe file holds them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from shardkit.conversion.input_request import INPUTS, InputRequest
from shardkit.conversion.option_forms import (
    AllColumns,
    Columns,
    ImageSize,
    Named,
    Option,
    OptionField,
    Pair,
    Role,
    Size,
    Split,
)
from shardkit.units import MiB

BadRowPolicy = Literal["fail", "skip", "quarantine"]
RunnerName = Literal["local", "dask", "flink", "spark", "prism", "portable", "dataflow"]

ROWS = "Rows and columns"
SPLITS = "Splits and shards"
BAD_INPUT = "Bad input"
RUN = "What runs the conversion"
OTHER = "Other options"
HEADINGS = (INPUTS, ROWS, SPLITS, BAD_INPUT, RUN, OTHER)


class ConvertRequest(InputRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every option of a conversion, as `Option` describes them."""

    splits: Annotated[
        tuple[tuple[str, float | None], ...],
        Option(
            "--split", "A split and its share of the rows; repeat for more. One split 'train' if not given.",
            SPLITS, "content", form=Split("NAME=FRACTION"), is_common=True,
        ),
    ] = ()  # fmt: skip
    group_by: Annotated[
        tuple[str, ...],
        Option(
            "--group-by", "Rows that are equal in these columns fall into one split.",
            SPLITS, "content", form=Columns(), is_common=True,
        ),
    ] = ()  # fmt: skip
    split_column: Annotated[
        str | None,
        Option(
            "--split-column",
            "Column that names each row's split: train, validation or test, or those given by --split NAME.",
            SPLITS, "content", form=Named("COLUMN"), is_common=True,
        ),
    ] = None  # fmt: skip
    stratify: Annotated[
        str | None,
        Option(
            "--stratify",
            "Divide the rows of every value of this column over the splits by their fractions, to the row.",
            SPLITS, "content", form=Named("COLUMN"), is_common=True,
        ),
    ] = None  # fmt: skip
    dedup_all: Annotated[
        bool,
        Option(
            "--dedup", "Leave out rows that are equal to an earlier row, over all inputs; exact.",
            ROWS, "content", stored_as="dedup", form=AllColumns(), is_common=True,
        ),
    ] = False  # fmt: skip
    dedup: Annotated[
        tuple[str, ...] | None,
        Option("--dedup-by", "The same, comparing only these columns.", ROWS, "content", form=Columns()),
    ] = None
    shuffle: Annotated[
        bool,
        Option(
            "--shuffle/--no-shuffle", "Random order by --seed, or that of the inputs.",
            SPLITS, "content", is_common=True,
        ),
    ] = True  # fmt: skip
    seed: Annotated[int, Option("--seed", "Of the order and of the splits.", SPLITS, "content", is_common=True)] = 0
    shard_bytes: Annotated[
        int,
        Option(
            "--shard-size", "Wanted size of a shard on disk.",
            SPLITS, "content", form=Size(), is_common=True,
        ),
    ] = 128 * MiB  # fmt: skip
    num_shards: Annotated[
        int | None,
        Option("--num-shards", "Shards of each split, instead of --shard-size.", SPLITS, "content", minimum=1),
    ] = None
    compression: Annotated[
        Literal["gzip", "none"],
        Option(
            "--compression", "gzip that can seek, or plain TFRecords with an index of their records.",
            SPLITS, "content", is_common=True,
        ),
    ] = "gzip"  # fmt: skip
    compression_level: Annotated[
        Literal["fast", "balanced", "small"] | None,
        Option(
            "--compression-level",
            "'fast' is up to 5 % larger and hardly faster, 'small' up to 26 % smaller, compressed 5 to 9 times as "
            "long.",
            SPLITS, "content", shown_default="balanced",
        ),
    ] = None  # fmt: skip
    tfds: Annotated[
        bool,
        Option(
            "--tfds", "Also write what tfds.builder_from_directory needs; uncompressed only.", SPLITS, "content"
        ),
    ] = False  # fmt: skip
    on_bad_record: Annotated[
        BadRowPolicy,
        Option(
            "--on-bad-record",
            "End at the first row that does not fit; or leave such rows out and count them; or keep them beside the "
            "shards too, where 'shardkit inspect --rejected' shows them.",
            BAD_INPUT, "content", is_common=True,
        ),
    ] = "fail"  # fmt: skip
    max_bad: Annotated[
        str | None,
        Option(
            "--max-bad",
            "End without a dataset if more rows are left out, as 100 or 0.1%, or if a file is rejected whole whose "
            "rows nobody can count.",
            BAD_INPUT, "limit", form=Named("N|P%"), is_common=True,
        ),
    ] = None  # fmt: skip
    max_row_seconds: Annotated[
        float,
        Option(
            "--max-row-seconds", "A row on which reading or a transformation takes longer does not fit.",
            BAD_INPUT, "limit", minimum=0.1,
        ),
    ] = 60.0  # fmt: skip
    allow_empty: Annotated[
        bool, Option("--allow-empty", "Make a dataset without examples if there are no rows.", BAD_INPUT, "limit")
    ] = False
    cast: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "--cast", "Make a column another type; repeat for more.",
            ROWS, "content", "transforms", form=Pair("--cast", "COLUMN=TYPE", is_cut_at_last=True), is_common=True,
        ),
    ] = ()  # fmt: skip
    rename: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "--rename", "Give a column another name; repeat for more.",
            ROWS, "content", "transforms", form=Pair("--rename", "OLD=NEW"), is_common=True,
        ),
    ] = ()  # fmt: skip
    drop_null: Annotated[
        tuple[str, ...],
        Option(
            "--drop-null", "Leave out rows that lack one of these columns; '*' means any.",
            ROWS, "content", "transforms", form=Columns(), is_common=True,
        ),
    ] = ()  # fmt: skip
    map_path: Annotated[
        str | None,
        Option(
            "--map", "Your own function from Arrow batch to Arrow batch.",
            ROWS, "content", "transforms", form=Named("FILE.py:FUNCTION"), is_common=True,
        ),
    ] = None  # fmt: skip
    select: Annotated[
        str | None,
        Option(
            "--select", 'Row-wise SQL, such as "SELECT a, b*2 AS c FROM rows WHERE a > 0" (extra: sql).',
            ROWS, "content", "transforms", form=Named("SQL"), is_common=True,
        ),
    ] = None  # fmt: skip
    unicode_form: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "--unicode-form", "NFC, NFD, NFKC or NFKD of a text column.",
            ROWS, "content", "transforms",
            form=Pair("--unicode-form", "COLUMN=NFC", metavar="COLUMN=FORM", is_cut_at_last=True),
        ),
    ] = ()  # fmt: skip
    lower: Annotated[
        tuple[str, ...],
        Option("--lower", "Text columns in lower case.", ROWS, "content", "transforms", form=Columns()),
    ] = ()
    tokenize: Annotated[
        tuple[tuple[str, str, str], ...],
        Option(
            "--tokenize", "Token ids in place of a text column, by the tokenizers library (extra: text).",
            ROWS, "content", "transforms", form=Pair("--tokenize", "COLUMN=tokenizer.json", more=("",)),
        ),
    ] = ()  # fmt: skip
    image_size: Annotated[
        tuple[int, int] | None,
        Option(
            "--image-size", "Resize all images to this height and width.",
            ROWS, "content", "transforms", form=ImageSize("N|HxW"),
        ),
    ] = None  # fmt: skip
    image_format: Annotated[
        Literal["jpeg", "png"] | None,
        Option("--image-format", "Store all images as this.", ROWS, "content", "transforms"),
    ] = None
    image_quality: Annotated[
        int | None,
        Option("--image-quality", "Of JPEG; 90 if not given.", ROWS, "content", "transforms", minimum=1, maximum=100),
    ] = None
    apply_exif: Annotated[
        bool,
        Option(
            "--apply-exif/--keep-exif", "Turn images that are written anew upright, as their EXIF data says.",
            ROWS, "content", "transforms",
        ),
    ] = True  # fmt: skip
    workers: Annotated[
        int | None,
        Option(
            "--workers", "Parts worked on at the same time; the number of cores if not given.",
            RUN, "run", minimum=1, is_common=True,
        ),
    ] = None  # fmt: skip
    max_memory: Annotated[
        int | None,
        Option(
            "--max-memory", "What a process may ask for; nine tenths of what is free, 2GiB at least, if not given.",
            RUN, "run", form=Size(),
        ),
    ] = None  # fmt: skip
    work_dir: Annotated[
        str | None,
        Option(
            "--work-dir",
            "Where intermediate files go; beside the data if not given. A folder in a store is for workers of --runner "
            "that share no disk.",
            RUN, "run", form=Named("FOLDER"),
        ),
    ] = None  # fmt: skip
    runner: Annotated[
        RunnerName,
        Option(
            "--runner", "What runs the conversion; all give the same bytes. Flags of Beam itself go after --.",
            RUN, "run", is_common=True,
        ),
    ] = "local"  # fmt: skip
    engine_option: Annotated[
        tuple[str, ...],
        Option(
            "--engine-option",
            "Tell the engine something; repeat for more. --engine-help ENGINE lists what there is.",
            RUN, "run", form=Named("KEY=VALUE"),
        ),
    ] = ()  # fmt: skip
    project: Annotated[
        str | None,
        Option(
            "--project", "Of Google Cloud, for --runner dataflow; $GOOGLE_CLOUD_PROJECT if not given.",
            RUN, "run", form=Named("NAME"),
        ),
    ] = None  # fmt: skip
    region: Annotated[
        str | None,
        Option(
            "--region", "Where --runner dataflow starts its workers; $CLOUDSDK_COMPUTE_REGION if not given.",
            RUN, "run", form=Named("NAME"),
        ),
    ] = None  # fmt: skip
    temp_location: Annotated[
        str | None,
        Option(
            "--temp-location",
            "Folder of a bucket, gs://..., for what --runner dataflow stages and keeps in between.",
            RUN, "run", form=Named("URL"),
        ),
    ] = None  # fmt: skip
    recipe_path: Annotated[
        str | None,
        Option(
            "--recipe", "TOML file of options, as 'shardkit inspect --recipe' prints it; options given here win.",
            OTHER, "run", form=Named("FILE"), is_common=True,
        ),
    ] = None  # fmt: skip
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run", "Show what would be done and the disk space it needs, and end.",
            OTHER, "run", is_common=True,
        ),
    ] = False  # fmt: skip
    overwrite: Annotated[
        bool,
        Option(
            "--overwrite", "Make the next version of a dataset that is there already.",
            OTHER, "run", is_common=True,
        ),
    ] = False  # fmt: skip
    append: Annotated[
        bool,
        Option(
            "--append",
            "Add the files that a dataset does not have yet: its next version keeps all shards and gets more beside "
            "them, by the recipe that it holds.",
            OTHER, "run", is_common=True,
        ),
    ] = False  # fmt: skip


@functools.cache
def option_fields() -> tuple[OptionField, ...]:
    """Returns all options of a conversion, in the order of a recipe file."""
    hints = get_type_hints(ConvertRequest, include_extras=True)
    fields = msgspec.structs.fields(ConvertRequest)
    defaults = {f.name: () if f.default is msgspec.NODEFAULT else f.default for f in fields}
    return tuple(
        OptionField(name, hints[name].__origin__, hints[name].__metadata__[0], default)
        for name, default in defaults.items()
    )


def fields_of(role: Role) -> tuple[OptionField, ...]:
    """Returns the options of a role that the stored recipe holds."""
    return tuple(f for f in option_fields() if f.is_in_recipe and f.option.role == role)


def parse_request(typed: Mapping[str, Any]) -> ConvertRequest:
    """Returns what was typed as a request.

    Args:
        typed: Values by field; a value that is not there is the default.

    Raises:
        UsageError: If a text is not of its form.
    """
    return ConvertRequest(**{f.name: f.parse(typed.get(f.name)) for f in option_fields()})
