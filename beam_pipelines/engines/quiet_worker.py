"""Imported by every worker of our Dask cluster before it begins: Beam warns of packages that nothing here needs."""

from __future__ import annotations

import logging
import os

if not os.environ.get("SHARDKIT_DEBUG"):
    logging.disable(logging.CRITICAL)
