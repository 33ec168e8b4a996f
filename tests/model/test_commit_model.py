"""No order of the steps of conversions, appends and cleanings on several hosts breaks a version; planted bugs do."""

from collections.abc import Mapping
from functools import partial

import pytest

from tests.model.actors import (
    CHANGED,
    DROPPED,
    NOTHING_NEW,
    UNREADABLE,
    Content,
    clean,
    convert,
    drop_broken,
    manifest,
    read,
    shards,
    table,
)
from tests.model.explore import JUMP_S, START_S, Explored, Stored, explore
from tests.model.mutants import MUTANTS, planted
from tests.support.campaign import in_campaign

pytestmark = pytest.mark.full


def version_of(version, fingerprint, *, at=0.0, number=1, base=0, names=frozenset()):
    """Returns the files of a version that was committed before."""
    own = frozenset(shards(fingerprint, number)) | names
    path = table(version, fingerprint)
    inputs = (f"{fingerprint}.csv",)
    content = Content(fingerprint, path, own | {path}, base, is_append=False, inputs=inputs)
    files = {manifest(version): Stored(content, at), path: Stored("table", at)}
    return files | {name: Stored(name, at) for name in own}


def check(files: Mapping[str, Stored], ends: tuple[str | None, ...]) -> str | None:
    """Returns what is wrong: a version names a file that is gone, or what was told to a user is not so."""
    versions = {path: f.content for path, f in files.items() if path.endswith(".json")}
    for path, content in versions.items():
        gone = sorted(name for name in content.names if name not in files and content.writer != BROKEN_WRITER)
        if gone:
            return f"{path} names {gone[0]}, which is gone"
    if unread := [end for end in ends if end and end.startswith("lost ")]:
        return f"a reader {unread[0]}"
    winners = [(writer, end) for writer, end in zip(WRITERS, ends, strict=False) if end and end.startswith("version ")]
    for writer, end in winners:
        # A cleaning with keep_versions may drop a version that has a newer one.
        path = manifest(int(end.removeprefix("version ")))
        if path in versions and versions[path].writer != writer:
            return f"{writer} was told that it made {path}, which is another one"
        if path not in versions and not any(other > path for other in versions):
            return f"{writer} was told that it made {path}, which is not there"
    if len({end for _, end in winners}) < len(winners):
        return "two were told that they made the same version"
    made = [content.writer for content in versions.values() if content.writer in WRITERS]
    if len(set(made)) < len(made):
        return "one conversion made two versions"
    beaten = [w for w, end in zip(WRITERS, ends, strict=False) if end and end.endswith(("faster", "each time"))]
    if wrong := set(beaten) & set(made):
        return f"{min(wrong)} was told that others were faster, and it made a version"
    if wrong := _of_appends(versions) or _of_refusals(versions, ends):
        return wrong
    newest = versions[max(versions)].names if versions else frozenset()
    # An overwrite behind an append leaves its rows out.
    appended = [f.content for f in files.values() if isinstance(f.content, Content) and f.content.is_append]
    is_kept = all(content.is_append for content in versions.values() if content.base)
    lost = [c.writer for c in appended if is_kept and not set(shards(c.writer)) <= newest]
    return f"the rows of {lost[0]} are not in the newest version" if lost else None


def _of_appends(versions: Mapping[str, Content]) -> str | None:
    """Returns which append went behind what it was not planned for, or took a file that was there."""
    for path, content in versions.items():
        between = [versions.get(manifest(number)) for number in range(content.planned + 1, content.base + 1)]
        if content.is_append and any(other is not None and not other.is_append for other in between):
            return f"{path} went behind a version that is no append"
        if len(set(content.inputs)) < len(content.inputs):
            return f"{path} has a file twice"
    return None


def _of_refusals(versions: Mapping[str, Content], ends: tuple[str | None, ...]) -> str | None:
    """Returns which conversion was refused for no reason."""
    for writer, end in zip(WRITERS, ends, strict=False):
        others = [content for content in versions.values() if content.writer in WRITERS.replace(writer, "")]
        source = "b.csv" if end and "has b.csv already" in end else f"{writer}.csv"
        if end and end.startswith(CHANGED) and all(o.is_append and source not in o.inputs for o in others):
            return f"{writer} was told that {end}"
        if end == NOTHING_NEW and not any("b.csv" in other.inputs for other in others):
            return f"{writer} was told that there is {end}"
        if end == "another was faster" and not others:
            return f"{writer} was told that {end}, and none was"
        if end == "others were faster each time" and len(others) < 2:
            return f"{writer} was told that {end}, and none were"
    return None


def kept(before: Mapping[str, Stored], files: Mapping[str, Stored], ends: tuple[str | None, ...]) -> str | None:
    """Returns what is wrong in a scene in which no old version may go, and those that cannot be read may."""
    for path, held in before.items():
        is_broken = isinstance(held.content, Content) and held.content.table not in before
        if path.endswith(".json") and not is_broken and files.get(path) != held:
            return f"{path} is gone"
        if is_broken and files.get(path) == held and DROPPED in ends:
            return f"{path} was to be dropped, and is there"
        if not is_broken and UNREADABLE in ends and all(f.content.table in before for f in manifests_of(before)):
            return "a version is said to be unreadable"
    return check(files, ends)


def manifests_of(files: Mapping[str, Stored]) -> list[Stored]:
    return [held for held in files.values() if isinstance(held.content, Content)]


WRITERS = "abc"
BROKEN_WRITER = "d"
KEPT_FOR_S = JUMP_S
APPENDERS = "bc"
DEAD = {shards("a", 2)[0]: Stored(shards("a", 2)[0], 0.0)}
ONE = version_of(1, "e")
TWO = ONE | version_of(2, "f", at=1.0, base=1)
BROKEN = ONE | version_of(2, BROKEN_WRITER, at=1.0, base=1)
del BROKEN[table(2, BROKEN_WRITER)]
JUST_REPLACED = ONE | version_of(2, "f", at=START_S, base=1)
NEW = partial(convert, "a", "a", number=2)
AGAIN = partial(convert, "a", "e", how="overwrite")
OTHER = partial(convert, "a", "a", how="overwrite")
APPEND, APPEND_TOO = (partial(convert, w, w, how="append") for w in APPENDERS)
APPEND_SAME = partial(APPEND_TOO, source="b.csv")
READ = partial(read, kept_for_s=KEPT_FOR_S)
DROP_OLD = partial(clean, keep_versions=1, older_than_s=KEPT_FOR_S)
IDLE = None

# By name: the actors, the first of them a conversion (or none), and what lies there before.
SCENES = {
    "a conversion goes on with what a dead one left": ([NEW, clean], DEAD),
    "two conversions": ([NEW, partial(convert, "b", "b")], DEAD),
    "two appends": ([IDLE, APPEND, APPEND_TOO], ONE),
    "two appends of one file": ([IDLE, APPEND, APPEND_SAME], ONE),
    "an append": ([IDLE, APPEND, clean], ONE),
    "an overwrite by what a dropped version had": ([AGAIN, partial(clean, keep_versions=1)], TWO),
    "an append and an overwrite": ([OTHER, APPEND], ONE),
    "two appends and a cleaning": ([IDLE, APPEND, APPEND_TOO, clean], ONE),
    "a reader and an append": ([IDLE, APPEND, READ], ONE),
    "a reader and the same conversion again": ([AGAIN, READ], ONE),
    "a reader of what is replaced": ([OTHER, READ, DROP_OLD], ONE),
    "a reader of what was just replaced": ([IDLE, partial(READ, version=1), DROP_OLD], JUST_REPLACED),
    "a reader of the newest of two": ([IDLE, READ, DROP_OLD], TWO),
    "an overwrite of a broken version": ([OTHER, drop_broken], BROKEN),
    "an append to a broken version": ([IDLE, APPEND, drop_broken], BROKEN),
    "two drop a broken version": ([OTHER, drop_broken, partial(drop_broken, second=True)], BROKEN),
    "a broken version is dropped and cleaned": ([OTHER, drop_broken, partial(clean, second=True)], BROKEN),
    "two cleanings": ([NEW, clean, partial(clean, second=True)], DEAD),
}


def explored(scene: str, *, bug: str = "", crashes: int = 1, jumps: int = 1, losses: int = 0, skew=0.0) -> Explored:
    actors, files = SCENES[scene]
    made = [idle if actor is IDLE else partial(actor, bug=bug) for actor in actors]
    # The clocks of two neighbours differ by twice as much.
    skews = [skew * (-1) ** i for i in range(len(made))]
    may_drop = any(isinstance(actor, partial) and "keep_versions" in actor.keywords for actor in actors)
    judged = check if may_drop else partial(kept, files)
    return explore(made, files, judged, crashes=crashes, jumps=jumps, losses=losses, skews=skews)


def idle():
    return "idle"
    yield


WITH_CLEANING = ("a conversion goes on with what a dead one left", "an append")
LARGEST = ("two cleanings", "a broken version is dropped and cleaned")
LARGE = (
    *LARGEST,
    "two appends and a cleaning",
    "a reader of what is replaced",
    "two drop a broken version",
)


def assert_holds(scene, crashes, jumps, **more):
    found = explored(scene, crashes=crashes, jumps=jumps, **more)
    assert found.broken is None, "\n".join((found.broken, *found.history))
    return found


@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene not in LARGE])
def test_no_order_of_steps_breaks_a_version(scene):
    assert assert_holds(scene, crashes=1, jumps=1).num_states > (200 if "reader" in scene else 400)


@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene not in LARGE])
def test_no_answer_that_is_lost_breaks_a_version(scene):
    assert assert_holds(scene, crashes=0, jumps=0, losses=1).num_states > (50 if "reader" in scene else 150)


@pytest.mark.parametrize("skew", [-2 * JUMP_S, 2 * JUMP_S])
@pytest.mark.parametrize("scene", WITH_CLEANING)
def test_clocks_that_differ_break_no_version(scene, skew):
    assert assert_holds(scene, crashes=0, jumps=1, skew=skew).num_states > 100


@pytest.mark.parametrize("scene", [scene for scene in LARGE if scene not in LARGEST])
def test_no_order_of_the_steps_of_three_breaks_a_version(scene):
    assert assert_holds(scene, crashes=0, jumps=0).num_states > 500


@pytest.mark.campaign
@pytest.mark.parametrize("scene", SCENES)
def test_no_order_of_more_steps_breaks_a_version(scene):
    assert_holds(scene, *((1, 0) if scene in LARGE else (2, 2)))


BUGS = {
    # As all commits and cleanings were before: no marks, a table that is taken over, and no rule for young ones.
    "tables of one name": "an append",
    "manifest before table": "two conversions",
    "no look for marks": "a conversion goes on with what a dead one left",
    "no look at the files": "a conversion goes on with what a dead one left",
    "no look at the clock": "an append",
    "overwrites": "two conversions",
    "taken is success": "two conversions",
    "rebase with the old rows": "two appends",
    "no second look": "a conversion goes on with what a dead one left",
    "no mark": "a conversion goes on with what a dead one left",
    "no look for tables": "a conversion goes on with what a dead one left",
    "mark not renewed": "a conversion goes on with what a dead one left",
    "data before manifests": "an overwrite by what a dropped version had",
    "a table put again": "an append",
    "own is taken": "two appends",
    "age by the own clock": "a conversion goes on with what a dead one left",
    "data put again": "a reader and the same conversion again",
    "versions of any age": "a reader of what was just replaced",
    "age of the own manifest": "a reader of what was just replaced",
    # As it was before: two of them, and a conversion between their looks.
    "dropped without a mark": "two drop a broken version",
    "dropped by an old look": "two drop a broken version",
    "dropped when it is late": "two drop a broken version",
    "dropped with the newer ones": "an overwrite of a broken version",
}
# Found only where clocks jump twice: the default is one jump.
JUMPS = {"a table put again": 2}
# Found only where answers are lost, or clocks differ.
MORE = {"own is taken": {"losses": 1}, "age by the own clock": {"skew": -2 * JUMP_S}}
# Found without a crash, and sooner.
MORE |= {bug: {"crashes": 0} for bug, scene in BUGS.items() if scene == "two drop a broken version"}


def explored_with(bug: str) -> Explored:
    """Returns what the scene of a planted bug gives with it."""
    return explored(BUGS[bug], bug=bug, jumps=JUMPS.get(bug, 1), **MORE.get(bug, {}))


@pytest.mark.parametrize("bug", [*(bug for bug in BUGS if bug not in JUMPS), *in_campaign(*JUMPS)])
def test_a_planted_bug_is_found(bug):
    assert explored_with(bug).broken is not None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_a_function_that_decides_is_found(name):
    mutant = MUTANTS[name]
    with planted(mutant):
        assert explored(mutant.scene, **mutant.more).broken is not None
