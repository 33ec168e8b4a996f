"""Puts the faults, part size and bugs of a plan into a process, so that the product needs no hooks for tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.faults import fault_store, local_faults, planted_bugs
from tests.faults.fault_plan import plan_of_environment
from tests.faults.operations import Operations
from tests.faults.planted_pair_bugs import ALL_BUGS

ORDINARY_UID = 65534
"""The user without rights on Linux."""


def may_be_ordinary() -> bool:
    """Returns whether this process can become one without rights that reads this checkout and its environment."""
    folders = {folder for path in (sys.executable, __file__) for folder in Path(path).parents}
    return os.geteuid() == 0 and all(folder.stat().st_mode & 0o001 for folder in folders)


def install() -> None:
    """Does what the plan in the environment says, if there is one."""
    plan = plan_of_environment()
    if plan is None:
        return
    if plan.is_ordinary_user and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(ORDINARY_UID)
        os.setuid(ORDINARY_UID)
    operations = Operations(plan)
    if plan.folders:
        local_faults.install(operations)
    if plan.protocols:
        fault_store.install(operations)
    if plan.part_bytes:
        planted_bugs.put_in_parts_of(plan.part_bytes)
    if plan.bug:
        ALL_BUGS[plan.bug]()
