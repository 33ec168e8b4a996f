"""Flink itself, on a cluster that the test starts on this machine. It needs Beam's job server for Flink.

`SHARDKIT_FLINK_JOB_SERVER_JAR` names that jar file. It needs Java.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from beam_pipelines.engines.portable import FLINK_JAR
from tests.support.engines.conversions import convert, shards_of

pytestmark = pytest.mark.slow


def flags_of(program):
    """Returns the flags of Beam that a job server asks for: its name says the version of Flink."""
    version = re.search(r"flink-(\d+\.\d+)", Path(program).name)
    return () if version is None else ("--", f"--flink_version={version.group(1)}")


@pytest.mark.full
def test_it_gives_the_bytes_of_the_local_engine(tmp_path, inputs, clean):
    program = os.environ.get(FLINK_JAR)
    if not program:
        pytest.skip(f"{FLINK_JAR} names no job server of Flink: it was not run")
    if shutil.which("java") is None:
        pytest.skip("flink needs Java: it was not run")
    result = convert(inputs, tmp_path / "out", "--runner", "flink", "--workers", 2, *flags_of(program))
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == clean


def test_a_name_tells_the_version_of_flink():
    assert flags_of("/x/beam-runners-flink-1.20-job-server-2.77.0.jar") == ("--", "--flink_version=1.20")
    assert flags_of("/x/job-server.jar") == ()
