"""What the trials of one store have in common: inputs, what is there before, and what a clean conversion makes."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.faulty.conversion_process import Conversion
from tests.faults.faulty.fault_plan import Fault, FaultPlan
from tests.faults.judges.oracle import Version, newest
from tests.faults.judges.records import Row
from tests.faults.places import Place, Store

_NUM_ROWS = 300
_DEADLINE_S = "60"
# The larger shard has five of them, the smaller one two.
_PART_BYTES = 512


class Scenario(NamedTuple):
    """What is there before a conversion.

    Attributes:
        name: `fresh`, `next` where another dataset is there, `same` where that very one is, `append` where one is that
            gets one more file, `parts` where shards are put in parts.
        has_old: Whether a dataset is there.
        is_same: Whether it holds what the conversion will make.
        is_append: Whether what the conversion makes goes behind it.
        is_in_parts: Whether uploads have several parts, on stores that know such.
    """

    name: str
    has_old: bool
    is_same: bool = False
    is_append: bool = False
    is_in_parts: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Of a conversion that finds this."""
        return ("--append",) if self.is_append else ("--overwrite",) if self.has_old else ()


SCENARIOS = {
    s.name: s
    for s in (
        Scenario("fresh", False),
        Scenario("next", True),
        Scenario("same", True, is_same=True),
        Scenario("append", True, is_append=True),
        Scenario("parts", False, is_in_parts=True),
    )
}


class World:
    """What all trials of one store have in common.

    Args:
        store: Makes places.
        folder: For inputs.
        num_shards: Of each of two splits.
    """

    def __init__(self, store: Store, folder: Path, num_shards: int = 1) -> None:
        self.store = store
        self.bug = ""
        self.options = (
            "--split",
            "train=0.7",
            "--split",
            "test=0.3",
            "--num-shards",
            str(num_shards),
            "--workers",
            "1",
        )
        self.old_input, self.old_rows = write_input(folder / "old.csv", 0)
        self.new_input, self.new_rows = write_input(folder / "new.csv", 5_000)
        self.operations: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
        self._template: dict[bool, dict[str, bytes]] = {}
        self.reference = self._make_reference()
        self.appended, self.clean_s = self._append_cleanly()

    @property
    def scenarios(self) -> list[Scenario]:
        """Those that there are on this store."""
        return [s for s in SCENARIOS.values() if not s.is_in_parts or self.store.takes_small_parts]

    def reference_of(self, scenario: Scenario) -> Version:
        """Returns what an undisturbed conversion makes of what is there."""
        return self.appended if scenario.is_append else self.reference

    def with_bug(self, bug: str) -> World:
        """Returns the same, with a bug planted in every conversion of a trial."""
        found = copy.copy(self)
        found.bug = bug
        return found

    def with_new_input(self, source: Path, rows: Counter[Row]) -> World:
        """Returns the same, with other new rows, for what is there before a conversion of others."""
        found = copy.copy(self)
        found.new_input, found.new_rows = source, rows
        with self.store.trial() as (place, folder):
            ended = self.start(found.command(source, place, folder / "work")).end()
            assert ended.code == 0, ended.said
            reference = newest(place)
        assert reference is not None
        found.reference = reference
        return found

    def with_workers(self, num_workers: int) -> World:
        """Returns the same, with so many workers."""
        found = copy.copy(self)
        found.options = (*self.options, "--workers", str(num_workers))
        return found

    def command(self, source: Path | str, place: Place, work: Path, *options: str) -> tuple[str, ...]:
        """Returns the arguments of a conversion."""
        return ("convert", str(source), place.url, "--work-dir", str(work), *self.options, *options)

    def start(self, command: Sequence[str], plan: FaultPlan | None = None, launcher: Sequence[str] = ()) -> Conversion:
        """Starts a conversion, through a command that limits it, if one is given."""
        environment = {"SHARDKIT_STORAGE_DEADLINE": _DEADLINE_S, **self.store.environment}
        return Conversion(command, {**environment, **(plan.to_environment() if plan else {})}, launcher)

    def prepare(self, place: Place, scenario: Scenario) -> Version | None:
        """Puts what is there before into a place."""
        if not scenario.has_old:
            return None
        for name, content in self._template[scenario.is_same].items():
            place.write(name, content)
        return newest(place)

    @property
    def new_data(self) -> str:
        """Returns the folder of what a conversion of the new rows stores."""
        return next(iter(self.reference.shards)).rpartition("/")[0]

    def leave_data(self, place: Place) -> None:
        """Puts what a conversion of the new rows leaves that dies before its commit."""
        for name, content in self._template[True].items():
            if name.startswith("data/"):
                place.write(name, content)

    def plan(
        self,
        folder: Path,
        faults: Sequence[Fault] = (),
        log: str = "log",
        num_parties: int = 0,
        *,
        is_in_parts: bool = False,
    ) -> FaultPlan:
        """Returns a plan whose operations are those of the store, or below a folder."""
        folders = () if self.store.protocols else (str(folder),)
        part_bytes = _PART_BYTES if is_in_parts else 0
        return FaultPlan(
            str(folder / log), tuple(faults), folders, self.store.protocols, num_parties, self.bug, part_bytes
        )

    def plan_of_bug(self, folder: Path, *, is_in_parts: bool = False) -> FaultPlan | None:
        """Returns a plan for a conversion that nothing happens to but a planted bug or small parts, if there is one."""
        return self.plan(folder, log="log-again", is_in_parts=is_in_parts) if self.bug or is_in_parts else None

    def _make_reference(self) -> Version:
        for is_same, source in ((False, self.old_input), (True, self.new_input)):
            with self.store.trial() as (place, folder):
                ended = self.start(self.command(source, place, folder / "work")).end()
                assert ended.code == 0, ended.said
                self._template[is_same] = {name: place.read(name) for name in place.names()}
                found = newest(place)
        assert found is not None
        assert found.rows == self.new_rows, "a clean conversion does not hold the rows of its input"
        return found

    def _append_cleanly(self) -> tuple[Version, float]:
        """Returns what an append makes, and how long it takes."""
        scenario = SCENARIOS["append"]
        with self.store.trial() as (place, folder):
            self.prepare(place, scenario)
            started = time.monotonic()
            ended = self.start(
                self.command(self.new_input, place, folder / "work", *scenario.options), self.plan(folder)
            ).end()
            seconds = time.monotonic() - started
            assert ended.code == 0, ended.said
            found = newest(place)
        assert found is not None
        assert found.rows == self.old_rows + self.new_rows, "a clean append does not hold the rows of both inputs"
        return found, seconds


def write_input(path: Path, first: int, num_rows: int = _NUM_ROWS) -> tuple[Path, Counter[Row]]:
    """Writes a table whose rows are numbered from `first`, and returns them as a reader will find them."""
    rows = [(i, i / 8) for i in range(first, first + num_rows)]
    path.write_text("id,x\n" + "".join(f"{i},{x}\n" for i, x in rows))
    return path, Counter((("id", (i,)), ("x", (x,))) for i, x in rows)
