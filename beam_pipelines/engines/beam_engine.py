"""An engine that runs the pipeline of `convert.py` by a runner of Beam. Beam itself is imported when it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from beam_pipelines.engines.engine import Engine, Start
from beam_pipelines.engines.settings import Chosen, EngineSpec, Facts, beam_flags, number_of
from shardkit.conversion.plan import Plan
from shardkit.errors import missing_extra


class BeamEngine(Engine):
    """An engine of Beam: it states its spec, and what differs from an engine that ends with the command."""

    spec: ClassVar[EngineSpec]

    def check(self) -> tuple[str, ...]:
        """Checks the options, and that the addresses and programs that they name are there."""
        self.require_beam()
        chosen = self.chosen(Facts(1, 1, os.environ))
        notes = self.check_flags()
        self.check_reachable(self._flags(chosen))
        return notes

    def require_beam(self) -> None:
        """Raises `UsageError` with the extra of the engine if Beam is not installed."""
        if find_spec("apache_beam") is None:
            raise missing_extra(self.spec.extra, "apache-beam")

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
        job = Job(self.options.runner, flags, 60 * number_of(chosen, "stall-minutes"))
        return Start(lambda plan_path, on_lost_worker: run_on_engine(job, plan_path), stop_job)

    def _flags(self, chosen: Sequence[Chosen]) -> list[str]:
        return beam_flags(self.spec, chosen, self.options.flags)
