"""The devices of a run, the strategy over them, and what their workers agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shardkit.errors import UsageError
from shardkit.units import format_number
from train.distribution.cluster import Cluster
from train.distribution.lost_peers import configure_heartbeats
from train.distribution.rendezvous import wait_for_peers
from train.distribution.start_watchdog import watched
from train.options.config import StrategyChoice

ALONE = Cluster()


class Devices(NamedTuple):
    """Where a run computes.

    Attributes:
        strategy: TensorFlow's strategy; the default one for a single device.
        num_workers: Processes that train together, each with as many replicas.
    """

    strategy: tf.distribute.Strategy
    num_replicas: int
    summary: str
    num_workers: int = 1
    worker_index: int = 0

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes the files that all share."""
        return self.worker_index == 0


def choose_devices(
    choice: StrategyChoice, replicas: int | None, cluster: Cluster = ALONE, nonces: Mapping[int, str] | None = None
) -> Devices:
    """Returns the devices for a run; must be called before TensorFlow computes anything.

    Args:
        choice: `auto` takes all GPUs of the host, one device otherwise; of several workers, those of all.
        replicas: Number of devices; without a GPU the CPU is divided into as many virtual ones.
        cluster: The workers that train together. TensorFlow finds their addresses in `TF_CONFIG`.
        nonces: Of the other workers, when they met.

    Raises:
        UsageError: If there are not as many devices, or they contradict the strategy.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if cluster.num_servers:
        return _parameter_servers(cluster)
    if cluster.num_workers > 1:
        return _several_workers(choice, replicas, cluster, nonces or {}, len(gpus))
    if choice == "parameter-server":
        raise UsageError(
            "--strategy parameter-server has several processes, and there is one",
            next_step="Start them with shardkit train, --workers-per-host or --hosts",
        )
    if choice == "multi-worker":
        raise UsageError(
            "--strategy multi-worker has several workers, and there is one",
            next_step="Start several with --workers-per-host or --hosts",
        )
    if choice == "single" and replicas not in (None, 1):
        raise UsageError(f"--strategy single has one replica, not {replicas}", next_step="Use --strategy mirrored")
    if gpus and replicas is not None and replicas > len(gpus):
        raise UsageError(f"there are {len(gpus)} GPUs, not {replicas}", next_step="Use fewer --replicas")
    if choice == "single" or (choice == "auto" and (replicas or len(gpus)) <= 1):
        return Devices(tf.distribute.get_strategy(), 1, "1 GPU" if gpus else "1 device (CPU)")
    if gpus:
        names = [f"GPU:{i}" for i in range(replicas or len(gpus))]
        return Devices(tf.distribute.MirroredStrategy(names), len(names), f"{len(names)} GPUs, mirrored")
    num_replicas = replicas or 1
    _divide_cpu(num_replicas)
    names = [f"CPU:{i}" for i in range(num_replicas)]
    return Devices(tf.distribute.MirroredStrategy(names), num_replicas, f"{num_replicas} virtual CPU devices, mirrored")


def _several_workers(
    choice: StrategyChoice, replicas: int | None, cluster: Cluster, nonces: Mapping[int, str], num_gpus: int
) -> Devices:
    if choice not in ("auto", "multi-worker"):
        raise UsageError(
            f"--strategy {choice} has one worker, not {cluster.num_workers}", next_step="Use --strategy multi-worker"
        )
    num_local = max(1, num_gpus)
    if replicas not in (None, num_local * cluster.num_workers):
        raise UsageError(
            f"{cluster.num_workers} workers have {num_local * cluster.num_workers} devices, not {replicas}",
            next_step="Leave --replicas out",
        )
    implementation = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation.NCCL if num_gpus else implementation.RING
    )
    configure_heartbeats(cluster)
    with watched(cluster, nonces):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    devices = f"{num_local} GPUs" if num_gpus else "1 device (CPU)"
    return Devices(
        strategy,
        strategy.num_replicas_in_sync,
        f"{cluster.num_workers} workers of {devices}",
        cluster.num_workers,
        cluster.index,
    )


def _parameter_servers(cluster: Cluster) -> Devices:
    """Returns the devices of the chief; for all others, one replica steps at a time."""
    # It computes nothing by itself, and the GPUs are for the workers.
    tf.config.set_visible_devices([], "GPU")
    # The supervisor reports a lost worker; TensorFlow would print forty lines.
    tf.get_logger().setLevel("CRITICAL")
    wait_for_peers(cluster)
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    workers = format_number(cluster.num_commanded, "worker")
    servers = format_number(cluster.num_servers, "parameter server")
    return Devices(strategy, 1, f"{workers}, each on its own, and {servers}")


def _divide_cpu(num_devices: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) == num_devices:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    except RuntimeError as error:
        raise UsageError(
            "the CPU cannot be divided any more",
            why="TensorFlow has already computed in this process",
            next_step="Set up the devices in a separate process, before anything else uses TensorFlow",
        ) from error


class Agreement:
    """Lets all workers wait for each other."""

    def __init__(self, devices: Devices, folder: str) -> None:
        self._folder = folder
        self._gather = (lambda own: own[tf.newaxis]) if devices.num_workers == 1 else _gather(devices)

    def __call__(self, step: int) -> None:
        """Waits for all workers, which stand after the same step.

        Raises:
            UsageError: If they do not, as they see different folders.
        """
        steps = np.unique(self._all(step)).tolist()
        if len(steps) > 1:
            raise UsageError(
                "the workers find different checkpoints",
                where=self._folder,
                why="they stand after the steps " + ", ".join(f"{found:,}" for found in steps),
                next_step="Give all hosts the same --output, on a file system that they share",
            )

    def any(self, is_so: bool) -> bool:
        """Returns whether something is so on one of the workers, which all ask."""
        return bool(self._all(int(is_so)).any())

    def _all(self, own: int) -> npt.NDArray[np.int32]:
        values: npt.NDArray[np.int32] = self._gather(tf.constant(own, tf.int32)).numpy()
        return values


def _gather(devices: Devices) -> Any:
    def all_values(value: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(value[tf.newaxis], axis=0)

    @tf.function
    def gather(own: tf.Tensor) -> tf.Tensor:
        return devices.strategy.experimental_local_results(devices.strategy.run(all_values, args=(own,)))[0]

    return gather
