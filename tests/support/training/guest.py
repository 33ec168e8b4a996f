"""One worker that meets the others, as a process: guest.py TF_CONFIG IDENTITY TIMEOUT_S; prints whom it met.

With a fourth argument it starts TensorFlow's strategy afterwards, and reduces its index over all workers; a fifth one
is a pause before that.
"""

import json
import os
import sys
import time

from shardkit.errors import ShardkitError
from train.distribution.cluster import cluster_of_tf_config
from train.distribution.rendezvous import meet
from train.distribution.start_watchdog import watched

config, identity, timeout_s = sys.argv[1:4]
cluster = cluster_of_tf_config(config)
try:
    nonces = meet(cluster, json.loads(identity), float(timeout_s))
except ShardkitError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
print("met", *sorted(nonces), flush=True)
if len(sys.argv) > 4:
    time.sleep(float(sys.argv[5]) if len(sys.argv) > 5 else 0)
    os.environ["TF_CONFIG"] = config
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    from train.distribution.lost_peers import configure_heartbeats

    took = configure_heartbeats(cluster)
    with watched(cluster, nonces, float(sys.argv[4])):
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def total():
        return strategy.reduce("SUM", strategy.run(lambda: tf.constant(float(cluster.index))), axis=None)

    print("sum", float(total()), took, flush=True)
