"""Workers that the system refuses to start."""

from __future__ import annotations

import pytest

from train.distribution.cluster import Cluster
from train.distribution.worker_processes import Member, WorkerProcesses

pytestmark = pytest.mark.full


def test_a_worker_that_never_started_can_be_replaced_and_given_up(tmp_path) -> None:
    addresses = tuple(f"127.0.0.1:{port}" for port in range(24000, 24004))
    members = [Member(Cluster(workers=addresses, index=i, num_servers=1), None) for i in range(4)]
    worker_processes = WorkerProcesses([str(tmp_path / "no-such-program")], 0, tmp_path, 10.0, "")
    try:
        assert [refusal.index for refusal in worker_processes.start(members)] == [0, 1, 2, 3]
        for _ in range(2):
            refusal = worker_processes.replace(members[2])
            assert refusal is not None
            assert "no such file" in refusal.why
        worker_processes.drop(2)
        worker_processes.drop(2)
        assert worker_processes.look() == []
    finally:
        worker_processes.end()
