"""Uploads in parts: each of their requests fails once, or is the last one of a process that is killed."""

import os
import signal
import subprocess
import sys

import pytest

from tests.faults.command import INJECT
from tests.faults.faulty.fault_plan import Fault, FaultPlan
from tests.faults.faulty.operations import read_log
from tests.faults.places import StorePlace
from tests.support.campaign import in_campaign
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

NUM_BYTES = 40 * 2**20
PUT = "import pathlib, sys; from shardkit.storage import files; files.put_file(pathlib.Path(sys.argv[1]), sys.argv[2])"
NAMES = ("start-upload", "put-part", "end-upload")


@pytest.fixture
def put(stored, tmp_path):
    """Returns a function that puts a file of several parts with faults, and the place that it goes to."""
    content = os.urandom(NUM_BYTES)
    local = tmp_path / "content"
    local.write_bytes(content)
    with stored.store.trial() as (place, folder):

        def put_it(*faults):
            plan = FaultPlan(str(folder / "log"), faults, protocols=stored.store.protocols)
            path = os.pathsep.join([str(INJECT), str(ROOT), os.environ.get("PYTHONPATH", "")])
            settings = {**os.environ, **stored.store.environment, **plan.to_environment(), "PYTHONPATH": path}
            command = [sys.executable, "-c", PUT, str(local), f"{place.url}/a"]
            return subprocess.run(command, env=settings, start_new_session=True, check=False).returncode

        yield put_it, place, content, folder / "log"


def holds(place: StorePlace, content: bytes) -> bool:
    return place.names() == ["a"] and place.read("a") == content


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["lost-answer", *in_campaign("error")])
def test_a_part_that_fails_costs_time_only_and_leaves_no_upload(put, name, kind):
    put_it, place, content, log = put
    # Of the first upload, of three parts: before it come a look whether the object is there, and the put.
    assert put_it(Fault((kind,), names=(name,), at={"start-upload": 3, "put-part": 5, "end-upload": 7}[name])) == 0
    assert [line["name"] for line in read_log(log) if line["fault"]] == [name]
    assert holds(place, content)
    assert place.num_open_uploads() == 0


@pytest.mark.parametrize(("name", "kind"), [("put-part", "kill-after"), ("end-upload", "kill-before")])
def test_what_a_killed_upload_left_is_never_seen_and_the_next_one_is_whole(put, name, kind):
    put_it, place, content, _ = put
    assert put_it(Fault((kind,), names=(name,))) == -signal.SIGKILL
    assert place.names() == []
    assert put_it() == 0
    assert holds(place, content)
