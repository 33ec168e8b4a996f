"""Faults planted in the functions of shardkit that decide about commits and cleanings: one expression differs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from shardkit.cleaning import decide, inventory
from shardkit.conversion.commit import rebase
from shardkit.conversion.inputs import append_check
from shardkit.dataset import commit
from tests.model import actors


class Mutant(NamedTuple):
    """A function with a fault.

    Attributes:
        old: Text of its source, there once.
        new: What stands there instead.
        scene: In which the model finds it.
        more: How that is explored, if not as by default.
    """

    function: Callable[..., Any]
    old: str
    new: str
    scene: str
    more: dict[str, Any] = {}  # noqa: RUF012 - read only


_WHY, _FROM_APPENDS = rebase.why_not_behind, vars(rebase)["_why_no_rebase"]
_CLEANED = "a conversion goes on with what a dead one left"
_TWO_APPENDS, _TWINS = "two appends", "two appends of one file"
_OVERWRITE, _BROKEN = "an append and an overwrite", "two drop a broken version"
_SOONER = {"crashes": 0}

MUTANTS = {
    "an overwrite is taken for an append": Mutant(
        _FROM_APPENDS,
        """            return f"version {version} was not made by an append\"""",
        "            return None",
        _OVERWRITE,
    ),
    "an append is taken for an overwrite": Mutant(_FROM_APPENDS, "before is None", "before is not None", _TWO_APPENDS),
    "an append refuses what goes back to its base": Mutant(
        _FROM_APPENDS, "return None if is_same", "return None if not is_same", _TWO_APPENDS
    ),
    "no append goes behind another one": Mutant(_WHY, "or not rebases", "or rebases", _TWO_APPENDS),
    "an append does not look behind its base": Mutant(_WHY, "versions[-1:] == [base]", "base in versions", _OVERWRITE),
    "no append asks what is known": Mutant(_WHY, "None if same is None", "None if True", _TWINS),
    "no file is known": Mutant(
        append_check.first_known, "if known.has(file, root):\n                return file.name", "pass", _TWINS
    ),
    "every file is known": Mutant(append_check.first_known, "if known.has(file, root)", "if True", _TWO_APPENDS),
    "no sign is ever late": Mutant(commit.is_late, "now - put_at > COMMIT_S", "False", "an append"),
    "a sign is late for as long as others count it": Mutant(
        commit.is_late, "now - put_at > COMMIT_S", "now - put_at < COMMIT_S", "an append"
    ),
    "no mark counts": Mutant(commit.marks_that_count, "is_mark(name) and", "False and", _CLEANED),
    "a sign counts when it is old": Mutant(commit.counts, "sign_at > now", "sign_at < now", _CLEANED),
    "no file is missed": Mutant(
        commit.lacking, "found.get(path) != num_bytes", "found.get(path, num_bytes) != num_bytes", _CLEANED
    ),
    "no table is seen": Mutant(decide.commits_near, "not in named and", "in named and", _CLEANED),
    "names of a version that stays are forgotten": Mutant(decide.names_after, "not in gone", "in gone", "an append"),
    "no table changes": Mutant(
        decide.has_changed, "found.get(file.path, file) != file", "False", "an append", {"jumps": 2}
    ),
    "nothing is broken": Mutant(
        inventory.as_broken, "if is_there else None", "if not is_there else None", _BROKEN, _SOONER
    ),
}


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Puts a mutant in the place of its function, in all modules that hold it."""
    function = mutant.function
    source = inspect.getsource(function)
    assert source.count(mutant.old) == 1, f"{function.__name__} is written in another way"
    home = sys.modules[function.__module__]
    modules = [m for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith("shardkit")]
    holders = [m for m in modules if vars(m).get(function.__name__) is function]
    # A function finds its neighbours in its module.
    exec(source.replace(mutant.old, mutant.new), vars(home))  # noqa: S102 - its own source
    found = vars(home)[function.__name__]
    try:
        for module in holders:
            setattr(module, function.__name__, found)
        actors.forget()
        yield
    finally:
        for module in holders:
            setattr(module, function.__name__, function)
        actors.forget()
