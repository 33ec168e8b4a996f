"""A worker of several hosts with TensorFlow's own collectives: fellow.py FOLDER NUM_STEPS STEP_S [--resume].

Sums over all workers step by step; the chief keeps the sum in a file, from which all go on.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from train.distribution.cluster import cluster_from_environment
from train.distribution.heartbeat import Heartbeat
from train.distribution.rendezvous import meet
from train.distribution.start_watchdog import watched
from train.distribution.worker_identity import end_with_supervisor, own_identity

EVERY = 10

folder, num_steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
end_with_supervisor()
cluster, identity = cluster_from_environment(os.environ), own_identity(os.environ)
heartbeat = Heartbeat.from_environment(os.environ)

import tensorflow as tf  # noqa: E402

from train.distribution.lost_peers import configure_heartbeats, leaving_when_peers_are_lost  # noqa: E402

nonces = meet(cluster, {"run": "fellows"}, 200)
configure_heartbeats(cluster)
with watched(cluster, nonces):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
kept = folder / "sum"
step, total = json.loads(kept.read_text()) if kept.exists() else (0, 0.0)


@tf.function
def add(value):
    each = strategy.run(lambda x: x + float(cluster.index + 1), args=(value,))
    return strategy.reduce("SUM", each, axis=None)


with leaving_when_peers_are_lost(cluster):
    while step < num_steps:
        with heartbeat.busy("first step", 100):
            total += float(add(tf.constant(float(step))))
        step += 1
        heartbeat.beat(step)
        if cluster.is_chief and step % EVERY == 0:
            new = kept.with_suffix(".new")
            new.write_text(json.dumps([step, total]))
            new.replace(kept)
        note = folder / f"at-{cluster.index}"
        note.write_text(json.dumps([identity.generation, step, os.getpid(), time.monotonic()]))
        time.sleep(step_s)
print(f"worker {cluster.index} has {total}", flush=True)
