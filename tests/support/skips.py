"""Every skip that CI accepts, with its reason; any other fails the run.

`CHECK_SKIPS` switches the check on: `all` where PyTorch and JAX are installed, `no-frameworks` where they are not.
"""

import os
import shutil
from pathlib import Path

from beam_pipelines.engines.prism_program import find_program

CHECK = os.environ.get("CHECK_SKIPS", "")

# A part of the skip's own words -> why the test cannot run.
ALLOWED = {
    "needs a CUDA device": "no GPU is there",
    "needs a machine without CUDA devices": "a GPU is there",
    "names no job server of Flink": "it is a separate download",
    "needs Java": "the job server needs it",
    "it makes each bucket that is named": "that server refuses no bucket",
    "root has no setpriv": "it belongs to util-linux",
    "no user namespaces here": "the kernel forbids what makes a full disk",
    "nothing may be mounted here": "the kernel forbids what makes a full disk",
    "strace counts what is read": "tracing is forbidden here",
    "no PostgreSQL is installed": "it is no Python package",
    "azurite": "the server is an npm package",
    "data set": "the real data sets do not lie beside the checkout",
    "real data": "as above",
    "shared data": "as above",
    "names no environment for external workers": "it is made by .ci/run",
    "no client for the store": "that environment is the smallest one",
    "nothing can be evicted here": "no Linux",
    "it takes no folder without a name": "HDFS refuses them",
    "has measured level": "the sizes of that level are known on x86-64 only",
}
if not (shutil.which("java") and Path(os.environ.get("SHARDKIT_HDFS_JARS", "none")).is_dir()):
    ALLOWED["SHARDKIT_HDFS_JARS"] = "the mini cluster of HDFS needs Java, and .ci/run gets its jars by Maven"
if find_program(os.environ) is None:
    ALLOWED["no program of Prism is installed"] = "it takes Go, by which .ci/run builds it"
FRAMEWORKS = {
    "import 'torch": "dev-frameworks is not installed; .ci/run installs it for tests/adapters",
    "import 'jax": "as above",
    "import 'streaming": "as above",
    "torch is not installed": "as above",
    "jax is not installed": "as above",
}

_unknown = []


def note_skip(report):
    """Keeps the words of a skip that no entry allows."""
    if not CHECK or not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    path, _, words = report.longrepr
    allowed = ALLOWED if CHECK == "all" else ALLOWED | FRAMEWORKS
    if not any(part in words for part in allowed):
        _unknown.append(f"{path}: {words}")


def unknown_skips():
    """Returns a line for each skip that no entry allows."""
    return list(dict.fromkeys(_unknown))
