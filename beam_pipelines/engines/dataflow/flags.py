"""Beam's flags that a job on Dataflow may not have, or that an option sets. Pure but for a look at files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from beam_pipelines.engines.settings import flag_name
from shardkit.errors import UsageError

# Why each flag is refused, and the next step.
_REFUSED = {
    "dry_run": ("Beam would build the job and hand nothing over", "Give --dry-run before the --"),
    "job_name": ("shardkit looks for the job by its name", "Give --engine-option job-name=NAME"),
    "label": ("labels are checked before anything is read", "Give --engine-option labels=KEY=VALUE,KEY=VALUE"),
    "labels": ("labels are checked before anything is read", "Give --engine-option labels=KEY=VALUE,KEY=VALUE"),
    "streaming": ("a conversion is a batch job", "Leave it out"),
    "temp_location": ("plan and spool of the conversion lie there too", "Give --temp-location before the --"),
    "template_location": ("a template would be written, and no job run", "Leave it out"),
    "update": ("a batch job cannot be updated", "Leave it out"),
}
_REQUIREMENTS = (
    "shardkit writes the one that there may be",
    "Add packages with --extra_package, or make an image of them and give --engine-option image=NAME",
)
_FILES = frozenset({"setup_file", "extra_package", "extra_packages", "files_to_stage"})


def refused_flag(flags: Sequence[str], *, has_image: bool) -> UsageError | None:
    """Returns the error for the first flag that a job may not have, None if there is none.

    Args:
        flags: Of Beam, as typed.
        has_image: Whether workers are made from a user's image, in which nothing is installed.
    """
    refused = _REFUSED if has_image else _REFUSED | {"requirements_file": _REQUIREMENTS}
    for flag, following in zip_longest(flags, flags[1:], fillvalue=""):
        name = flag_name(flag)
        typed, equals, value = flag.partition("=")
        if flag.startswith("--") and name in refused:
            why, next_step = refused[name]
            return UsageError(
                f"{typed} cannot be given to Beam",
                why=why,
                state="Nothing was read or handed over",
                next_step=next_step,
            )
        path = value if equals else following
        if flag.startswith("--") and name in _FILES and "://" not in path and not Path(path).is_file():
            return UsageError(
                f"{typed} names no file",
                where=path,
                state="Nothing was read or handed over",
                next_step="Correct its path",
            )
    return None
