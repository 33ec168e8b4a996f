"""Bugs that show where two commands meet, or where a place may not be written."""

from __future__ import annotations

from typing import Any

from tests.faults.planted.planted_bugs import BUGS, planted, replace_in


@planted
def no_look_for_marks() -> None:
    """A commit does not look whether a cleaning is at work."""
    from shardkit.dataset import commit

    replace_in(commit, "_living_marks", lambda root, table_path: set())


@planted
def no_look_at_the_files() -> None:
    """A commit believes that what it put is still there."""
    from shardkit.dataset import commit

    replace_in(commit, "_check_present", lambda *args: None)


@planted
def no_look_for_tables() -> None:
    """A cleaning does not look whether a conversion is about to commit."""
    from shardkit.cleaning import decide, remove

    for module in (decide, remove):
        replace_in(module, "commits_near", lambda files, named, now: False)
    replace_in(decide._Planner, "_may_be_needed", lambda planner, file: False)


@planted
def mark_stays() -> None:
    """A cleaning leaves its mark."""
    from shardkit.cleaning.remove import Mark

    replace_in(Mark, "end", lambda mark: None)


@planted
def rebase_with_the_old_rows() -> None:
    """An append that follows another one leaves out the rows of that one."""
    from shardkit.conversion.commit import commit

    merge = commit.after_base
    replace_in(commit, "after_base", lambda plan, base, made: merge(plan, plan.base, made))


@planted
def no_rebase() -> None:
    """Of two appends at once, one is refused."""
    from shardkit.conversion.commit import rebase

    replace_in(rebase, "_why_no_rebase", lambda append, newest, load: "there is a newer version")


@planted
def verify_asks_once() -> None:
    """A bit that turned on its way from a store is reported as damage."""
    from shardkit.verify import shards

    replace_in(shards, "_check", lambda read, report: read(report).check())


@planted
def full_disk_is_overlooked() -> None:
    """A table or a manifest that finds no room counts as written."""
    from shardkit.errors import OutOfSpaceError
    from shardkit.storage import files as storage

    link = vars(storage)["_link_whole"]

    def link_wrongly(target: Any, content: bytes) -> bool:
        try:
            return bool(link(target, content))
        except OutOfSpaceError:
            return True

    replace_in(storage, "_link_whole", link_wrongly)


@planted
def refusal_is_a_bug() -> None:
    """What the system refuses to write ends with the exit code of a bug."""
    from shardkit.storage import os_errors

    def fail(error: OSError, path: str) -> None:
        raise RuntimeError(path) from error

    replace_in(os_errors, "_raise_write_error", fail)


ALL_BUGS = BUGS
"""Those of `planted_bugs`, too. Each puts itself into this process and those that it forks."""
