"""A worker without TensorFlow: counts steps with the others into a checkpoint, with the signs of life of a real one.

standin.py FOLDER NUM_STEPS STEP_S [--resume], with a plan of mishaps in FOLDER/mishaps.json: what each (generation,
worker) does to itself, and before which step.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from shardkit.runtime.early_signals import stopped_sentence
from train.distribution.cluster import cluster_from_environment
from train.distribution.heartbeat import Heartbeat
from train.distribution.worker_identity import end_with_supervisor, own_identity

CHECKPOINT_EVERY = 5


def main():
    folder, num_steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    end_with_supervisor()
    identity, cluster = own_identity(os.environ), cluster_from_environment(os.environ)
    heartbeat = Heartbeat.from_environment(os.environ)
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: asked.append(number))
    plan = json.loads((folder / "mishaps.json").read_text()) if (folder / "mishaps.json").exists() else {}
    at, mishap = plan.get(f"{identity.generation}-{cluster.index}", (None, None))
    checkpoint = folder / "checkpoint"
    step = int(checkpoint.read_text()) if "--resume" in sys.argv and checkpoint.exists() else 0
    note = {"pid": os.getpid(), "started": time.monotonic(), "from": step, "of": cluster.num_workers}
    note |= {"workers": cluster.workers, "resume": "--resume" in sys.argv}
    note |= {"stopped": stopped_sentence()}
    with (folder / f"starts-{cluster.index}").open("a") as file:
        print(json.dumps(note), file=file)
    print(f"worker {cluster.index} begins at {step}", flush=True)
    while step < num_steps:
        if at == step:
            suffer(mishap, heartbeat, folder)
        time.sleep(step_s)
        report(folder, identity.generation, cluster.index, step)
        while not asked and not all(is_at(folder, identity.generation, i, step) for i in range(cluster.num_workers)):
            time.sleep(0.002)
        if asked:
            if cluster.is_chief:
                checkpoint.write_text(str(step))
            sys.exit(128 + asked[0])
        step += 1
        heartbeat.beat(step)
        if cluster.is_chief and step % CHECKPOINT_EVERY == 0:
            new = checkpoint.with_suffix(".new")
            new.write_text(str(step))
            new.replace(checkpoint)
    print(f"worker {cluster.index} is done", flush=True)


def report(folder, generation, worker, step):
    """Says that a worker is at a step, as an all-reduce does."""
    new = folder / f"new-{worker}"
    new.write_text(str(step))
    new.replace(folder / f"at-{generation}-{worker}")


def is_at(folder, generation, worker, step):
    """Returns whether a worker is at a step."""
    path = folder / f"at-{generation}-{worker}"
    return path.exists() and int(path.read_text()) >= step


def suffer(mishap, heartbeat, folder):
    (folder / "suffered").write_text(str(time.monotonic()))
    if mishap == "hang":
        time.sleep(1000)
    if mishap == "busy":
        with heartbeat.busy("evaluation", 1.0):
            time.sleep(1000)
    if mishap.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[mishap])
        return
    if mishap == "2":
        print("error[SK-E200]: the label is wrong.\n  Use another --label.", file=sys.stderr, flush=True)
    os._exit(int(mishap))


main()
