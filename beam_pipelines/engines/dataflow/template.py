"""The program of a Flex Template: it plans a conversion, and writes the job that Dataflow starts after it has ended.

Dataflow runs it in the image of `Dockerfile.template`, with parameters of the template and flags of Beam.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from beam_pipelines.engines.beam_options import parsed_options
from beam_pipelines.engines.dataflow.engine import Dataflow
from beam_pipelines.engines.dataflow.settings import REFUSED
from beam_pipelines.engines.dataflow.submit import write_job
from beam_pipelines.engines.settings import EngineOptions, flag_name
from shardkit.conversion.commit.commit import refuse_existing
from shardkit.conversion.exchange import offer_plan
from shardkit.conversion.memory.keywords import request_of
from shardkit.conversion.plan import save_plan
from shardkit.conversion.prepare import prepare
from shardkit.conversion.run.convert import explained, explained_run
from shardkit.conversion.work_folder import work_folder
from shardkit.errors import ShardkitError, UsageError

IMAGE = "SHARDKIT_IMAGE"
# Settings of the engine that the launcher gives as flags of Beam.
_SETTINGS = {"project": "project", "region": "region", "temp_location": "temp-location", "job_name": "job-name"}


def main(arguments: Sequence[str]) -> int:
    """Writes the job, and returns the exit code."""
    try:
        write_template(arguments, os.environ)
    except ShardkitError as error:
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        return error.exit_code
    return 0


def write_template(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Plans the conversion that parameters ask for, and writes its job where Dataflow takes it from.

    Raises:
        ShardkitError: If the conversion cannot be planned, or the job not be made.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("inputs", "destination", "template_location"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--options", default="{}")
    typed, flags = parser.parse_known_args(arguments)
    request = request_of(_options(typed.options), tuple(typed.inputs.split(",")), typed.destination)
    engine = Dataflow(_engine_options(flags, environment.get(IMAGE)))
    request = engine.prepare(request, None)
    engine.check()
    with explained(request):
        plan = (prepared := prepare(request)).plan
    if prepared.committed_version is not None:
        refuse_existing(plan)
    with explained_run(plan), work_folder(plan):
        save_plan(plan)
        _, made = engine.settings_and_flags(plan, 0)
        write_job([*made, f"--template_location={typed.template_location}"], offer_plan(plan))


def _options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _no_options(text, str(error)) from error
    if not isinstance(found, dict):
        raise _no_options(text, "it is no JSON object")
    return found


def _no_options(text: str, why: str) -> UsageError:
    return UsageError(
        f"the parameter options is {text!r}",
        why=why,
        state="Nothing was read or handed over",
        next_step='Write options of convert like {"split": {"train": 0.9, "test": 0.1}, "num_shards": 8}',
    )


def _engine_options(flags: Sequence[str], image: str | None) -> EngineOptions:
    found = parsed_options(flags).get_all_options()
    values = [(key, str(found[name])) for name, key in _SETTINGS.items() if found[name]]
    names = set(map(flag_name, flags))
    if image is not None and "sdk_container_image" not in names:
        values.append(("image", image))
    taken = {*_SETTINGS, *REFUSED, "runner"}
    # The launcher writes each flag as one word.
    return EngineOptions(
        runner="dataflow", values=tuple(values), flags=tuple(f for f in flags if flag_name(f) not in taken)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
