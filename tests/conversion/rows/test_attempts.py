"""The process that watches a conversion looks at its attempts while that one removes its work folder."""

import subprocess
import sys

import pytest

from shardkit.cleaning.inventory import is_any_held
from shardkit.conversion.rows.attempts import list_attempts

NUM_LOOKS = 20_000
COME_AND_GO = """
import os, sys
while True:
    for path in sys.argv[1:]:
        os.makedirs(path)
        os.removedirs(path)
"""


@pytest.mark.full
@pytest.mark.parametrize(("look", "expected"), [(list_attempts, {}), (is_any_held, False)])
def test_a_work_folder_may_go_while_it_is_looked_at(tmp_path, look, expected):
    (tmp_path / "stays").mkdir()
    command = [sys.executable, "-S", "-c", COME_AND_GO, str(tmp_path / "work" / "attempts")]
    process = subprocess.Popen(command)
    try:
        for _ in range(NUM_LOOKS):
            assert look(tmp_path / "work") == expected
    finally:
        process.kill()
        process.wait()
