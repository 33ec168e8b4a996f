"""Flags of Beam: they are parsed before anything is handed over. A note or an error names unknown flags."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.engines.settings import flag_name
from shardkit.errors import UsageError


def parsed_options(flags: Sequence[str]) -> PipelineOptions:
    """Returns the options that flags stand for. Raises UsageError if Beam refuses one of them."""
    said = io.StringIO()
    try:
        # For options that it cannot parse, Python's parser prints to standard error and ends the process.
        with redirect_stderr(said):
            options = PipelineOptions(list(flags))
            # They are looked at when they are first asked for.
            options.get_all_options()
    except (ValueError, SystemExit) as error:
        raise refused_by_beam(said.getvalue() or str(error)) from error
    return options


def refused_by_beam(words: str) -> UsageError:
    """Returns the error that says why Beam does not take its options."""
    lines = words.strip().splitlines()
    return UsageError(
        "Beam refuses the options of the job",
        why=" ".join(lines[-1].rpartition("error: ")[2].split()) if lines else None,
        state="Nothing was handed over",
        next_step="Correct the option; --dry-run shows all options of the job",
    )


def check_typed(typed: Sequence[str]) -> tuple[str, ...]:
    """Returns notes on flags whose names Beam's Python package does not know.

    An engine may know further options, and gets them as they are.

    Raises:
        UsageError: If Beam refuses a flag.
    """
    options = parsed_options(typed)
    known = options.get_all_options()
    notes = []
    for name in sorted(options.get_all_options(retain_unknown_options=True).keys() - known.keys()):
        flag = next((f.partition("=")[0] for f in typed if flag_name(f) == name), f"--{name}")
        near = difflib.get_close_matches(name, _flag_names(), n=1, cutoff=0.75)
        notes.append(
            f"Beam's Python package knows no flag {flag}; the engine gets it as it is"
            + (f" (did you mean --{near[0]}?)" if near else "")
        )
    return tuple(notes)


def _flag_names() -> list[str]:
    # Options are stored under other names than those of some flags.
    usages: list[str] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=lambda parser: usages.append(parser.format_usage()))
    return sorted(set(re.findall(r"--(\w+)", usages[0])))
