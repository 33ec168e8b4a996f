"""Beam's flags that a job on Dataflow may not have, or must have one of. Pure but for a look at files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from beam_pipelines.engines.settings import EngineOptions, flag_name
from shardkit._version import __version__
from shardkit.errors import UsageError

# Why each flag is refused, and the next step.
REFUSED = {
    "dry_run": ("Beam would build the job and hand nothing over", "Give --dry-run before the --"),
    "job_name": ("shardkit looks for the job by its name", "Give --engine-option job-name=NAME"),
    "label": ("labels are checked before anything is read", "Give --engine-option labels=KEY=VALUE,KEY=VALUE"),
    "labels": ("labels are checked before anything is read", "Give --engine-option labels=KEY=VALUE,KEY=VALUE"),
    "streaming": ("a conversion is a batch job", "Leave it out"),
    "temp_location": ("plan and spool of the conversion lie there too", "Give --temp-location before the --"),
    "template_location": ("a template would be written, and no job run", "Leave it out"),
    "update": ("a batch job cannot be updated", "Leave it out"),
}
_PACKAGES = frozenset({"extra_package", "extra_packages", "requirements_file", "setup_file"})
_FILES = _PACKAGES | {"files_to_stage"}


def check_packages(options: EngineOptions) -> None:
    """Checks that workers start from a user's image, or install something.

    Raises:
        UsageError: If they do neither, so that they would have no shardkit.
    """
    names = {flag_name(flag) for flag in options.flags}
    if dict(options.values).get("image") or names & (_PACKAGES | {"sdk_container_image"}):
        return
    raise UsageError(
        "no option says how the workers of Dataflow get shardkit",
        why=f"they need shardkit {__version__} and its dependencies, in the versions of this command",
        state="Nothing was read or handed over",
        next_step="Build a wheel: pip wheel --no-deps . in a checkout, else pip wheel --no-deps shardkit"
        f"=={__version__}. Write shardkit[gcs]=={__version__} to requirements.txt. Add to the end of the command: "
        f"-- --extra_package shardkit-{__version__}-*.whl --requirements_file requirements.txt --requirements_cache "
        "skip. Or give an image: --engine-option image=NAME",
    )


def refused_flag(flags: Sequence[str]) -> UsageError | None:
    """Returns the error for the first flag that a job may not have, None if there is none."""
    for flag, following in zip_longest(flags, flags[1:], fillvalue=""):
        name = flag_name(flag)
        typed, equals, value = flag.partition("=")
        if flag.startswith("--") and name in REFUSED:
            why, next_step = REFUSED[name]
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
