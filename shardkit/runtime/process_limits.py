"""What a process may take, and how long it may live."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from shardkit.units import GiB, MiB, format_size

NO_MEMORY = "there is not enough memory"
EXIT_NO_MEMORY = 71  # EX_OSERR of <sysexits.h>.

# See prctl(2).
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MIN_MEMORY_BYTES, _MAX_MEMORY_BYTES = GiB, 8 * GiB
_FREE_FRACTION = 4

# Python's message where the system gives no stack for a thread.
_NO_THREAD = "can't start new thread"
# Those of the loader of shared libraries, and of protobuf, Arrow and DuckDB.
_OUT_OF_MEMORY = ("failed to map segment", "out of memory")
_GC_OBJECTS = 50_000
# The constants of <malloc.h>; see mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

# Where /proc/self/statm says how many pages count against a limit; see proc(5).
_STATM_FIELDS = {resource.RLIMIT_DATA: 5, resource.RLIMIT_AS: 0}

_KILL_SECONDS, _KILL_POLL_SECONDS = 0.5, 0.005

_is_replaceable = False
_allowed_bytes: int | None = None


def die_with_parent(parent: int | None = None) -> None:
    """Makes this process end when the one that started it does, where the system can do that.

    Args:
        parent: Number of the process that started this one, which may have ended before this call. In a container it
            may be 1. None where the number is unknown.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            sys.exit(1)


def inherit_descendants() -> None:
    """Makes the processes that a process below this one leaves behind children of this one, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_children() -> None:
    """Kills all children of this process and those that they leave behind, on Linux; returns within half a second."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    deadline = time.monotonic() + _KILL_SECONDS
    with contextlib.suppress(OSError):
        while (pids := [int(pid) for pid in children.read_text().split()]) and time.monotonic() < deadline:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                # A disk or a network folder that does not answer holds up even a process that was killed.
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    time.sleep(_KILL_POLL_SECONDS)


def lighten_process() -> None:
    """Makes the start of this process, which must be shardkit's, cheaper. Must be called before NumPy is imported.

    It turns off the threads of NumPy's linear algebra, which take 0.1 s of CPU time when they start, and have nothing
    to do in a conversion. It makes the search for cycles of objects rarer, which takes a tenth of the time of imports
    and of lists of many files, and finds little.
    """
    gc.set_threshold(_GC_OBJECTS, 20, 50)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def return_freed_memory() -> None:
    """Makes large blocks go back to the system when they are freed, where the C library is glibc.

    By default glibc raises its limit to the largest block that was ever freed. Then every thread's heap keeps the holes
    that such blocks leave, which are a third of the peak of a large conversion.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 4 * MiB)
        library.mallopt(_M_TRIM_THRESHOLD, 16 * MiB)


def give_back_memory() -> None:
    """Gives back to the system what is freed already, where the C library is glibc. Takes milliseconds."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def limit_memory(num_bytes: int | None = None) -> None:
    """Limits the memory that this process and those it starts may each ask for.

    A row that needs more then fails with an error, before the system ends whatever process it likes.

    Args:
        num_bytes: The limit; None takes a quarter of what is free now, 1 GiB at least and 8 GiB at most.
    """
    global _allowed_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if num_bytes is None:
        free = free_bytes()
        if free is None or soft != resource.RLIM_INFINITY:
            return
        num_bytes = min(max(_MIN_MEMORY_BYTES, free // _FREE_FRACTION), _MAX_MEMORY_BYTES)
    if hard != resource.RLIM_INFINITY:
        num_bytes = min(num_bytes, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, hard))
        _allowed_bytes = num_bytes


def describe_memory() -> str | None:
    """Returns what `limit_memory` or `ulimit -v` allows, as a clause for a message; None where neither was called."""
    if (space := _address_space()) is not None:
        return f"`ulimit -v` allows {format_size(space)} of address space a process"
    return None if _allowed_bytes is None else f"--max-memory allows {format_size(_allowed_bytes)} a process"


def larger_memory_step() -> str:
    """Returns the next step of a message on a lack of memory, by the limit that was met first."""
    limit = "--max-memory" if _address_space() is None else "limit, which `ulimit -v` shows"
    return f"Run the same command again with a larger {limit}"


def _address_space() -> int | None:
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_first = space != resource.RLIM_INFINITY and (_allowed_bytes is None or space < _allowed_bytes)
    return space if is_first else None


def is_of_memory(error: BaseException) -> bool:
    """Returns whether an exception says that there was too little memory, as that of a fork or of a thread may."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD):
        return True
    # Each library has its own words and class for it; a file's text must not decide where memory is not short.
    return is_cramped() and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def is_cramped() -> bool:
    """Returns whether `ulimit -v` allows so little that libraries abort the process where they get none."""
    space = _address_space()
    return space is not None and space < _MIN_MEMORY_BYTES


@contextlib.contextmanager
def place_noted(place: str) -> Iterator[None]:
    """Notes on an error of memory where it was met: the message at the end of a command names the place."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if is_of_memory(error):
            error.add_note(place)
        raise


def ask_for_memory_late() -> None:
    """Makes this process and those it starts ask for memory as they use it; to be called before Arrow is loaded.

    Arrow's allocator asks for 1 GiB at once where that is granted, so a limit just above leaves nothing for others.
    """
    os.environ.setdefault("MIMALLOC_ARENA_EAGER_COMMIT", "0")


def is_memory_short() -> bool:
    """Returns whether this process holds more than half of what it may; if not, one request was larger than the rest.

    True where that is unknown.
    """
    left = _left(resource.RLIMIT_DATA)
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return left is None or left < soft - soft // 2


def bytes_left() -> int | None:
    """Returns how much this process may still ask for; None where that is not limited, or unknown."""
    return min((left for limit in _STATM_FIELDS if (left := _left(limit)) is not None), default=None)


def _left(limit: int) -> int | None:
    soft, _ = resource.getrlimit(limit)
    if soft == resource.RLIM_INFINITY:
        return None
    try:
        num_pages = int(Path("/proc/self/statm").read_text().split()[_STATM_FIELDS[limit]])
    except (OSError, ValueError, IndexError, MemoryError):
        return None
    return soft - num_pages * resource.getpagesize()


def let_replace() -> None:
    """Says that the parent process starts another one when this process ends with EXIT_NO_MEMORY."""
    global _is_replaceable
    _is_replaceable = True


def exit_if_memory_is_short() -> None:
    """Ends this process if its memory is short and it may be replaced.

    To be called after an allocation failed and the caller's memory was freed. If memory is still short, a user's
    function or another thread holds it, and no further step is safe, not even the start of a thread.
    """
    if _is_replaceable and is_memory_short():
        os._exit(EXIT_NO_MEMORY)


def free_bytes() -> int | None:
    """Returns the memory that this process can still take, None if the system does not tell."""
    found = [n for n in (_free_in_system(), _free_in_group()) if n is not None]
    return min(found) if found else None


def _free_in_system() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _free_in_group() -> int | None:
    # The limit of a container; see <https://docs.kernel.org/admin-guide/cgroup-v2.html>.
    with contextlib.suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            # Cached pages count as used there, but are given back on demand.
            stat = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
            return int(limit) - used + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
    return None
