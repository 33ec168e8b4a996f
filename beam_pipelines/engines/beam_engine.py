"""An engine that runs the pipeline of `convert.py` by a runner of Beam. Beam itself is imported when it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from beam_pipelines.engines.engine import Engine, Start
from beam_pipelines.engines.settings import Chosen, EngineSpec, Facts, beam_flags, flag_name, number_of
from shardkit.conversion.engines import ENGINES
from shardkit.conversion.plan import Plan
from shardkit.conversion.space.disk_space import estimate_sizes
from shardkit.errors import OutOfSpaceError, StorageError
from shardkit.runtime.process_limits import NO_MEMORY, free_bytes
from shardkit.units import format_size


class BeamEngine(Engine):
    """An engine of Beam: it states its spec, and what differs from an engine that ends with the command."""

    spec: ClassVar[EngineSpec]
    packages = ("apache_beam",)

    def check(self) -> tuple[str, ...]:
        """Checks the options, and that the addresses and programs that they name are there."""
        self.require()
        chosen = self.chosen(Facts(1, 1, os.environ))
        notes = self.check_flags()
        self.check_reachable(self._flags(chosen))
        return notes

    def check_flags(self) -> tuple[str, ...]:
        """Checks the typed flags of Beam, and returns notes about unknown ones.

        Raises:
            UsageError: If Beam refuses one.
        """
        from beam_pipelines.engines.beam_options import check_typed

        return check_typed(self.options.flags)

    def check_reachable(self, flags: Sequence[str]) -> None:
        """Checks that addresses answer and that workers can be started.

        Args:
            flags: Of Beam, all that the job is made with.

        Raises:
            UsageError: If an address is none, or what must be installed is not.
            StorageError: If an address does not answer.
        """
        from beam_pipelines.engines.reachability import check_reachable

        check_reachable(flags, self.starts_workers_here)

    def starts_workers_here(self, parsed: Mapping[str, Any]) -> bool:
        """Returns whether the engine starts workers on this machine, given the parsed flags of Beam."""
        return parsed.get("job_endpoint") == "embed"

    def settings_and_flags(self, plan: Plan, num_workers: int) -> tuple[tuple[Chosen, ...], list[str]]:
        """Returns every setting with its value, and the flags of Beam that the job is made with."""
        chosen = self.chosen(Facts(num_workers, len(plan.input_splits), os.environ))
        return chosen, self._flags(chosen)

    def start(self, plan: Plan, num_workers: int, say: Callable[[str], None]) -> Start:
        """Returns how a plan is run."""
        from beam_pipelines.engines.run import Job, run_on_engine, stop_job

        chosen, flags = self.settings_and_flags(plan, num_workers)
        self._check_memory(plan, flags, say)
        job = Job(self.options.runner, flags, 60 * number_of(chosen, "stall-minutes"))

        def run(plan_path: str, on_lost_worker: Callable[[StorageError], None]) -> None:
            with self.service(chosen, plan, say) as own:
                run_on_engine(job._replace(flags=[*flags, *own]), plan_path)

        return Start(run, stop_job)

    def service(
        self, chosen: Sequence[Chosen], plan: Plan, say: Callable[[str], None]
    ) -> AbstractContextManager[Sequence[str]]:
        """Runs what the job is handed to while the block lasts, where that is not Beam's to do; yields flags of it."""
        return nullcontext(())

    def _flags(self, chosen: Sequence[Chosen]) -> list[str]:
        return beam_flags(self.spec, chosen, self.options.flags)

    def _check_memory(self, plan: Plan, flags: Sequence[str], say: Callable[[str], None]) -> None:
        """Refuses what this machine has no memory for, where a runner on it holds all records."""
        factor = ENGINES[self.options.runner].memory_factor
        is_elsewhere = any(flag_name(f) == "job_endpoint" and not f.endswith("=embed") for f in flags)
        if plan.exchange is None or not factor or is_elsewhere or (sizes := estimate_sizes(plan)) is None:
            return
        free = free_bytes()
        why = (
            f"workers share no disk, so the engine {self.options.runner} keeps all records in memory, about "
            f"{format_size(int(sizes.spool * factor))}"
            + ("" if free is None else f", and {format_size(free)} are free")
        )
        if free is not None and sizes.spool * factor > free:
            raise OutOfSpaceError(
                NO_MEMORY, why=why, next_step="Name a --work-dir on a disk, or leave it out: then records lie there"
            )
        say(f"note: {why}; with a --work-dir on a disk they lie there")
