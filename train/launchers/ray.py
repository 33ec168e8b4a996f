"""Workers as tasks of Ray, one for each bundle of a placement group, which has its place as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardkit.clusters.ray import PACKAGES, begin, check_head, find_obstacle, own_cluster
from shardkit.errors import UsageError
from train.launchers.launcher import TRAINING, Launcher, Task


class RayLauncher(Launcher):
    """Ray 2."""

    packages = PACKAGES
    extra = "ray"
    keys = ("address", "cpus", "gpus")
    _asked: Sequence[Any] = ()

    def check_address(self) -> None:
        """Checks that the head node answers, and that numbers are some."""
        self._needs = {"CPU": self._number("cpus", 1.0), "GPU": self._number("gpus", 0.0)}
        if (obstacle := find_obstacle(self._options.get("address"), TRAINING)) is not None:
            raise obstacle
        check_head(self._options.get("address"), TRAINING)

    def begin_session(self, folder: Path) -> str:
        """Joins the cluster, or starts one."""
        import ray

        address = self._options.get("address")
        slots = max(1, round(self._num_workers * self._needs["CPU"]))
        begin({"address": address} if address else own_cluster(slots, folder), folder / "files", TRAINING)
        return str(ray.util.get_node_ip_address())

    def run(self, count: int, task: Task) -> None:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = {name: number for name, number in self._needs.items() if number}
        group = placement_group([needs] * count, strategy="PACK")
        try:
            own = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs["GPU"], "max_retries": 0}
            self._asked = [
                ray.remote(_in_bundle)
                .options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index), **own)
                .remote(task, index)
                for index in range(count)
            ]
            # When one is lost, the supervisor of the command ends the others.
            ray.wait(self._asked, num_returns=count)
            ray.get(self._asked)
        finally:
            remove_placement_group(group)

    def cancel(self) -> None:
        import ray

        for ref in self._asked:
            ray.cancel(ref, force=True)

    def end_session(self) -> None:
        """Leaves the cluster, which ends one that was started here."""
        import ray

        ray.shutdown()

    def _number(self, key: str, default: float) -> float:
        try:
            number = float(self._options.get(key, default))
        except ValueError:
            number = -1.0
        if not 0 <= number < 1024:
            raise UsageError(
                f"--launcher-option {key}={self._options[key]} is no number of {key}",
                next_step=f"Write it like --launcher-option {key}=1",
            )
        return number


def _in_bundle(task: Task, index: int) -> None:
    import ray

    task(index, ray.util.get_node_ip_address())
