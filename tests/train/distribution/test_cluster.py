"""Which workers there are: every way to say it agrees with the others, and every contradiction is named."""

from __future__ import annotations

import contextlib
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from train.distribution.cluster import (
    Cluster,
    Placement,
    cluster_from_environment,
    cluster_of_tf_config,
    parse_address,
    place,
)
from train.distribution.nodelist import expand_nodes, expand_tasks
from train.distribution.worker_identity import WORKER_IDENTITY

NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=8)
HOSTS = NAMES | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(lambda a: f"[{a}]")
PORTS = st.integers(1, 60_000)
ADDRESSES = st.builds(lambda h, p: f"{h}:{p}", HOSTS, PORTS)


def tf_config(cluster: object, task: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def slurm(nodes: str, tasks: str, task: int, num_tasks: int, **more: object) -> dict[str, str]:
    own = {
        "JOB_ID": 77,
        "STEP_ID": 0,
        "PROCID": task,
        "NTASKS": num_tasks,
        "JOB_NODELIST": nodes,
        "TASKS_PER_NODE": tasks,
    }
    return {f"SLURM_{name}": str(value) for name, value in (own | more).items()}


def placed(environment=None, *, hosts=None, host_index=None, workers_per_host=None) -> Placement:
    return place(
        hosts=hosts, host_index=host_index, workers_per_host=workers_per_host, environment=environment or {}
    )  # fmt: skip


@given(st.lists(ADDRESSES, min_size=2, max_size=6, unique_by=lambda a: a.rpartition(":")[0]), st.integers(1, 4))
def test_the_hosts_together_start_every_worker_once(hosts, count) -> None:
    placements = [placed(hosts=hosts, host_index=i, workers_per_host=count) for i in range(len(hosts))]
    assert len({p.workers for p in placements}) == 1
    started = [i for p in placements for i in range(p.first, p.first + p.count)]
    assert started == list(range(len(hosts) * count))
    workers = placements[0].workers
    assert len(set(workers)) == len(workers) == placements[0].num_workers
    for host, address in enumerate(hosts):
        name, port = parse_address(address, "")
        for k in range(count):
            assert parse_address(workers[host * count + k], "") == (name, port + k)


@given(st.lists(ADDRESSES, min_size=1, max_size=6, unique=True), st.data())
def test_a_cluster_is_what_its_tf_config_says(addresses, data) -> None:
    cluster = Cluster(workers=tuple(addresses), index=data.draw(st.integers(0, len(addresses) - 1)))
    text = cluster.tf_config()
    if len(addresses) == 1:
        assert text is None
        return
    assert cluster_of_tf_config(text) == cluster
    assert cluster_from_environment({"TF_CONFIG": text, WORKER_IDENTITY: "{}"}) == cluster
    # Without a supervisor around it, the variable is for the supervisor.
    assert cluster_from_environment({"TF_CONFIG": text}) == Cluster()
    assert placed({"TF_CONFIG": text}) == Placement(first=cluster.index, count=1, workers=cluster.workers)
    assert len(cluster.peers) == cluster.num_workers - 1
    assert cluster.is_chief == (cluster.workers[0] == addresses[cluster.index])


def test_a_chief_is_worker_0() -> None:
    cluster = {"worker": ["a:1", "b:1"], "chief": ["c:1"]}
    assert placed(tf_config(cluster, {"type": "chief", "index": 0})).first == 0
    found = placed(tf_config(cluster, {"type": "worker", "index": 1}))
    assert found == Placement(first=2, count=1, workers=("c:1", "a:1", "b:1"))


def test_what_names_no_others_is_no_cluster() -> None:
    for text in ("", "{}", '{"cluster": {}, "task": {"type": "worker", "index": 0}}'):
        assert placed({"TF_CONFIG": text}, workers_per_host=3) == Placement(first=0, count=3)
    assert placed(hosts=["a:1"]) == Placement(first=0, count=1)


def test_options_win_over_the_environment() -> None:
    environment = tf_config({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": 1}) | slurm("n[1-2]", "1(x2)", 0, 2)
    assert placed(environment, hosts=["c:1", "d:1"], host_index=0).workers == ("c:1", "d:1")
    assert placed(environment).workers == ("a:1", "b:1")


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 3), st.data())
def test_the_tasks_of_slurm_together_start_every_worker_once(tasks, count, data) -> None:
    num_tasks = sum(tasks)
    nodes, form = f"n[1-{len(tasks)}]", ",".join(map(str, tasks))
    placements = [placed(slurm(nodes, form, task, num_tasks), workers_per_host=count) for task in range(num_tasks)]
    if num_tasks == 1:
        assert placements == [Placement(first=0, count=count)]
        return
    (workers,) = {p.workers for p in placements}
    assert [i for p in placements for i in range(p.first, p.first + p.count)] == list(range(num_tasks * count))
    assert [parse_address(w, "")[0] for w in workers] == [
        f"n{i + 1}" for i, n in enumerate(tasks) for _ in range(n * count)
    ]


def test_a_batch_script_of_slurm_is_no_task() -> None:
    environment = slurm("n[1-2]", "1(x2)", 0, 2)
    del environment["SLURM_STEP_ID"]
    assert placed(environment, workers_per_host=2).is_local


def test_a_step_that_takes_a_part_of_the_job() -> None:
    step = {"STEP_NODELIST": "n3,n[8-9]", "STEP_TASKS_PER_NODE": "1(x3)", "STEP_NUM_TASKS": 3, "NODEID": 1}
    found = placed(slurm("n[1-9]", "1(x9)", 1, 9, **step))
    assert [w.partition(":")[0] for w in found.workers] == ["n3", "n8", "n9"]
    assert found.first == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[01-03,7],login", ["node01", "node02", "node03", "node7", "login"]),
        ("a[1-2]-b[08-10]", ["a1-b08", "a1-b09", "a1-b10", "a2-b08", "a2-b09", "a2-b10"]),
        ("gpu[0-1].site", ["gpu0.site", "gpu1.site"]),
    ],
)
def test_lists_of_nodes(text, names) -> None:
    assert list(expand_nodes(text)) == names


@pytest.mark.parametrize(
    "text",
    ["", ",a", "a[", "a]", "a[1-", "a[]", "a[2-1]", "a[[1]]", "a[1-999999999]", "a[1-999][1-999]", "a b", "a[x]"],
)
def test_lists_of_nodes_that_are_none(text) -> None:
    with pytest.raises(UsageError, match="Slurm's environment"):
        expand_nodes(text)


@given(st.text("ab[]-,019 ", max_size=20))
def test_no_list_of_nodes_gives_another_error(text) -> None:
    with contextlib.suppress(UsageError):
        assert all(expand_nodes(text))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_tasks_a_node(counts) -> None:
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    text = ",".join(f"{c}(x{n})" if n > 1 else str(c) for c, n in runs)
    assert list(expand_tasks(text)) == counts


WORKERS = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hosts": ["a:1", "b:1"]}, "needs --host-index"),
        ({"hosts": ["a:1", "b:1"], "host_index": 2}, "no host 2"),
        ({"hosts": ["a:1", "a:1"], "host_index": 0}, "two workers have the address 'a:1'"),
        ({"hosts": ["a:1", "a:2"], "host_index": 0, "workers_per_host": 2}, "two workers have the address 'a:2'"),
        ({"hosts": ["a", "b:1"], "host_index": 0}, "'a' is no address"),
        ({"hosts": ["a:0", "b:1"], "host_index": 0}, "'a:0' is no address"),
        ({"hosts": ["a:70000", "b:1"], "host_index": 0}, "no address"),
        ({"hosts": ["::1:5000", "b:1"], "host_index": 0}, "in brackets"),
        ({"hosts": ["a:65535", "b:1"], "host_index": 0, "workers_per_host": 2}, "above 65535"),
        ({"hosts": [], "host_index": 0}, "names no host"),
        ({"host_index": 1}, "of use with --hosts only"),
        ({"environment": {"TF_CONFIG": "{"}}, "not JSON"),
        ({"environment": {"TF_CONFIG": "[]"}}, "must be an object"),
        ({"environment": {"TF_CONFIG": '{"cluster": [1]}'}}, "must be an object"),
        ({"environment": tf_config(WORKERS, {"type": "worker", "index": 2})}, "worker 2, and there are 2"),
        ({"environment": tf_config(WORKERS, {"type": "worker", "index": "1"})}, "worker '1'"),
        ({"environment": tf_config(WORKERS, {"type": "worker", "index": True})}, "worker True"),
        ({"environment": tf_config(WORKERS, {"type": ["worker"], "index": 0})}, "no such job"),
        ({"environment": tf_config(WORKERS, {})}, "type None"),
        ({"environment": tf_config(WORKERS, {"type": "chief", "index": 0})}, "'chief', and there is no such job"),
        ({"environment": tf_config(WORKERS | {"evaluator": ["c:1"]}, {"type": "worker", "index": 0})}, "'evaluator'"),
        ({"environment": tf_config({"worker": "a:1"}, {"type": "worker", "index": 0})}, "must be a list"),
        ({"environment": tf_config({"worker": ["a:1", "a:1"]}, {"type": "worker", "index": 0})}, "there twice"),
        ({"environment": tf_config({"worker": ["a:1", "b"]}, {"type": "worker", "index": 0})}, "'b' is no address"),
        ({"environment": tf_config(WORKERS, {"type": "worker", "index": 0}), "workers_per_host": 2}, "contradict"),
        ({"environment": slurm("n1", "1(x2)", 0, 2)}, "contradicts itself"),
        ({"environment": slurm("n[1-2]", "1(x2)", 2, 2)}, "contradicts itself"),
        ({"environment": slurm("n[1-2]", "1(x2)", 0, 2, NODEID=1)}, "--distribution=block"),
        ({"environment": slurm("n[1-2]", "1(x2)", 0, 2, JOB_ID="x")}, "no number"),
        ({"environment": slurm("n[1-2]", "1(x2)", 0, 2), "workers_per_host": 100}, "too many"),
        ({"environment": slurm("", "1(x2)", 0, 2)}, "did not set"),
    ],
)
def test_contradictions_are_named(settings, words) -> None:
    with pytest.raises(UsageError) as raised:
        placed(**settings)
    assert words in str(raised.value)


KEYS = st.sampled_from(["cluster", "task", "worker", "type", "index", "0"])
VALUES = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(KEYS, x))


@pytest.mark.full
@given(st.text(max_size=30) | VALUES.map(json.dumps))
def test_no_tf_config_gives_another_error(text) -> None:
    with contextlib.suppress(UsageError):
        cluster_of_tf_config(text)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_the_first_host_has_the_chief_and_the_parameter_servers_too(num_hosts, count, num_servers) -> None:
    hosts = [f"h{i}:5000" for i in range(num_hosts)]
    placements = [
        place(hosts=hosts, host_index=i, workers_per_host=count, environment={}, num_servers=num_servers)
        for i in range(num_hosts)
    ]
    assert placements[0].count == 1 + num_servers + count
    assert placements[0].num_commanded == num_hosts * count
    assert [i for p in placements for i in range(p.first, p.first + p.count)] == list(range(placements[0].num_workers))
    for placement in placements:
        for index in range(placement.first, placement.first + placement.count):
            cluster = Cluster(workers=placement.workers, index=index, num_servers=num_servers)
            assert cluster_of_tf_config(cluster.tf_config()) == cluster
            assert cluster.workers[index].startswith(f"h{placements.index(placement)}:")
            job, number = cluster.task
            assert cluster.jobs[job][number] == cluster.workers[index]


def test_slurm_gives_the_first_task_the_chief_and_the_parameter_servers_too() -> None:
    first, second = (
        place(
            hosts=None, host_index=None, workers_per_host=2, environment=slurm("n[1-2]", "1(x2)", i, 2), num_servers=1
        )
        for i in range(2)
    )
    assert (first.first, first.count, second.first, second.count) == (0, 4, 4, 2)
    assert first.workers == second.workers
    assert [w.partition(":")[0] for w in first.workers] == ["n1"] * 4 + ["n2"] * 2


@pytest.mark.parametrize("cluster", [{"ps": ["a:1"], "worker": ["b:1"]}, {"chief": ["a:1"], "ps": ["b:1"]}])
def test_parameter_servers_need_a_chief_and_workers(cluster) -> None:
    with pytest.raises(UsageError, match="parameter servers need a chief and at least one worker"):
        cluster_of_tf_config(json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
