"""Which workers there are, where each one listens, and which of them this host starts. Pure.

The first of these decides: --hosts, `TF_CONFIG`, Slurm's environment. Without them all workers are on this host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shardkit.errors import UsageError
from train.distribution.nodelist import expand_nodes, expand_tasks

TF_CONFIG = "TF_CONFIG"
CHIEF, SERVER, WORKER = "chief", "ps", "worker"
MAX_PORT = 65_535

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:\[\],/]+):(\d{1,5})", re.ASCII)
# Below the ports that systems give to outgoing connections, with room for the workers of one node.
_SLURM_FIRST_PORT = 12_000
_SLURM_PORTS_A_JOB = 64
_SLURM_NUM_JOBS = 300


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """All workers of a run, as one of them sees it.

    Attributes:
        workers: Their addresses, `host:port`; empty for a run of one process. Where there are parameter servers, they
            are the chief, the servers, and then those that it commands.
        num_servers: Parameter servers; 0 where every worker holds its own variables.

    Raises:
        UsageError: If an address is none or is there twice, or the index is out of range.
    """

    workers: tuple[str, ...] = ()
    index: int = 0
    num_servers: int = 0

    def __post_init__(self) -> None:
        check_addresses(self.workers, "the cluster")
        if not 0 <= self.index < self.num_workers:
            raise UsageError(
                f"there is no worker {self.index}",
                why=f"there are {self.num_workers}, counted from 0",
                next_step="Correct the index in TF_CONFIG, or use --hosts with --host-index",
            )

    @property
    def num_workers(self) -> int:
        """At least 1."""
        return max(1, len(self.workers))

    @property
    def num_commanded(self) -> int:
        """Those that compute for a chief; 0 where there are no parameter servers."""
        return num_commanded(self.num_workers, self.num_servers)

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes the files that only one may write."""
        return self.index == 0

    @property
    def peers(self) -> dict[int, str]:
        """The addresses of the others, by index."""
        return {i: address for i, address in enumerate(self.workers) if i != self.index}

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """The addresses by job, as TensorFlow names them."""
        if not self.num_servers:
            return {WORKER: self.workers}
        servers, commanded = self.workers[1 : 1 + self.num_servers], self.workers[1 + self.num_servers :]
        return {CHIEF: self.workers[:1], SERVER: servers, WORKER: commanded}

    @property
    def task(self) -> tuple[str, int]:
        """Job of this worker, and its index there."""
        return self.task_at(self.index)

    def task_at(self, index: int) -> tuple[str, int]:
        """Returns the job of a worker, and its index there."""
        return task_of(index, self.num_servers)

    def tf_config(self) -> str | None:
        """Returns the text of `TF_CONFIG` for TensorFlow, None for a run of one worker."""
        if self.num_workers == 1:
            return None
        job, index = self.task
        return msgspec.json.encode({"cluster": self.jobs, "task": {"type": job, "index": index}}).decode()


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that one host starts.

    Attributes:
        first: Index of the first of them.
        workers: Addresses of all workers; empty where all are on this host, which gives them free ports at each start.
        num_servers: Parameter servers among all workers, right behind the chief.
    """

    first: int
    count: int
    workers: tuple[str, ...] = ()
    num_servers: int = 0

    @property
    def is_local(self) -> bool:
        """Whether no other host takes part."""
        return not self.workers

    @property
    def num_workers(self) -> int:
        """Of all hosts."""
        return self.count if self.is_local else len(self.workers)

    @property
    def num_commanded(self) -> int:
        """Those that compute for a chief; 0 where there are no parameter servers."""
        return num_commanded(self.num_workers, self.num_servers)


def num_commanded(num_workers: int, num_servers: int) -> int:
    """Returns how many of all workers compute for a chief; 0 where there are no parameter servers."""
    return num_workers - 1 - num_servers if num_servers else 0


def task_of(index: int, num_servers: int) -> tuple[str, int]:
    """Returns the job of a worker, as TensorFlow names it, and its index there."""
    if not num_servers:
        return WORKER, index
    if index == 0:
        return CHIEF, 0
    return (SERVER, index - 1) if index <= num_servers else (WORKER, index - 1 - num_servers)


def name_of(index: int, num_servers: int) -> str:
    """Returns the name of a worker for the user."""
    job, place_there = task_of(index, num_servers)
    return {CHIEF: "the chief", SERVER: f"parameter server {place_there}"}.get(job, f"worker {place_there}")


def place(
    *,
    hosts: Sequence[str] | None,
    host_index: int | None,
    workers_per_host: int | None,
    environment: Mapping[str, str],
    num_servers: int = 0,
) -> Placement:
    """Returns which workers there are, and which of them this host starts.

    The first host starts the chief and the parameter servers besides its workers, where there are any.

    Args:
        hosts: `host:port` of the first worker of each host.
        workers_per_host: None means one.
        environment: That may hold `TF_CONFIG` or what Slurm sets.
        num_servers: Parameter servers; `TF_CONFIG` has its own number of them.

    Raises:
        UsageError: If the settings contradict each other.
    """
    count = 1 if workers_per_host is None else workers_per_host
    num_more = 1 + num_servers if num_servers else 0
    if hosts is not None:
        return _place_on_hosts(hosts, host_index, count, num_servers)
    if host_index is not None:
        raise UsageError("--host-index is of use with --hosts only", next_step="Name all hosts with --hosts")
    named = cluster_of_tf_config(environment.get(TF_CONFIG))
    if named is not None and named.num_workers > 1:
        if count > 1:
            raise UsageError(
                "TF_CONFIG and --workers-per-host contradict each other",
                why=f"TF_CONFIG lists {named.num_workers} workers and says that this process is one of them",
                next_step="Unset TF_CONFIG, or leave --workers-per-host out",
            )
        return Placement(first=named.index, count=1, workers=named.workers, num_servers=named.num_servers)
    in_slurm = _place_in_slurm(environment, count, num_servers)
    return in_slurm or Placement(first=0, count=num_more + count, num_servers=num_servers)


def cluster_from_environment(environment: Mapping[str, str]) -> Cluster:
    """Returns the cluster of a process that the supervisor started; a cluster of one for any other.

    Raises:
        UsageError: If `TF_CONFIG` is damaged.
    """
    from train.distribution.worker_identity import WORKER_IDENTITY

    named = cluster_of_tf_config(environment.get(TF_CONFIG)) if WORKER_IDENTITY in environment else None
    return named or Cluster()


def cluster_of_tf_config(text: str | None) -> Cluster | None:
    """Returns the cluster that `TF_CONFIG` describes, None if it describes none. A chief is worker 0.

    Raises:
        UsageError: If it is damaged, has jobs that take no part, or parameter servers without a chief or workers.
    """
    if not (text or "").strip():
        return None
    try:
        config = msgspec.json.decode(text or "")
    except msgspec.DecodeError as error:
        raise _bad_tf_config(f"it is not JSON: {error}") from error
    cluster, task = (config.get(n) or {} for n in ("cluster", "task")) if isinstance(config, dict) else (None, None)
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise _bad_tf_config('it must be an object with "cluster" and "task"')
    if not cluster:
        return None
    if others := sorted(set(cluster) - {CHIEF, SERVER, WORKER}):
        raise _bad_tf_config(f"it has the job {others[0]!r}; only chief, worker and ps take part")
    chiefs, servers, workers = (_addresses(cluster.get(job) or [], job) for job in (CHIEF, SERVER, WORKER))
    if len(chiefs) > 1:
        raise _bad_tf_config(f"it has {len(chiefs)} chiefs")
    if servers and not (chiefs and workers):
        raise _bad_tf_config("parameter servers need a chief and at least one worker")
    job, index = task.get("type"), task.get("index")
    own = {CHIEF: chiefs, SERVER: servers, WORKER: workers}.get(job if isinstance(job, str) else "")
    if not own:
        raise _bad_tf_config(f"its task is of type {job!r}, and there is no such job in its cluster")
    if type(index) is not int or not 0 <= index < len(own):
        raise _bad_tf_config(f"its task is {job} {index!r}, and there are {len(own)}, counted from 0")
    everybody = (*chiefs, *servers, *workers)
    check_addresses(everybody, TF_CONFIG)
    return Cluster(workers=everybody, index=everybody.index(own[index]), num_servers=len(servers))


def check_addresses(addresses: Sequence[str], where: str) -> None:
    """Checks that addresses are complete and different, or raises `UsageError`."""
    for address in addresses:
        parse_address(address, where)
    if len(set(addresses)) < len(addresses):
        twice = next(a for a in addresses if addresses.count(a) > 1)
        raise UsageError(f"the address {twice!r} is there twice", where=where, next_step="Give each worker its own")


def parse_address(address: str, where: str) -> tuple[str, int]:
    """Returns host and port of `host:port`; the host of an IPv6 address is without its brackets.

    Raises:
        UsageError: If one of them is missing.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) <= MAX_PORT:
        raise UsageError(
            f"{address!r} is no address of a worker",
            where=where,
            why=f"expected HOST:PORT with a port up to {MAX_PORT}",
            next_step="Write an IPv6 address in brackets, such as [fd00::1]:5000",
        )
    return found[1].strip("[]"), int(found[2])


def _place_on_hosts(hosts: Sequence[str], host_index: int | None, count: int, num_servers: int) -> Placement:
    if not hosts:
        raise UsageError("--hosts names no host", next_step="Give it HOST:PORT of each host, with commas between")
    if host_index is None and len(hosts) > 1:
        raise UsageError(
            "--hosts needs --host-index", next_step=f"Say which one this host is, from 0 to {len(hosts) - 1}"
        )
    index = host_index or 0
    if not 0 <= index < len(hosts):
        raise UsageError(
            f"there is no host {index} in --hosts",
            why=f"it names {len(hosts)}",
            next_step=f"Use a --host-index from 0 to {len(hosts) - 1}",
        )
    workers: list[str] = []
    num_more = 1 + num_servers if num_servers else 0
    for address in hosts:
        host, port = parse_address(address, "--hosts")
        num_here = count + (0 if workers else num_more)
        if port + num_here - 1 > MAX_PORT:
            raise UsageError(
                f"{num_here} workers from {address!r} on need ports above {MAX_PORT}", next_step="Use a smaller port"
            )
        workers += [_join(host, port + k) for k in range(num_here)]
    if len(set(workers)) < len(workers):
        twice = next(w for w in workers if workers.count(w) > 1)
        raise UsageError(
            f"two workers have the address {twice!r}",
            where="--hosts",
            why=f"worker k of a host listens on the host's port + k, and there are {count} a host"
            if count > 1
            else None,
            next_step="Give each host its own address",
        )
    if len(workers) == 1:
        return Placement(first=0, count=1)
    return _share(index, count, tuple(workers), num_servers)


def _share(host: int, count: int, workers: tuple[str, ...], num_servers: int) -> Placement:
    """Returns the share of a host of all workers: `count` of them, the first one the chief and the servers, too."""
    num_more = 1 + num_servers if num_servers else 0
    if host == 0:
        return Placement(first=0, count=num_more + count, workers=workers, num_servers=num_servers)
    return Placement(first=num_more + host * count, count=count, workers=workers, num_servers=num_servers)


def _place_in_slurm(environment: Mapping[str, str], count: int, num_servers: int) -> Placement | None:
    """Returns the placement of a task that srun started beside others: it starts `count` workers."""
    # A batch script has the job's variables too, but is no task of a step.
    if "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment:
        return None
    num_tasks = _slurm_number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    task = _slurm_number(environment, "SLURM_PROCID")
    if num_tasks <= 1:
        return None
    nodes = expand_nodes(_slurm_text(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    tasks = expand_tasks(_slurm_text(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if len(nodes) != len(tasks) or sum(tasks) != num_tasks or task >= num_tasks:
        raise UsageError(
            "Slurm's environment contradicts itself",
            why=f"task {task} of {num_tasks}; {len(nodes)} nodes with {sum(tasks)} tasks",
            next_step="Name the hosts with --hosts instead",
        )
    num_more = 1 + num_servers if num_servers else 0
    if max(tasks) * count + num_more > _SLURM_PORTS_A_JOB:
        raise UsageError(
            f"{max(tasks) * count + num_more} workers on one node are too many",
            why=f"at most {_SLURM_PORTS_A_JOB} have ports",
            next_step="Use fewer tasks a node, or a smaller --workers-per-host",
        )
    node_of_task = [node for node, n in enumerate(tasks) for _ in range(n)]
    if "SLURM_NODEID" in environment and _slurm_number(environment, "SLURM_NODEID") != node_of_task[task]:
        raise UsageError("Slurm's tasks are not in the order of its nodes", next_step="Use srun --distribution=block")
    job = _slurm_number(environment, "SLURM_JOB_ID") + _slurm_number(environment, "SLURM_STEP_ID")
    port = _SLURM_FIRST_PORT + job % _SLURM_NUM_JOBS * _SLURM_PORTS_A_JOB
    workers = tuple(
        f"{node}:{port + k}"
        for i, (node, n) in enumerate(zip(nodes, tasks, strict=True))
        for k in range(n * count + (num_more if i == 0 else 0))
    )
    check_addresses(workers, "Slurm's list of nodes")
    return _share(task, count, workers, num_servers)


def _slurm_text(environment: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environment.get(name):
            return environment[name]
    raise UsageError(f"Slurm did not set {' or '.join(names)}", next_step="Name the hosts with --hosts instead")


def _slurm_number(environment: Mapping[str, str], *names: str) -> int:
    text = _slurm_text(environment, *names)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"Slurm's {names[0]} is no number: {text!r}", next_step="Name the hosts with --hosts instead")
    return int(text)


def _addresses(values: Any, job: str) -> tuple[str, ...]:
    # A job may also be given as an object from index to address.
    if isinstance(values, dict):
        try:
            values = [values[key] for key in sorted(values, key=int)]
        except ValueError as error:
            raise _bad_tf_config(f"the addresses of job {job!r} have no numbers") from error
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise _bad_tf_config(f"the job {job!r} must be a list of addresses")
    return tuple(values)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bad_tf_config(why: str) -> UsageError:
    return UsageError("TF_CONFIG cannot be used", why=why, next_step="Correct it, unset it, or use --hosts")
