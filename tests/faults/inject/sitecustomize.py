"""Read by every Python that starts with this folder on PYTHONPATH: the workers of a conversion among them."""

import os
import sys

if os.environ.get("SHARDKIT_FAULT_PLAN"):
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from injection import install

    install()
