"""Two hosts, each with a supervisor of its own, and TensorFlow's collectives between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from train.distribution.held import HeldPorts

pytestmark = pytest.mark.full

HOST = """
import sys
import time
from pathlib import Path
from train.distribution.cluster import Placement
from train.distribution.supervisor import Orders, supervise

folder, index, *workers = sys.argv[1:]
orders = Orders(
    command=(sys.executable, {fellow!r}, folder, "300", "0.05"),
    placement=Placement(first=int(index), count=1, workers=tuple(workers)),
    logs=Path(folder) / "workers",
    max_restarts=3,
)
sys.exit(supervise(orders, lambda text: print(time.monotonic(), text, file=sys.stderr, flush=True), lambda: "Kept"))
"""


def state(folder: Path, worker: int) -> tuple[int, int, int]:
    """Returns generation, step and process of a worker."""
    try:
        generation, step, pid, _ = json.loads((folder / f"at-{worker}").read_text())
    except (FileNotFoundError, ValueError):
        return -1, 0, 0
    return generation, step, pid


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_lost_on_one_host_is_made_up_for_by_both(tmp_path, victim) -> None:
    program = HOST.format(fellow=str(ROOT / "tests/support/training/fellow.py"))
    with HeldPorts(2) as ports:
        hosts = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path), str(i), *ports.addresses],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for i in (0, 1)
        ]  # fmt: skip
        try:
            end_s = time.monotonic() + 150
            while min(state(tmp_path, i)[1] for i in (0, 1)) < 25:
                assert time.monotonic() < end_s
                assert all(host.poll() is None for host in hosts), [h.communicate() for h in hosts]
                time.sleep(0.05)
            killed_s = time.monotonic()
            os.kill(state(tmp_path, victim)[2], signal.SIGKILL)
            ends = [host.communicate(timeout=150) for host in hosts]
        finally:
            for host in hosts:
                host.kill()
    assert [host.returncode for host in hosts] == [0, 0], ends
    assert f"worker {victim} was killed by SIGKILL after step" in ends[victim][1]
    assert f"worker {1 - victim} lost another worker after step" in ends[1 - victim][1]
    said = [next(line for line in err.splitlines() if "; restarting" in line) for _, err in ends]
    noticed_s = [float(line.split()[0]) - killed_s for line in said]
    assert noticed_s[victim] < 2
    assert noticed_s[1 - victim] < 30, "TensorFlow notices within 10 s on a machine that is not busy"
    # Nothing is counted twice, and nothing left out.
    expected = sum(2.0 * step + 1 + 2 for step in range(300))
    assert [end[0] for end in ends] == [f"worker {i} has {expected}\n" for i in (0, 1)]
