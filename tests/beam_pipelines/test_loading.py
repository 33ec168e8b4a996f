"""Beam is loaded without its clients of cloud stores, which can be imported later."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

CODE = """
import sys
from beam_pipelines.worker import load_beam
load_beam()
import apache_beam
print([n for n in sys.modules if n.startswith(("google.cloud.storage", "google.cloud.bigquery", "azure.storage"))])
import apache_beam.io.gcp.gcsfilesystem as later
print(later.GCSFileSystem.scheme())
"""


def test_the_clients_are_left_out_and_can_be_had():
    pytest.importorskip("google.cloud.storage")
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["[]", "gs"]
