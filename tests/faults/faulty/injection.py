"""Puts the faults, part size and bugs of a plan into a process, so that the product needs no hooks for tests."""

from __future__ import annotations

from tests.faults.faulty import fault_store, local_faults
from tests.faults.faulty.fault_plan import plan_of_environment
from tests.faults.faulty.operations import Operations
from tests.faults.planted import planted_bugs
from tests.faults.planted.planted_pair_bugs import ALL_BUGS


def install() -> None:
    """Does what the plan in the environment says, if there is one."""
    plan = plan_of_environment()
    if plan is None:
        return
    operations = Operations(plan)
    if plan.folders:
        local_faults.install(operations)
    if plan.protocols:
        fault_store.install(operations)
    if plan.part_bytes:
        planted_bugs.put_in_parts_of(plan.part_bytes)
    if plan.bug:
        ALL_BUGS[plan.bug]()
