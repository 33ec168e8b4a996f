"""`shardkit doctor` as a user meets it: what is installed, what a folder keeps, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.full

COMMAND = [sys.executable, "-m", "shardkit", "doctor"]


def doctor(*args, **environment):
    done = subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout, done.stderr


def test_the_installation_alone():
    code, out, err = doctor()
    assert (code, err) == (0, "")
    for text in ("Python", "kernel", "numpy", "[s3]", "cores", "temporary", "GPUs"):
        assert text in out
    assert "ok: all that is installed fits together\n" in out
    assert "promise" not in out


def test_a_folder_gets_a_table_and_a_verdict(tmp_path):
    code, out, err = doctor(tmp_path / "new", "--rounds", "3")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if "  kept  " in line or "  not checked  " in line]
    assert len(rows) == 14
    assert " ".join(rows[0].split()).endswith(" kept 3 8 writers, one winner in every round")
    assert "This store keeps every promise that shardkit relies on and can check.\n" in out
    assert f"below {tmp_path}/new/.shardkit-doctor-" in out
    assert list(tmp_path.iterdir()) == []


def test_json_holds_the_same(tmp_path):
    code, out, _ = doctor(tmp_path, "--rounds", "2", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["problems"] == []
    assert {f["state"] for f in document["store"]["findings"]} == {"kept", "not checked"}
    assert json.loads(doctor("--json")[1])["store"] is None


def test_a_place_that_cannot_be_written_to_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, err = doctor(tmp_path / "file")
    assert code == 2
    assert "cannot write there" in err
    assert "Nothing was written." in err
    assert doctor("ftp://host/x")[0] == 7


def test_a_store_that_is_not_there_ends_with_5_and_no_secret():
    pytest.importorskip("s3fs")
    code, out, err = doctor(
        "s3://bucket/x",
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="name",
        AWS_SECRET_ACCESS_KEY="canary-of-a-secret",
        SHARDKIT_STORAGE_DEADLINE="0.5",
    )
    assert code == 5
    assert "the store does not answer" in err
    assert "canary" not in out + err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(tmp_path, number, code):
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path / "out"), "--rounds", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    end = time.monotonic() + 60
    while len(list(tmp_path.glob("out/.shardkit-doctor-*/race-*"))) < 5:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"All that the doctor wrote is removed again." in err
    assert list(tmp_path.iterdir()) == []
