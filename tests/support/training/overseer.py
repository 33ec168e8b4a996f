"""A supervisor of stand-in workers as a process: overseer.py FOLDER NUM_STEPS STEP_S COUNT RESTARTS ELASTIC GRACE_S.

Prints each sentence after the time at which it was said.
"""

import sys
import time
from pathlib import Path

from shardkit.errors import ShardkitError
from train.distribution.cluster import Placement
from train.distribution.supervisor import Orders, supervise

folder, num_steps, step_s, count, restarts, elastic, grace_s = sys.argv[1:]
orders = Orders(
    command=(sys.executable, str(Path(__file__).with_name("standin.py")), folder, num_steps, step_s),
    placement=Placement(first=0, count=int(count)),
    logs=Path(folder) / "workers",
    max_restarts=int(restarts),
    is_elastic=elastic == "True",
    grace_s=float(grace_s),
)


def say(text):
    print(time.monotonic(), text, file=sys.stderr, flush=True)


try:
    sys.exit(supervise(orders, say, lambda: "Steps are kept"))
except ShardkitError as error:
    print(f"error[{error.code}]: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
