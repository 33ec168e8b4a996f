"""The processes that a chief commands: parameter servers, which hold the variables, and workers, which compute."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NoReturn

import tensorflow as tf

from train.asynchronous.input import FAREWELL, TRAINING, VALIDATION, UnitSource, answer
from train.distribution.cluster import WORKER, Cluster
from train.distribution.environment import native_messages_hidden
from train.distribution.exit_codes import EXIT_PEER_LOST
from train.distribution.heartbeat import START_LIMIT_S, Heartbeat
from train.distribution.launch import run_identity
from train.distribution.rendezvous import CALL_LIMIT_S, decode_greeting, meet
from train.distribution.signals import Stop
from train.distribution.start_watchdog import overhear
from train.distribution.worker_identity import own_identity
from train.input.reading_errors import explained
from train.models.batch import Batch
from train.options.step_plan import Shared
from train.runs.request import Request, make_plan
from train.runs.run_folder import RunFolder
from train.setup import set_up_input

_PAUSE_S = 0.1
_EVERY_S = 1.0
# A chief that ends and begins anew is away for longer, because it imports TensorFlow.
_NUM_MISSED = 3


def serve(request: Request, folder: RunFolder, cluster: Cluster, stop: Stop) -> NoReturn:
    """Serves the chief until it says farewell, and ends this process then.

    Raises:
        ShardkitError: If not all are there in time, or the request does not fit.
    """
    options = request.options
    job, index = cluster.task
    identity = own_identity(os.environ)
    until_s = time.monotonic() + options.rendezvous_timeout_s
    if identity is None or not identity.is_late or _is_meeting(cluster, until_s):
        left_s = max(until_s - time.monotonic(), CALL_LIMIT_S)
        meet(cluster, run_identity(options, request.dataset.manifest.fingerprint), left_s)
    farewell, progress = threading.Event(), Progress()
    answer(FAREWELL, lambda: _wave(farewell))
    if job == WORKER:
        before = folder.read_record()
        answer_for_batches(request, None if before is None else before.shared, progress)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster.jobs), job_name=job, task_index=index, protocol="grpc", start=True
    )
    with stop.heeded():
        _attend(cluster, farewell, progress, stop)
    del server
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow has no way to take a server down.
    os._exit(0)


class Progress:
    """How many batches a worker was asked for. `step` counts those of training."""

    def __init__(self) -> None:
        self.step = 0

    def at(self, step: int) -> None:
        """Takes note of a batch of training."""
        self.step = step + 1


def answer_for_batches(request: Request, shared: Shared | None, progress: Progress) -> None:
    """Makes this process give the batches of units to graphs that run here."""
    plan = make_plan(request, 1, 1, shared)
    material = set_up_input(request, plan, 0, tf.distribute.get_strategy())
    features = (*material.bundle.features, request.label_feature)

    def explain(split: str) -> AbstractContextManager[None]:
        return explained(request.dataset, split, features)

    def train(step: int) -> Iterable[Batch]:
        return material.input.training(plan.position(step))

    splits = request.splits
    answer(TRAINING, UnitSource(train, lambda: explain(splits.train), progress.at))
    if splits.validation is not None:
        split = splits.validation
        answer(VALIDATION, UnitSource(lambda step: material.input.validation(step) or (), lambda: explain(split)))


def dismiss(cluster: Cluster) -> NoReturn:
    """Lets all that the chief commands end, then ends this process; those that are lost are not waited for."""
    sys.stdout.flush()
    with native_messages_hidden():
        for index in sorted(cluster.peers, reverse=True):
            job, number = cluster.task_at(index)
            with contextlib.suppress(tf.errors.OpError), tf.device(f"/job:{job}/task:{number}/device:CPU:0"):
                tf.raw_ops.PyFunc(input=[], token=FAREWELL, Tout=[])
        # TensorFlow would print its failed messages to lost workers for the user.
        os._exit(0)


def _wave(farewell: threading.Event) -> list[object]:
    farewell.set()
    return []


def _attend(cluster: Cluster, farewell: threading.Event, progress: Progress, stop: Stop) -> None:
    heartbeat = Heartbeat.from_environment(os.environ)
    until_s = time.monotonic() + START_LIMIT_S
    has_come, num_missed = False, 0
    while not farewell.wait(_EVERY_S):
        heartbeat.beat(progress.step)
        line = overhear(cluster.workers[0])
        is_serving = line is not None and decode_greeting(line) is None
        has_come = has_come or is_serving
        # Between the meeting and its own server, a chief waits for the workers, and nothing listens there.
        num_missed = 0 if is_serving or (not has_come and time.monotonic() < until_s) else num_missed + 1
        if num_missed >= _NUM_MISSED:
            if stop.is_wanted:
                stop.end()
            os.write(2, b"lost: the chief is gone.\n")
            os._exit(EXIT_PEER_LOST)


def _is_meeting(cluster: Cluster, until_s: float) -> bool:
    """Returns whether the others still wait for each other, so that a late worker has to join them."""
    while time.monotonic() < until_s:
        line = overhear(cluster.workers[0])
        if line is not None:
            return decode_greeting(line) is not None
        time.sleep(_PAUSE_S)
    return True
