"""The engine Dask: a running cluster, or a new one. Nothing of Beam or Dask is imported before it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec

from beam_pipelines.engines.beam_engine import BeamEngine
from beam_pipelines.engines.settings import (
    SHARED,
    STALL,
    Chosen,
    EngineOptions,
    EngineSpec,
    Facts,
    Setting,
    flag_name,
    no_value,
    number_of,
    value_of,
)
from shardkit.errors import UsageError, missing_extra

# Partitions a worker: enough that an uneven one leaves no worker idle, few enough that dealing them out costs little.
_PARTITIONS_A_WORKER = 8
_MAX_PARTITIONS = 256
# Flags of Beam that name a cluster.
_CLUSTER_FLAGS = {"dask_client_address", "dask_scheduler_file"}


def _partitions(facts: Facts) -> str:
    return str(max(1, min(facts.num_input_splits, _PARTITIONS_A_WORKER * facts.num_workers, _MAX_PARTITIONS)))


def _needs_dask(options: EngineOptions, facts: Facts) -> UsageError | None:
    return None if find_spec("distributed") is not None else missing_extra("dask", "distributed")


class Dask(BeamEngine):
    """A Dask cluster."""

    spec = EngineSpec(
        runner="apache_beam.runners.dask.dask_runner.DaskRunner",
        title="a running Dask cluster, or a new one on this machine",
        text=(
            "Without an address, processes are started here, one for each of --workers, and ended with the conversion. "
            "A worker that dies is replaced, and its work is done again.",
            "Under Python 3.11 Dask's profiler locks a worker now and then; it is off in processes that are started "
            "here. Start the workers of another cluster with DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False.",
            SHARED,
        ),
        settings=(
            Setting("address", "of the scheduler of a running cluster, such as tcp://10.0.0.5:8786",
                    "dask_client_address", no_value, "a new cluster on this machine"),
            Setting("partitions", "into which the parts of the inputs are dealt", "dask_npartitions",
                    _partitions, f"{_PARTITIONS_A_WORKER} a worker, {_MAX_PARTITIONS} at most",
                    "Beam's own default puts up to 128 parts into one, and one worker would do everything"),
            STALL,
        ),
        needs=_needs_dask,
        extra="dask",
        examples=(
            "shardkit convert 'raw/*.csv' out/flights --runner dask --workers 4",
            "shardkit convert 'raw/*.csv' /mnt/shared/flights --runner dask --engine-option "
            "address=tcp://10.0.0.5:8786",
        ),
    )  # fmt: skip

    def check_values(self, chosen: Sequence[Chosen]) -> None:
        """Checks that the number of partitions is one."""
        number_of(chosen, "partitions")

    def check_flags(self) -> tuple[str, ...]:
        """Checks that Beam knows all of its typed flags, because Dask gets no others."""
        # Beam knows the options of Dask from here on.
        import apache_beam.runners.dask.dask_runner  # noqa: F401

        from beam_pipelines.engines.beam_options import check_typed

        return check_typed(self.options.flags, refused_because="Dask gets only the options that Beam knows")

    def check_reachable(self, flags: Sequence[str]) -> None:
        """Checks that the scheduler of a running cluster answers."""
        from beam_pipelines.engines.dask_scheduler import check_scheduler

        check_scheduler(flags)

    def cluster(self, chosen: Sequence[Chosen], num_workers: int) -> AbstractContextManager[list[str]]:
        """Gives the flag that names a new cluster on this machine, unless a running one is named."""
        typed = map(flag_name, self.options.flags)
        if value_of(chosen, "address") is not None or not _CLUSTER_FLAGS.isdisjoint(typed):
            return nullcontext([])
        return _new_cluster(num_workers)


@contextmanager
def _new_cluster(num_workers: int) -> Iterator[list[str]]:
    from beam_pipelines.engines.dask_cluster import dask_cluster

    with dask_cluster(num_workers) as address:
        yield [f"--dask_client_address={address}"]
