"""Memory of the processes that a benchmark starts."""

import psutil


def tree_bytes(process: psutil.Process) -> int:
    """Returns the memory of a process and all below it, shared pages counted in part (PSS)."""
    total = 0
    try:
        members = (process, *process.children(recursive=True))
    except psutil.Error:
        return 0
    for member in members:
        try:
            total += member.memory_full_info().pss
        except psutil.Error:
            continue
    return total
