"""The file system that fails: each kind of fault, on one that keeps its files in memory."""

import json

import fsspec
import pytest

from tests.faults.faulty import fault_store
from tests.faults.faulty.fault_plan import KINDS, Fault, FaultPlan, Operation, kind_for, plan_of_environment
from tests.faults.faulty.operations import Operations, read_log

CONTENT = bytes(range(100))


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Returns a function that gives a file system with faults, and its log."""
    fsspec.filesystem("memory").store.clear()

    def make(*faults):
        operations = Operations(FaultPlan(str(tmp_path / "log"), faults))
        monkeypatch.setattr(fault_store, "_active", operations)
        fsspec.register_implementation("fault", fault_store.FaultFileSystem, clobber=True)
        return fsspec.filesystem("fault", target_protocol="memory", skip_instance_cache=True)

    return make


def names(tmp_path):
    return [line["name"] for line in read_log(tmp_path / "log")]


def test_operations_are_numbered_and_done(failing, tmp_path):
    store = failing()
    store.pipe_file("/a/b", CONTENT)
    assert store.cat_file("/a/b", start=10, end=20) == CONTENT[10:20]
    assert store.info("/a/b")["size"] == len(CONTENT)
    assert store.ls("/a", detail=False) == ["/a/b"]
    with store.open("/a/b", "rb") as file:
        file.seek(90)
        assert file.read() == CONTENT[90:]
    store.rm_file("/a/b")
    assert not store.exists("/a/b")
    assert [line["number"] for line in read_log(tmp_path / "log")] == list(range(1, len(names(tmp_path)) + 1))
    assert names(tmp_path)[:4] == ["put", "get", "stat", "list"]
    assert names(tmp_path)[-2:] == ["delete", "stat"]


@pytest.mark.parametrize(("kind", "error"), [("error", OSError), ("timeout", TimeoutError)])
def test_a_request_that_fails_does_nothing(failing, kind, error):
    store = failing(Fault((kind,), names=("put",)))
    with pytest.raises(error):
        store.pipe_file("/a", CONTENT)
    assert not store.exists("/a")


def test_a_lost_answer_leaves_what_was_done(failing):
    store = failing(Fault(("lost-answer",), names=("put",)))
    with pytest.raises(ConnectionResetError):
        store.pipe_file("/a", CONTENT)
    assert store.cat_file("/a") == CONTENT


def test_an_answer_to_the_second_request_contradicts_the_first(failing):
    store = failing(Fault(("asked-again",)))
    with pytest.raises(FileExistsError):
        store.pipe_file("/a", CONTENT, mode="create")
    assert store.cat_file("/a") == CONTENT


def test_answers_are_cut_off_or_turned_by_a_bit(failing):
    store = failing(Fault(("short-read",), at=2), Fault(("flip",), at=3), Fault(("flip",), at=4))
    store.pipe_file("/a", CONTENT)
    assert store.cat_file("/a") == CONTENT[:50]
    flipped = [store.cat_file("/a") for _ in range(2)]
    for one in flipped:
        assert sum((a ^ b).bit_count() for a, b in zip(one, CONTENT, strict=True)) == 1
    assert flipped[0] != flipped[1]
    assert store.cat_file("/a") == CONTENT


def test_a_stale_listing_lacks_what_came_last(failing):
    store = failing(Fault(("stale-listing",), at=3))
    store.pipe_file("/a/1", CONTENT)
    store.pipe_file("/a/2", CONTENT)
    assert store.ls("/a", detail=False) == ["/a/1"]
    assert store.ls("/a", detail=False) == ["/a/1", "/a/2"]


def test_a_plan_comes_back_from_the_environment(monkeypatch):
    fault = Fault(("error", "flip"), probability=0.5, seed=7, names=("get",), path="x")
    plan = FaultPlan("log", (fault,), ("/a",), ("s3",), 8, "bug")
    for name, value in plan.to_environment().items():
        json.loads(value)
        monkeypatch.setenv(name, value)
    assert plan_of_environment() == plan


@pytest.mark.full
def test_the_seed_alone_decides_what_happens():
    operations = [Operation(n, "get", "a") for n in range(1, 20_001)]
    one, same, other = (
        [kind_for((Fault(tuple(KINDS), probability=0.1, seed=seed),), o) for o in operations] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert 0.09 < sum(kind is not None for kind in one) / len(one) < 0.11
    assert {"torn", "lost-answer", "stale-listing"} & set(one) == set()
    assert {"kill-before", "short-read", "flip", "lag"} <= set(one)
