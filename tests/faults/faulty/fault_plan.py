"""Which fault happens at which storage operation: frozen values, JSON in an environment variable, a pure decision."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass

PLAN_VARIABLE = "SHARDKIT_FAULT_PLAN"

# What each kind can happen to; none named: to every operation.
KINDS: dict[str, frozenset[str]] = {
    "kill-before": frozenset(),
    "kill-after": frozenset(),
    "torn": frozenset({"write", "put", "put-part"}),
    # The store keeps a half and says that all is well.
    "short-put": frozenset({"put"}),
    "error": frozenset(),
    "timeout": frozenset(),
    "full": frozenset({"open", "write", "make-folder", "link", "rename"}),
    "lost-answer": frozenset(
        {"put", "create", "delete", "link", "rename", "start-upload", "put-part", "end-upload", "abort-upload"}
    ),
    # What a client does by itself when an answer is lost: the answer to the second request is the one that is seen.
    "asked-again": frozenset({"put", "create", "delete", "link"}),
    "short-read": frozenset({"get"}),
    "flip": frozenset({"get"}),
    "stale-listing": frozenset({"list"}),
    "lag": frozenset(),
    "meet": frozenset(),
}


@dataclass(frozen=True)
class Operation:
    """A storage operation of any process of a conversion.

    Attributes:
        number: From 1, in the order in which they begin.
        name: What is done: `put`, `link`, ...
        path: To what.
    """

    number: int
    name: str
    path: str


@dataclass(frozen=True)
class Fault:
    """What is to happen, and to which operations.

    Attributes:
        kinds: Of `KINDS`; where several can happen to an operation, the seed chooses.
        at: Number of the one operation; None leaves it to the rest.
        since: Number of the first one.
        probability: For each operation, by the seed.
        seed: Of all that is random.
        names: Of operations; empty means all.
        path: Regular expression that is searched for in the path.
    """

    kinds: tuple[str, ...]
    at: int | None = None
    since: int = 0
    probability: float = 1.0
    seed: int = 0
    names: tuple[str, ...] = ()
    path: str = ""


@dataclass(frozen=True)
class FaultPlan:
    """All that a conversion meets.

    Attributes:
        log: File of the operations, one JSON object a line.
        faults: The first that fits an operation is the one that happens.
        folders: Local folders in which operations count.
        protocols: Stores whose operations count.
        num_parties: Processes that wait for each other where the kind is `meet`.
        bug: Name of a bug that is planted, see `planted_bugs`.
        part_bytes: Of uploads in parts; 0 leaves it to shardkit, whose parts are too large for a quick trial.
    """

    log: str
    faults: tuple[Fault, ...] = ()
    folders: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    num_parties: int = 0
    bug: str = ""
    part_bytes: int = 0

    def to_environment(self) -> dict[str, str]:
        """Returns the variable by which every process of a conversion finds the plan."""
        return {PLAN_VARIABLE: json.dumps(asdict(self))}


def plan_of_environment() -> FaultPlan | None:
    """Returns the plan that this process was given, None if there is none."""
    text = os.environ.get(PLAN_VARIABLE)
    if not text:
        return None
    found = json.loads(text)
    faults = tuple(Fault(**{**f, "kinds": tuple(f["kinds"]), "names": tuple(f["names"])}) for f in found["faults"])
    lists = {name: tuple(found[name]) for name in ("folders", "protocols")}
    return FaultPlan(**{**found, **lists, "faults": faults})


def kind_for(faults: tuple[Fault, ...], operation: Operation) -> str | None:
    """Returns what happens to an operation, None for nothing. Pure."""
    for fault in faults:
        possible = [kind for kind in fault.kinds if not KINDS[kind] or operation.name in KINDS[kind]]
        if (
            not possible
            or (fault.at is not None and fault.at != operation.number)
            or operation.number < fault.since
            or (fault.names and operation.name not in fault.names)
            or not re.search(fault.path, operation.path)
        ):
            continue
        draw = _draw(fault.seed, operation.number)
        if draw % 10**6 < fault.probability * 10**6:
            return possible[draw // 10**6 % len(possible)]
    return None


def _draw(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:12], "big")
