"""The engine Prism: a program that runs below the command, and ends with it. Nothing of Beam is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beam_pipelines.engines.beam_engine import BeamEngine
from beam_pipelines.engines.portable import environment_settings
from beam_pipelines.engines.prism_program import (
    PRISM,
    find_obstacle,
    find_program,
    install,
    note_on_version,
    serve,
    version_of,
)
from beam_pipelines.engines.settings import (
    SHARED,
    STALL,
    Chosen,
    EngineOptions,
    EngineSpec,
    Facts,
    Setting,
    flag_name,
    value_of,
)
from shardkit.conversion.plan import Plan
from shardkit.errors import UsageError


def _is_elsewhere(options: EngineOptions) -> bool:
    """Whether the user named a job service that runs already."""
    return "job_endpoint" in map(flag_name, options.flags)


def _needs(options: EngineOptions, facts: Facts) -> UsageError | None:
    if "prism_location" in map(flag_name, options.flags):
        return UsageError(
            "--prism_location cannot be given to Beam",
            why="Beam would leave Prism running",
            state="Nothing was read or written",
            next_step="Name the program with --engine-option program=FILE",
        )
    if _is_elsewhere(options):
        return None
    return find_obstacle(dict(options.values).get("program") or find_program(facts.environment))


class Prism(BeamEngine):
    """Beam's runner in Go."""

    spec = EngineSpec(
        runner="PrismRunner",
        title="Prism, Beam's own runner for one machine, written in Go",
        text=(
            "shardkit engines install prism gets its program. It is started below the command, is reached from this "
            "machine only, and ends with the command. Prism tries nothing twice: where it or a worker dies, the "
            "command ends, and the same command goes on.",
            SHARED,
            "Prism keeps in memory what goes through it, records too.",
        ),
        settings=(
            Setting("program", "Prism itself, or the zip file that it comes in", None,
                    lambda f: find_program(f.environment), f"${PRISM}, or the installed one"),
            *environment_settings("LOOPBACK", "workers in this process need no installation"),
            STALL,
        ),
        needs=_needs,
        examples=(
            "shardkit engines install prism",
            "shardkit convert 'raw/*.csv' out/flights --runner prism",
        ),
    )  # fmt: skip

    def why_no_workers(self) -> str | None:
        return "Prism does up to 8 pieces of work at the same time, and no option of it says less"

    def check(self) -> tuple[str, ...]:
        """Checks the options, the program, and that the addresses that the options name answer."""
        notes = super().check()
        program = dict(self.options.values).get("program") or self._installed()
        return notes if program is None or _is_elsewhere(self.options) else (*notes, *note_on_version(program))

    def versions(self) -> tuple[str, ...]:
        """Returns the versions of Beam and of the program."""
        program = self._installed()
        found = None if program is None else version_of(program)
        return (*super().versions(), *([] if found is None else [f"Prism {found}"]))

    def install(self, program: Path | None) -> Path:
        """Installs the program of the version of Beam that is installed, and returns its place."""
        if not super().versions():
            self.require()
        return install(program)

    def starts_workers_here(self, parsed: Mapping[str, Any]) -> bool:
        return not _is_elsewhere(self.options)

    @contextmanager
    def service(self, chosen: Sequence[Chosen], plan: Plan, say: Callable[[str], None]) -> Iterator[Sequence[str]]:
        """Runs Prism below this process, unless the user named one that runs."""
        if _is_elsewhere(self.options):
            yield ()
            return
        program = value_of(chosen, "program")
        assert program is not None  # The check found one.
        with serve(program, plan.work_path("tmp"), say) as address:
            yield (f"--job_endpoint={address}",)

    def _installed(self) -> str | None:
        return find_program(os.environ)
