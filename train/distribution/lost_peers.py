"""The other workers, as TensorFlow knows them: how soon it notices that one is gone, and its errors then."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import tensorflow as tf

from shardkit.storage import files as storage
from train.distribution.cluster import Cluster
from train.distribution.environment import native_messages_in
from train.distribution.exit_codes import EXIT_PEER_LOST
from train.distribution.launch import LOGS
from train.distribution.supervisor import CHIEF_LOG, log_name

# How long TensorFlow waits for a silent peer; the supervisor of a host notices the end of its workers at once.
HEARTBEAT_LIMIT_S = 10.0
REGISTER_LIMIT_S = 120.0

_LOST = re.compile(
    r"Collective ops is aborted|stopped sending heartbeats|Socket closed|Connection (refused|reset)|failed to connect"
    r"|unhealthy|restart your program|peer|coordination|RecvBuf|Broken pipe",
    re.IGNORECASE,
)


def configure_heartbeats(
    cluster: Cluster, limit_s: float = HEARTBEAT_LIMIT_S, register_limit_s: float = REGISTER_LIMIT_S
) -> bool:
    """Says how long the silence of another worker is fine; before the strategy is made. Returns whether it took.

    TensorFlow has no public way to say so; a version without this one keeps its own limits.
    """
    if cluster.num_workers == 1:
        return False
    try:
        from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
        from tensorflow.python.eager import context

        context.context().configure_coordination_service(
            "standalone",
            service_leader="/job:worker/replica:0/task:0",
            cluster_register_timeout_in_ms=int(register_limit_s * 1000),
            heartbeat_timeout_in_ms=int(limit_s * 1000),
            coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=cluster.num_workers)],
        )
    except (ImportError, AttributeError, TypeError, ValueError):
        return False
    return True


def is_lost_peer(error: BaseException) -> bool:
    """Returns whether an error of TensorFlow says that another worker is gone, not that this one is wrong."""
    if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return True
    kinds = (tf.errors.InternalError, tf.errors.CancelledError, tf.errors.DeadlineExceededError, tf.errors.UnknownError)
    return isinstance(error, kinds) and _LOST.search(str(error.message)) is not None


def logging_about_peers(cluster: Cluster, folder: Path) -> AbstractContextManager[None]:
    """Returns the context in which one of several workers runs: TensorFlow's messages about others go to a log.

    Raises:
        UsageError: If it cannot be written.
    """
    if cluster.num_workers == 1:
        return nullcontext()
    name = CHIEF_LOG if cluster.is_chief else log_name(cluster.index, cluster.num_servers)
    storage.make_folder(str(folder / LOGS))
    return native_messages_in(folder / LOGS / name)


@contextlib.contextmanager
def leaving_when_peers_are_lost(cluster: Cluster) -> Iterator[None]:
    """Ends this process with `EXIT_PEER_LOST` when the block fails because another worker is gone.

    TensorFlow cannot recover in such a process; its supervisor starts all workers again.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if cluster.num_workers == 1 or not is_lost_peer(error):
            raise
        sys.stdout.flush()
        os.write(2, b"lost: another worker is gone.\n")
        os._exit(EXIT_PEER_LOST)
