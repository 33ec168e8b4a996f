"""Read by every Python that starts with this folder on PYTHONPATH: the workers of a conversion among them."""

import os
import sys
from pathlib import Path

if os.environ.get("SHARDKIT_FAULT_PLAN"):
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    from tests.faults.injection import install

    install()
