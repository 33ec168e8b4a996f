"""The local engine, which needs nothing of Beam."""

from __future__ import annotations

from collections.abc import Callable

from beam_pipelines.engines.engine import Engine, Start
from shardkit.conversion.layout_math import deal_workers
from shardkit.conversion.plan import Plan
from shardkit.conversion.run.local import check_folder, default_workers, run_local, stop_workers


class Local(Engine):
    """Threads of the command, and processes below it; without options."""

    def default_workers(self, plan: Plan) -> int:
        """Returns one for few bytes, else the number of cores."""
        return default_workers(plan)

    def start(self, plan: Plan, num_workers: int, say: Callable[[str], None]) -> Start:
        """Returns how a plan is run."""
        check_folder(plan)
        num_processes, _ = deal_workers(num_workers)
        return Start(
            lambda plan_path, on_lost_worker: run_local(plan_path, num_workers, on_lost_worker),
            stop_workers,
            is_this_process=num_processes == 1,
        )
