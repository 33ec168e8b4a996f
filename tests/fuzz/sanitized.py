"""Fuzzes a build of the kernel that stops at the first wrong access to memory or undefined operation.

    python -m tests.fuzz.sanitized [--seed 1 --count 100000]

Compiles shardkit/kernel with AddressSanitizer and UndefinedBehaviorSanitizer into a temporary folder, puts that
build in the place of the installed one for one process, and runs `fuzz_kernel.py` there with the arguments given here,
then the tests named in TESTS. Needs g++ (or CXX) with its sanitizer libraries. Memory comes from malloc, so that
reading past the end of any Python object is noticed too.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.support.paths import ROOT

TESTS = [
    "encoding/test_kernel_decode.py",
    "encoding/test_kernel_scan.py",
    "statistics/test_kernel_counting.py",
    "encoding/test_encoder.py",
]
FLAGS = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-Wall", "-Wextra"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# The finder goes before all others, so that `shardkit._kernel` is the build whose path is in the environment.
_STARTUP = """
import importlib.util, os, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "shardkit._kernel":
            return importlib.util.spec_from_file_location(name, os.environ["SHARDKIT_SANITIZED_KERNEL"])

sys.meta_path.insert(0, Finder)
"""


def main(arguments):
    compiler = os.environ.get("CXX", "g++")
    with tempfile.TemporaryDirectory() as folder:
        kernel = Path(folder) / "_kernel.abi3.so"
        build(compiler, kernel)
        (Path(folder) / "sitecustomize.py").write_text(_STARTUP)
        environment = _environment(compiler, folder, kernel)
        check = "from shardkit import _kernel; print(_kernel.__file__)"
        loaded = subprocess.run(
            [sys.executable, "-c", check], env=environment, check=True, capture_output=True, text=True
        )
        if loaded.stdout.strip() != str(kernel):
            raise SystemExit(f"the sanitized build was not loaded but {loaded.stdout}")
        commands = [
            [sys.executable, "-m", "tests.fuzz.fuzz_kernel", "--alone", "0.5", *arguments],
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{t}" for t in TESTS)],
        ]
        return max(
            abs(subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode) for command in commands
        )


def build(compiler, target):
    """Compiles the kernel's sources with the sanitizers."""
    sources = sorted(str(path) for path in (ROOT / "shardkit" / "kernel").rglob("*.cpp"))
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([compiler, *FLAGS, *SANITIZERS, include, *sources, "-o", str(target)], check=True)


def _environment(compiler, folder, kernel):
    # The interpreter is not sanitized, so the library has to be there before anything else is.
    libraries = [_library(compiler, name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    paths = [folder, str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SHARDKIT_SANITIZED_KERNEL": str(kernel),
        # Python frees little when it ends.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def _library(compiler, name):
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return str(Path(found.stdout.strip()).resolve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
