"""What cannot be converted on Dataflow is refused before anything is read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.engines.dataflow_bucket import PLACE, one_line

pytestmark = pytest.mark.full

pytest.importorskip("google.cloud.dataflow")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--region", "r", "--temp-location", "gs://b/t"), "--runner dataflow needs --project"),
        (("--project", "p", "--temp-location", "gs://b/t"), "--runner dataflow needs --region"),
        (("--project", "p", "--region", "r"), "--runner dataflow needs --temp-location"),
        (("--project", "p", "--region", "r", "--temp-location", "t"), "is no folder of Google Cloud Storage"),
        ((*PLACE, "--temp-location", "gs://b/t", "--workers", "3"), "--workers means nothing on Dataflow"),
        ((*PLACE, "--temp-location", "gs://b/t", "--storage-options", "gs:project=x"), "do not reach the workers"),
        (
            (*PLACE, "--temp-location", "gs://b/t", "--work-dir", "/mnt/w"),
            "the --work-dir '/mnt/w' is out of",
        ),
        ((*PLACE, "--temp-location", "gs://b/t", "--engine-option", "region=x"), "--engine-option region is given"),
        ((*PLACE, "--temp-location", "gs://b/t", "--", "--temp_location=gs://x/t"), "--temp_location cannot be given"),
        ((*PLACE, "--temp-location", "gs://b/t", "--", "--setup_file=nowhere.py"), "names no file in nowhere.py"),
        ((*PLACE, "--temp-location", "gs://b/t"), "no option says how the workers of Dataflow get shardkit"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path, arguments, message):
    own = [sys.executable, "-m", "shardkit", "convert", "gs://b/raw", "gs://b/out", "--runner", "dataflow"]
    kept = {k: v for k, v in os.environ.items() if k not in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_COMPUTE_REGION")}
    found = subprocess.run(
        [*own, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path, env=kept, timeout=60
    )
    assert found.returncode == 2, found.stderr
    assert message in one_line(found.stderr)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        (("a.csv", "gs://b/out"), "the input 'a.csv'"),
        (("gs://b/raw", "/data/out"), "the destination '/data/out'"),
        (("postgresql://u:secret@h/d", "gs://b/out"), "the input 'postgresql://***@h/d'"),
    ],
)
def test_what_lies_on_this_machine_is_out_of_reach(tmp_path, place, named):
    (tmp_path / "a.csv").write_text("x\n1\n")
    own = [sys.executable, "-m", "shardkit", "convert", *place, "--runner", "dataflow", *PLACE]
    found = subprocess.run(
        [*own, "--temp-location", "gs://b/t"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
    )
    assert found.returncode == 2, found.stderr
    assert named in found.stderr
    assert "secret" not in found.stderr


@pytest.mark.parametrize("option", ["--project", "--region", "--temp-location"])
def test_options_of_dataflow_are_refused_elsewhere(tmp_path, option):
    (tmp_path / "a.csv").write_text("x\n1\n")
    own = [sys.executable, "-m", "shardkit", "convert", "a.csv", "out", option, "x"]
    for more in ((), ("--runner", "portable")):
        found = subprocess.run([*own, *more], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
        assert found.returncode == 2
        assert f"{option} is for --runner dataflow" in found.stderr
    assert not (tmp_path / "out").exists()
