"""Read by every Python that starts with this folder on PYTHONPATH: the workers of a conversion among them."""

import os
import sys
from pathlib import Path

if os.environ.get("SHARDKIT_FAULT_PLAN"):
    sys.path.append(str(Path(__file__).resolve().parents[4]))
    from tests.faults.faulty.injection import install

    install()
