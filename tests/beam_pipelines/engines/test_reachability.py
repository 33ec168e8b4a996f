"""Flink and Prism themselves, each on a cluster of its own on this machine, where their programs are at hand.

`SHARDKIT_FLINK_JOB_SERVER_JAR` names Beam's job server (a jar file; it needs Java), `SHARDKIT_PRISM` the program of
Prism.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from beam_pipelines.engines.portable import FLINK_JAR, PRISM
from tests.support.engines.conversions import convert, shards_of

pytestmark = pytest.mark.slow

PROGRAMS = {"flink": FLINK_JAR, "prism": PRISM}


def flags_of(runner, program):
    """Returns the flags of Beam that a program asks for: Flink's name says its version."""
    version = re.search(r"flink-(\d+\.\d+)", Path(program).name)
    return ("--", f"--flink_version={version.group(1)}") if runner == "flink" and version is not None else ()


@pytest.mark.full
@pytest.mark.parametrize("runner", PROGRAMS)
def test_it_gives_the_bytes_of_the_local_engine(tmp_path, inputs, clean, runner):
    program = os.environ.get(PROGRAMS[runner])
    if not program:
        pytest.skip(f"{PROGRAMS[runner]} names no program of {runner}: it was not run")
    if runner != "prism" and shutil.which("java") is None:
        pytest.skip(f"{runner} needs Java: it was not run")
    result = convert(inputs, tmp_path / "out", "--runner", runner, "--workers", 2, *flags_of(runner, program))
    assert result.returncode == 0, result.stderr
    assert shards_of(tmp_path / "out") == clean


def test_a_name_tells_the_version_of_flink():
    assert flags_of("flink", "/x/beam-runners-flink-1.20-job-server-2.77.0.jar") == ("--", "--flink_version=1.20")
    assert flags_of("prism", "/x/prism") == ()
